"""The test oracle for chaos runs: compares the committed records of each target with the source.

Invariant: the oracle does not use the client under test.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from integration.chaos.expected import (
    Offsets,
    copied_values,
    counted_values,
    difference,
    wrong_offsets,
)

_TIMEOUT_S: Final = 60.0
_BLOCKED_AFTER_S: Final = 30.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The number of source rows, and the numbers of lost and duplicate rows in the target topics.

    `blocked` names partitions with an open transaction, which `read_committed` consumers cannot
    read to the end. `wrong_offsets` names partitions of the source topic with a wrong committed
    offset. `examples` contains some of the lost and duplicate rows.
    """

    rows: int
    lost: int
    duplicates: int
    blocked: tuple[str, ...]
    wrong_offsets: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    @property
    def is_exactly_once(self) -> bool:
        return not self.lost and not self.duplicates and not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.blocked, *self.wrong_offsets)


def check_delivery(bootstrap_servers: str, source: str, target: str, *, fed: int) -> Delivery:
    """Check a copy of a topic, as `check` does."""
    return check(bootstrap_servers, source, [target], fed=fed)


def check(
    bootstrap_servers: str,
    source: str,
    targets: Sequence[str],
    *,
    fed: int,
    batches: Iterable[Offsets] | None = None,
    group: str | None = None,
) -> Delivery:
    """Read all topics to their ends and compare each target topic with the source topic.

    If `batches` (the end offsets of the micro-batches) is given, a target topic must contain the
    counts of an aggregation. Otherwise, it must contain a copy of each source record. If a `group`
    is given, its committed offsets must be the end offsets of the source topic. `fed` is the number
    of records in the source topic that brokers have acknowledged. Raises `AssertionError` if `fed`
    is 0, or if brokers have lost acknowledged records.
    """
    blocked = [each for target in targets for each in _await_closed(bootstrap_servers, target)]
    ends = _ends(bootstrap_servers, source, IsolationLevel.READ_COMMITTED)
    assert 0 < fed <= sum(ends), (
        f"{fed} records were acknowledged, but the source contains {sum(ends)}"
    )
    expected = copied_values(ends) if batches is None else counted_values(batches, ends)
    found = [difference(expected, _values(bootstrap_servers, target)) for target in targets]
    wrong: tuple[str, ...] = ()
    if group is not None:
        committed = committed_offsets(bootstrap_servers, group, source, partitions=len(ends))
        wrong = wrong_offsets(group, committed, ends)
    return Delivery(
        rows=sum(ends),
        lost=sum(each.lost for each in found),
        duplicates=sum(each.duplicates for each in found),
        blocked=tuple(blocked),
        wrong_offsets=wrong,
        examples=tuple(example for each in found for example in each.examples),
    )


def read_batches(checkpoint: str, source: str, *, partitions: int) -> list[Offsets]:
    """Return the end offsets of the micro-batches in a checkpoint.

    The last line of each `offsets/N` file contains the offsets, because the query has one source.
    """
    files = [path for path in Path(checkpoint, "offsets").iterdir() if path.name.isdecimal()]
    found: list[Offsets] = []
    for number, path in enumerate(sorted(files, key=lambda path: int(path.name))):
        assert path.name == str(number), f"the checkpoint has no offsets of batch {number}"
        ends = json.loads(path.read_text().splitlines()[-1])[source]
        found.append([ends.get(str(partition), 0) for partition in range(partitions)])
    return found


def committed_offsets(
    bootstrap_servers: str, group: str, topic: str, *, partitions: int
) -> list[int]:
    """Return the committed offsets of a group, or -1 for a partition without a committed offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    request = ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, partition) for partition in range(partitions)]
    )
    (future,) = admin.list_consumer_group_offsets(
        [request], require_stable=True, request_timeout=_TIMEOUT_S
    ).values()
    found = {
        partition.partition: partition.offset
        for partition in future.result(_TIMEOUT_S).topic_partitions
    }
    return [max(found.get(partition, -1), -1) for partition in range(partitions)]


def _await_closed(bootstrap_servers: str, topic: str) -> list[str]:
    """Wait until all partitions can be read to their ends.

    After a timeout, return the partitions that cannot be read to their ends.
    """
    deadline_s = time.monotonic() + _BLOCKED_AFTER_S
    while True:
        ends = _ends(bootstrap_servers, topic, IsolationLevel.READ_UNCOMMITTED)
        stable = _ends(bootstrap_servers, topic, IsolationLevel.READ_COMMITTED)
        if ends == stable:
            return []
        if time.monotonic() > deadline_s:
            return [
                f"{topic}-{partition}: high watermark {end}, but last stable offset {last}"
                for partition, (end, last) in enumerate(zip(ends, stable, strict=True))
                if end != last
            ]
        time.sleep(_POLL_S)


def _ends(bootstrap_servers: str, topic: str, isolation_level: IsolationLevel) -> list[int]:
    """Return the high watermarks or the last stable offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    partitions = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    queries = {TopicPartition(topic, partition): latest for partition in partitions}
    futures = admin.list_offsets(
        queries, isolation_level=isolation_level, request_timeout=_TIMEOUT_S
    )
    found = {where.partition: future.result(_TIMEOUT_S).offset for where, future in futures.items()}
    return [found[partition] for partition in sorted(found)]


def _values(bootstrap_servers: str, topic: str) -> Counter[bytes]:
    """Count the values up to the last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    found: Counter[bytes] = Counter()
    try:
        partitions = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        unfinished = set(partitions)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        deadline_s = time.monotonic() + _TIMEOUT_S
        while unfinished:
            assert time.monotonic() < deadline_s, (
                f"{topic}: the ends of partitions {unfinished} were not reached within "
                f"{_TIMEOUT_S:g} s"
            )
            for message in consumer.consume(10_000, timeout=0.5):
                error, value = message.error(), message.value()
                if error is None:
                    assert value is not None
                    found[value] += 1
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    unfinished.discard(message.partition())
    finally:
        consumer.close()
    return found
