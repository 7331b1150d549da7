"""What a read_committed reader sees in the end, compared with what was in the source.

Invariant: reads by another client than the one under test. What it must not know: faults.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

_TIMEOUT_S: Final = 60.0
_STUCK_AFTER_S: Final = 30.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Rows of the source, and of those how many are lost, and how many more there are than that.

    `stuck` names partitions whose readers are held up by an open transaction.
    """

    rows: int
    lost: int
    duplicates: int
    stuck: tuple[str, ...]

    @property
    def is_exactly_once(self) -> bool:
        return not self.lost and not self.duplicates and not self.stuck


def judge(bootstrap_servers: str, source: str, target: str, *, fed: int) -> Verdict:
    """Read both topics to their ends.

    `fed` is how many records the source took, of which brokers may lose none. Raises
    `AssertionError` where they have, or where there were none: then there is nothing to judge by.
    """
    stuck = _await_closed(bootstrap_servers, target)
    wanted = {
        f"{partition}:{offset}".encode()
        for partition, end in enumerate(
            _ends(bootstrap_servers, source, IsolationLevel.READ_COMMITTED)
        )
        for offset in range(end)
    }
    assert 0 < fed <= len(wanted), f"{fed} records were fed, and the source has {len(wanted)}"
    found = _values(bootstrap_servers, target)
    return Verdict(
        rows=len(wanted),
        lost=len(wanted - found.keys()),
        duplicates=sum(found.values()) - len(found) + len(found.keys() - wanted),
        stuck=tuple(stuck),
    )


def _await_closed(bootstrap_servers: str, topic: str) -> list[str]:
    """The partitions that cannot be read to their ends, when there has been time to."""
    deadline_s = time.monotonic() + _STUCK_AFTER_S
    while True:
        ends = _ends(bootstrap_servers, topic, IsolationLevel.READ_UNCOMMITTED)
        stable = _ends(bootstrap_servers, topic, IsolationLevel.READ_COMMITTED)
        if ends == stable:
            return []
        if time.monotonic() > deadline_s:
            return [
                f"{topic}-{partition} ends at {end} and can be read up to {last}"
                for partition, (end, last) in enumerate(zip(ends, stable, strict=True))
                if end != last
            ]
        time.sleep(_POLL_S)


def _ends(bootstrap_servers: str, topic: str, isolation_level: IsolationLevel) -> list[int]:
    """High watermarks, or last stable offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    partitions = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, partition): latest for partition in partitions}
    answers = admin.list_offsets(asked, isolation_level=isolation_level, request_timeout=_TIMEOUT_S)
    found = {where.partition: answer.result(_TIMEOUT_S).offset for where, answer in answers.items()}
    return [found[partition] for partition in sorted(found)]


def _values(bootstrap_servers: str, topic: str) -> Counter[bytes]:
    """How often each value is there, up to the last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "judge",
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
            assert time.monotonic() < deadline_s, f"partitions {unfinished} of {topic} do not end"
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
