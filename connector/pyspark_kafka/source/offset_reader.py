"""What the driver asks the cluster: partitions, their offsets now, and what a limit means in them.

Purpose: limits (`earliest`, a timestamp, ...) in, offsets out (KafkaOffsetReaderAdmin in Spark's
connector). Invariant: every answer covers exactly the partitions asked for. What it must not
know: Spark, ranges, data loss, and how often the client asks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark_kafka.client.port import KafkaReads
from pyspark_kafka.errors import (
    OffsetError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    IsolationLevel,
    OffsetQuery,
    PartitionOffsets,
)
from pyspark_kafka.kafka.topics import TopicPartition, format_partitions
from pyspark_kafka.options.values import (
    Assign,
    GlobalTimestamp,
    Limit,
    OffsetLimit,
    PartitionTimestamps,
    SourceOptions,
    SpecificOffsets,
    SubscribePattern,
)

log = logging.getLogger(__name__)

Which = Literal["starting", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The partitions of a query that exist now. `missing_topics` are named by it and do not."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, str | None]
    missing_topics: frozenset[str]


_STABLE_POLL_SECONDS = 0.1


class OffsetReader:
    """Questions of one query to its cluster; owns no client, closes none."""

    def __init__(
        self,
        client: KafkaReads,
        options: SourceOptions,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._options = options
        self._sleep = sleep
        self._monotonic = monotonic

    def assignment(self, *, expected: Collection[TopicPartition] = ()) -> Assignment:
        """The partitions selected that exist.

        Where one that was there before (`expected`) is missing, the question is asked again,
        `fetchOffset.numRetries` times in all: a broker may not have heard yet of what is new.
        """
        wanted = set(filter(self._options.selection.selects, expected))
        attempts = self._options.client.fetch_offset_num_retries
        for _ in range(attempts - 1):
            assignment = self._assignment()
            missing = wanted - assignment.partitions
            if not missing:
                return assignment
            log.warning("the cluster does not know of %s", format_partitions(missing))
            self._sleep(self._options.client.fetch_offset_retry_interval_ms / 1000)
        return self._assignment()

    def _assignment(self) -> Assignment:
        selection = self._options.selection
        described = self._client.describe_topics(self._selected_topics())
        partitions = {
            TopicPartition(topic.name, number)
            for topic in described.values()
            for number in topic.partitions
        }
        return Assignment(
            partitions=frozenset(filter(selection.selects, partitions)),
            topic_ids={name: topic.topic_id for name, topic in described.items()},
            missing_topics=selection.topics - described.keys(),
        )

    def _selected_topics(self) -> Collection[str]:
        selection = self._options.selection
        if isinstance(selection, SubscribePattern):
            return [name for name in self._client.list_topics() if selection.pattern.search(name)]
        return selection.topics

    def complete_assignment(self) -> Assignment:
        """The partitions of a new query, all of which must exist.

        Raises `UnknownTopicOrPartitionError` for a topic, `OptionError` for a partition of `assign`.
        """
        assignment = self.assignment()
        self.require_topics(assignment.missing_topics)
        selection = self._options.selection
        if isinstance(selection, Assign):
            unknown = selection.partitions - assignment.partitions
            if unknown:
                raise OptionError(
                    f"option 'assign' names {format_partitions(unknown)}, which the topic does not have: "
                    f"it has {format_partitions(self._partitions_of({tp.topic for tp in unknown}))}"
                )
        if not assignment.partitions:
            log.warning("no topic matches %s: there is nothing to read yet", selection)
        return assignment

    def require_topics(self, missing: Collection[str]) -> None:
        if missing:
            raise UnknownTopicOrPartitionError(
                f"topic {', '.join(repr(name) for name in sorted(missing))} of "
                f"{self._options.selection} does not exist on "
                f"{self._options.client.bootstrap_servers}, or may not be seen: create it, or "
                "correct the name or the principal's rights"
            )

    def _partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        described = self._client.describe_topics(topics).values()
        return [TopicPartition(topic.name, n) for topic in described for n in topic.partitions]

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Log start offsets."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST), self._options.isolation_level)

    def latest(
        self,
        partitions: Collection[TopicPartition],
        *,
        expected: PartitionOffsets | None = None,
        isolation_level: IsolationLevel | None = None,
    ) -> dict[TopicPartition, int]:
        """Last stable offsets, or log ends under read_uncommitted.

        An answer below `expected` is asked again, `fetchOffset.numRetries` times in all: the new
        leader of a partition may know its high watermark late (KAFKA-7703). What is still below
        is returned as it is.
        """
        level = isolation_level or self._options.isolation_level
        attempts = self._options.client.fetch_offset_num_retries
        offsets: dict[TopicPartition, int] = {}
        for attempt in range(attempts):
            offsets = self._offsets(dict.fromkeys(partitions, LATEST), level)
            backwards = [
                partition
                for partition, offset in (expected or {}).items()
                if offsets.get(partition, offset) < offset
            ]
            if not backwards:
                break
            log.warning("latest offsets went backwards for %s", format_partitions(backwards))
            if attempt + 1 < attempts:
                self._sleep(self._options.client.fetch_offset_retry_interval_ms / 1000)
        return offsets

    def first_since(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Offsets of the first record with this timestamp or a later one, where there is one."""
        queries = dict.fromkeys(partitions, AtTimestamp(timestamp_ms=timestamp_ms))
        found = self._client.list_offsets(queries, self._options.isolation_level)
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def wait_until_stable(self, ends: PartitionOffsets) -> None:
        """Wait until the last stable offset of every partition has reached its end.

        Raises `OffsetError` when it has not after `kafkaConsumer.pollTimeoutMs`.
        """
        timeout_ms = self._options.client.poll_timeout_ms
        deadline = self._monotonic() + timeout_ms / 1000
        while True:
            stable = self._offsets(dict.fromkeys(ends, LATEST), self._options.isolation_level)
            pending = sorted(partition for partition in ends if stable[partition] < ends[partition])
            if not pending:
                return
            left = deadline - self._monotonic()
            if left <= 0:
                raise OffsetError(
                    f"{pending[0]} is to be read to offset {ends[pending[0]]}, but its last "
                    f"stable offset is {stable[pending[0]]}: a transaction is still open there "
                    f"after {timeout_ms} ms. With kafka.isolation.level=read_committed only "
                    "decided records are read: wait for the transaction, end the read earlier, or "
                    "go on with the level that the end was planned with (read_uncommitted)"
                )
            self._sleep(min(left, _STABLE_POLL_SECONDS))

    def resolve(
        self, limit: OffsetLimit, partitions: Collection[TopicPartition], which: Which
    ) -> dict[TopicPartition, int]:
        """Offsets for a limit; raises `OptionError` where it does not fit the partitions."""
        match limit:
            case Limit.EARLIEST:
                return self.earliest(partitions)
            case Limit.LATEST:
                return self.latest(partitions)
            case Limit.COMMITTED:
                return self._committed(partitions)
            case SpecificOffsets(offsets=offsets):
                self._check_same(offsets.keys(), partitions, f"{which}Offsets")
                symbolic = {p: offset for p, offset in offsets.items() if offset < 0}
                return {**offsets, **self._offsets(symbolic, self._options.isolation_level)}
            case PartitionTimestamps(timestamps_ms=timestamps_ms):
                option = f"{which}OffsetsByTimestamp"
                self._check_same(timestamps_ms.keys(), partitions, option)
                return self._at_timestamps(timestamps_ms, which, option)
            case GlobalTimestamp(timestamp_ms=timestamp_ms):
                timestamps_ms = dict.fromkeys(partitions, timestamp_ms)
                return self._at_timestamps(timestamps_ms, which, f"{which}Timestamp")
        raise AssertionError(limit)

    def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        group_id = self._options.client.group_id
        found = self._client.committed_offsets(group_id, partitions)
        earliest = self.earliest(partitions)
        log_end = self.latest(partitions, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        committed = {}
        for partition in sorted(partitions):
            offset = found.get(partition)
            if offset is None:
                raise OffsetError(
                    f"startingOffsets=committed: group '{group_id}' has committed no offset for "
                    f"{partition}: commit one, correct 'kafka.group.id', or start at earliest or "
                    "at offsets"
                )
            if not earliest[partition] <= offset <= log_end[partition]:
                raise OffsetError(
                    f"startingOffsets=committed: group '{group_id}' has committed offset {offset} "
                    f"for {partition}, which has offsets {earliest[partition]} to "
                    f"{log_end[partition]}: reset the group, or start at earliest or at offsets"
                )
            committed[partition] = offset
        return committed

    def _at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], which: Which, option: str
    ) -> dict[TopicPartition, int]:
        queries = {p: AtTimestamp(timestamp_ms=ms) for p, ms in timestamps_ms.items()}
        found = self._client.list_offsets(queries, self._options.isolation_level)
        unmatched = sorted(partition for partition in queries if found[partition] is None)
        if unmatched and which == "starting" and not self._options.latest_without_match:
            raise OptionError(
                f"option '{option}' asks for {timestamps_ms[unmatched[0]]} in {unmatched[0]}, "
                "which has no record with that timestamp or a later one: take an earlier one, or "
                "set 'startingOffsetsByTimestampStrategy' to 'latest'"
            )
        matched = {partition: offset for partition, offset in found.items() if offset is not None}
        return {**matched, **self.latest(unmatched)} if unmatched else matched

    def _check_same(
        self,
        named: Collection[TopicPartition],
        partitions: Collection[TopicPartition],
        option: str,
    ) -> None:
        unknown, absent = set(named) - set(partitions), set(partitions) - set(named)
        if unknown:
            raise OptionError(
                f"option '{option}' names {format_partitions(unknown)}, which the query does not read: it "
                f"reads {format_partitions(partitions)}"
            )
        if absent:
            symbols = "; -2 is earliest, -1 latest" if option.endswith("Offsets") else ""
            raise OptionError(
                f"option '{option}' says nothing about {format_partitions(absent)}: it must name exactly "
                f"the partitions that are read{symbols}"
            )

    def _offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        if not queries:
            return {}
        found = self._client.list_offsets(queries, isolation_level)
        offsets = {}
        for partition in queries:
            offset = found[partition]
            assert offset is not None, partition  # only a timestamp can be without a match
            offsets[partition] = offset
        return offsets
