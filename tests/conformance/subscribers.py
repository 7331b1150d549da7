"""Group members that use librdkafka and that the test's thread polls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import confluent_kafka

from tests.conformance.eventually import eventually

_POLL_S = 0.05


class Member:
    """A subscribed consumer. `poll` keeps it in the group and stores the records.

    With `group.protocol=consumer`, the broker determines the timeouts.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, **options: str) -> None:
        self.taken: list[confluent_kafka.Message] = []
        timeouts = {"heartbeat.interval.ms": 200, "session.timeout.ms": 10_000}
        if options.get("group.protocol") == "consumer":
            timeouts = {}
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **timeouts,
                **options,
            }
        )
        self._consumer.subscribe([topic])

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(partition.partition for partition in self._consumer.assignment())

    def poll(self) -> None:
        """Poll once and store the returned record, if any; rebalances also happen in polls."""
        message = self._consumer.poll(_POLL_S)
        if message is not None and message.error() is None:
            self.taken.append(message)

    def commit(self) -> None:
        """Commit the position after all consumed records, synchronously."""
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def members(
    bootstrap: str, group: str, topic: str, count: int, **options: str
) -> Iterator[list[Member]]:
    """Create members of one group, which leave the group when the block ends."""
    joined = [Member(bootstrap, group, topic, **options) for _ in range(count)]
    try:
        yield joined
    finally:
        for member in joined:
            member.close()


def await_taken(polled: Sequence[Member], count: int) -> None:
    def holds() -> bool:
        for member in polled:
            member.poll()
        return sum(len(member.taken) for member in polled) >= count

    eventually(holds, timeout_s=60)


def owners(polled: Sequence[Member]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for member in polled:
        for partition in member.owned:
            counts[partition] = counts.get(partition, 0) + 1
    return counts


def await_owned(polled: Sequence[Member], *partitions: int) -> None:
    """Poll until each partition has exactly one owner and every possible owner has a partition."""
    busy = min(len(polled), len(partitions))

    def holds() -> bool:
        for member in polled:
            member.poll()
        owning = sum(bool(member.owned) for member in polled)
        return owning == busy and owners(polled) == dict.fromkeys(partitions, 1)

    eventually(holds, timeout_s=60)
