"""Runs on the driver, and requests the partitions of a query and their offsets.

Limits such as `earliest` or a timestamp are resolved to offsets, as in `KafkaOffsetReaderAdmin` of
Spark's connector. Invariant: every result contains exactly the requested partitions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from pyspark_kafka.client.port import KafkaReadClient
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
    OffsetLimit,
    OffsetLimitName,
    PartitionTimestamps,
    SourceOptions,
    SpecificOffsets,
    SubscribePattern,
)

log = logging.getLogger(__name__)

Which = Literal["starting", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The existing partitions of a query, and its subscribed topics that do not exist."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, str | None]
    missing_topics: frozenset[str]


_STABLE_POLL_SECONDS = 0.1
_SPECIAL_OFFSETS = {
    "startingOffsets": " Use -2 for earliest.",
    "endingOffsets": " Use -1 for latest.",
}


class OffsetReader:
    """Requests partitions and offsets for one query. The caller must close the client."""

    def __init__(
        self,
        client: KafkaReadClient,
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
        """Return the selected partitions that exist.

        If a partition in `expected` is missing, the metadata is requested again, because a broker
        may have stale metadata. It is requested at most `fetchOffset.numRetries` times.
        """
        required = set(filter(self._options.selection.selects, expected))
        attempts = self._options.client.fetch_offset_num_retries
        for _ in range(attempts - 1):
            assignment = self._assignment()
            missing = required - assignment.partitions
            if not missing:
                return assignment
            log.warning(
                "The query reads %s, but the metadata does not contain these partitions. "
                "Refreshing the metadata, because it may be stale.",
                format_partitions(missing),
            )
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
        """Return the partitions of a new query.

        Raises `UnknownTopicOrPartitionError` if a subscribed topic does not exist, and
        `OptionError` if a partition in the `assign` option does not exist.
        """
        assignment = self.assignment()
        self.require_topics(assignment.missing_topics)
        selection = self._options.selection
        if isinstance(selection, Assign):
            unknown = selection.partitions - assignment.partitions
            if unknown:
                existing = self._partitions_of({partition.topic for partition in unknown})
                raise _option_error(
                    f"Option 'assign' contains partitions that do not exist: "
                    f"{format_partitions(unknown)}. The existing partitions are "
                    f"{format_partitions(existing)}.",
                    advice="Remove the missing partitions from the option, or add partitions to "
                    "the topic.",
                    option="assign",
                    partition=min(unknown),
                )
        if not assignment.partitions:
            log.warning("There is nothing to read, because no topic matches %s.", selection)
        return assignment

    def require_topics(self, missing: Collection[str]) -> None:
        """Raise `UnknownTopicOrPartitionError` if `missing` is not empty."""
        if missing:
            topics = sorted(missing)
            subject, verb = ("Topic", "does") if len(topics) == 1 else ("Topics", "do")
            existing = self._client.list_topics()
            close = {name for topic in topics for name in get_close_matches(topic, existing, n=1)}
            similar = f"Similar topic: {', '.join(sorted(map(repr, close)))}. " if close else ""
            raise UnknownTopicOrPartitionError(
                f"{subject} {', '.join(map(repr, topics))} ({self._options.selection}) {verb} not "
                f"exist on {self._options.client.bootstrap_servers}, or the principal lacks the "
                "DESCRIBE ACL.",
                advice=f"{similar}{UnknownTopicOrPartitionError.remedy}",
                topic=topics[0],
            )

    def _partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        described = self._client.describe_topics(topics).values()
        return [TopicPartition(topic.name, n) for topic in described for n in topic.partitions]

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets of the partitions."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST), self._options.isolation_level)

    def latest(
        self,
        partitions: Collection[TopicPartition],
        *,
        expected: PartitionOffsets | None = None,
        isolation_level: IsolationLevel | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets, or the high watermarks with read_uncommitted.

        If an offset is lower than in `expected`, the offsets are requested again, because a new
        leader may have an older high watermark (KAFKA-7703). The offsets are requested at most
        `fetchOffset.numRetries` times. The last result is returned.
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
            if not backwards or attempt + 1 == attempts:
                break
            log.warning(
                "The log of %s ends before the query's offsets. Requesting the end offsets again, "
                "because a new leader may temporarily return a lower offset. If the log still ends "
                "before the query's offsets, records are lost, and option 'failOnDataLoss' "
                "applies.",
                format_partitions(backwards),
            )
            self._sleep(self._options.client.fetch_offset_retry_interval_ms / 1000)
        return offsets

    def first_since(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record at or after this timestamp.

        Partitions without such a record are omitted.
        """
        queries = dict.fromkeys(partitions, AtTimestamp(timestamp_ms=timestamp_ms))
        found = self._client.list_offsets(queries, self._options.isolation_level)
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def wait_until_stable(self, ends: PartitionOffsets) -> None:
        """Wait until the last stable offsets of all partitions have reached `ends`.

        Raises `OffsetError` if the wait is longer than `kafkaConsumer.pollTimeoutMs`.
        """
        timeout_ms = self._options.client.poll_timeout_ms
        deadline = self._monotonic() + timeout_ms / 1000
        while True:
            stable = self._offsets(dict.fromkeys(ends, LATEST), self._options.isolation_level)
            pending = sorted(partition for partition in ends if stable[partition] < ends[partition])
            if not pending:
                return
            remaining = deadline - self._monotonic()
            if remaining <= 0:
                first = pending[0]
                raise OffsetError(
                    f"The query must read {first} up to offset {ends[first]}, but "
                    f"'kafka.isolation.level' is read_committed, and the last stable offset is "
                    f"still {stable[first]} after {timeout_ms} ms, because a transaction is open.",
                    advice="Wait until the transaction ends, or set a lower end offset. If the end "
                    "offset was determined with read_uncommitted, you can also set "
                    "'kafka.isolation.level' to 'read_uncommitted'.",
                    topic=first.topic,
                    partition=first.partition,
                    offset=ends[first],
                )
            self._sleep(min(remaining, _STABLE_POLL_SECONDS))

    def resolve(
        self, limit: OffsetLimit, partitions: Collection[TopicPartition], which: Which
    ) -> dict[TopicPartition, int]:
        """Resolve a limit to offsets.

        Raises `OptionError` if the limit is invalid for these partitions.
        """
        match limit:
            case OffsetLimitName.EARLIEST:
                return self.earliest(partitions)
            case OffsetLimitName.LATEST:
                return self.latest(partitions)
            case OffsetLimitName.COMMITTED:
                return self._committed(partitions)
            case SpecificOffsets(offsets=offsets):
                _check_partitions(offsets.keys(), partitions, f"{which}Offsets")
                symbolic = {p: offset for p, offset in offsets.items() if offset < 0}
                return {**offsets, **self._offsets(symbolic, self._options.isolation_level)}
            case PartitionTimestamps(timestamps_ms=timestamps_ms):
                option = option_name(limit, which)
                _check_partitions(timestamps_ms.keys(), partitions, option)
                return self._at_timestamps(timestamps_ms, which, option)
            case GlobalTimestamp(timestamp_ms=timestamp_ms):
                timestamps_ms = dict.fromkeys(partitions, timestamp_ms)
                return self._at_timestamps(timestamps_ms, which, option_name(limit, which))
        raise AssertionError(limit)

    def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        group_id = self._options.client.group_id
        found = self._client.committed_offsets(group_id, partitions)
        earliest = self.earliest(partitions)
        high_watermarks = self.latest(partitions, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        committed = {}
        for partition in sorted(partitions):
            offset = found.get(partition)
            if offset is None:
                raise OffsetError(
                    f"Option 'startingOffsets' is 'committed', but group '{group_id}' has no "
                    f"committed offset for {partition}.",
                    advice="Commit an offset for the group, correct 'kafka.group.id', or set "
                    "'startingOffsets' to 'earliest' or to specific offsets.",
                    option="startingOffsets",
                    topic=partition.topic,
                    partition=partition.partition,
                    group_id=group_id,
                )
            if not earliest[partition] <= offset <= high_watermarks[partition]:
                raise OffsetError(
                    f"Option 'startingOffsets' is 'committed', but the committed offset {offset} "
                    f"of group '{group_id}' for {partition} is out of range. The log starts at "
                    f"offset {earliest[partition]} and ends at offset "
                    f"{high_watermarks[partition]}.",
                    advice="Reset the offsets of the group, or set 'startingOffsets' to 'earliest' "
                    "or to specific offsets.",
                    option="startingOffsets",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=offset,
                    group_id=group_id,
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
            first = unmatched[0]
            raise _option_error(
                f"Option '{option}' has the timestamp {timestamps_ms[first]} for {first}, but the "
                "partition has no record with this timestamp or a later one.",
                advice="Set an earlier timestamp, or set 'startingOffsetsByTimestampStrategy' to "
                "'latest'.",
                option=option,
                partition=first,
            )
        matched = {partition: offset for partition, offset in found.items() if offset is not None}
        return {**matched, **self.latest(unmatched)} if unmatched else matched

    def _offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        if not queries:
            return {}
        found = self._client.list_offsets(queries, isolation_level)
        offsets = {}
        for partition in queries:
            offset = found[partition]
            assert offset is not None, partition  # Only a query by timestamp can return None.
            offsets[partition] = offset
        return offsets


def option_name(limit: OffsetLimit, which: Which) -> str:
    """Return the name of the option that sets this limit."""
    match limit:
        case GlobalTimestamp():
            return f"{which}Timestamp"
        case PartitionTimestamps():
            return f"{which}OffsetsByTimestamp"
        case _:
            return f"{which}Offsets"


def _check_partitions(
    given: Collection[TopicPartition], partitions: Collection[TopicPartition], option: str
) -> None:
    """Raise `OptionError` if an option does not contain exactly the partitions to read."""
    unknown, absent = set(given) - set(partitions), set(partitions) - set(given)
    if unknown:
        raise _option_error(
            f"Option '{option}' contains partitions that the query does not read: "
            f"{format_partitions(unknown)}. The query reads {format_partitions(partitions)}.",
            advice="Set the option only for partitions that the query reads.",
            option=option,
            partition=min(unknown),
        )
    if absent:
        special = _SPECIAL_OFFSETS.get(option, "")
        raise _option_error(
            f"Option '{option}' does not contain {format_partitions(absent)}.",
            advice=f"Set the option for all partitions that the query reads.{special}",
            option=option,
            partition=min(absent),
        )


def _option_error(
    message: str, *, advice: str, option: str, partition: TopicPartition
) -> OptionError:
    return OptionError(
        message,
        advice=advice,
        option=option,
        topic=partition.topic,
        partition=partition.partition,
    )
