"""The oracle for chaos runs. It compares the target topic (`read_committed`) with the source.

Invariant: the oracle does not use the client under test.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

_TIMEOUT_S: Final = 60.0
_BLOCKED_AFTER_S: Final = 30.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The number of rows in the source, and of lost and duplicate rows in the target.

    `blocked` names partitions with an open transaction, which consumers cannot read to the end.
    """

    rows: int
    lost: int
    duplicates: int
    blocked: tuple[str, ...]

    @property
    def is_exactly_once(self) -> bool:
        return not self.lost and not self.duplicates and not self.blocked


def check_delivery(bootstrap_servers: str, source: str, target: str, *, fed: int) -> Delivery:
    """Read both topics to their ends and compare them.

    `fed` is the number of acknowledged records of the source. Raises `AssertionError` if it is 0,
    or if brokers have lost acknowledged records.
    """
    blocked = _await_closed(bootstrap_servers, target)
    wanted = {
        f"{partition}:{offset}".encode()
        for partition, end in enumerate(
            _ends(bootstrap_servers, source, IsolationLevel.READ_COMMITTED)
        )
        for offset in range(end)
    }
    assert 0 < fed <= len(wanted), (
        f"{fed} records were acknowledged, but the source contains {len(wanted)}"
    )
    found = _values(bootstrap_servers, target)
    return Delivery(
        rows=len(wanted),
        lost=len(wanted - found.keys()),
        duplicates=sum(found.values()) - len(found) + len(found.keys() - wanted),
        blocked=tuple(blocked),
    )


def _await_closed(bootstrap_servers: str, topic: str) -> list[str]:
    """Wait until all partitions can be read to their ends.

    After a timeout, return the partitions that cannot.
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
