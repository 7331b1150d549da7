"""Places the replicas of new partitions on brokers.

Leaders and followers are distributed evenly across racks, and across the brokers in a rack (Kafka's
`StripedReplicaPlacer`). The replicas of each partition start one broker after the replicas of the
previous partition. A fenced broker is used only if no other broker is left in its rack, and never
for the first replica. Invariant: a broker has at most one replica of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Broker
from broker_ref.protocol.errors import ApiError

RandomBelow = Callable[[int], int]
"""A function that returns a random number from 0 up to, but not including, its argument."""


def random_below(random_bytes: Callable[[int], bytes]) -> RandomBelow:
    """Return a random number generator that uses `random_bytes`."""
    return lambda bound: int.from_bytes(random_bytes(8), "big") % bound


def place(
    brokers: Iterable[Broker], *, count: int, replication_factor: int, draw: RandomBelow
) -> list[tuple[int, ...]]:
    """Return the replicas of `count` new partitions. The first replica is the preferred leader.

    Brokers in controlled shutdown are not used.

    Raises: ApiError (INVALID_REPLICATION_FACTOR) if there are not enough brokers.
    """
    usable = [b for b in brokers if b.is_fenced or not b.in_controlled_shutdown]
    reason = None
    if replication_factor <= 0:
        reason = "the replication factor must be positive."
    elif all(broker.is_fenced for broker in usable):
        reason = "All brokers are currently fenced."
    elif replication_factor > len(usable):
        reason = (
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {len(usable)} broker(s) are registered."
        )
    if reason is not None:
        raise ApiError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): {reason}",
        )
    racks = _RackList(usable, draw)
    return [racks.place(replication_factor) for _ in range(count)]


class _BrokerList:
    """Brokers in round-robin order.

    For each partition, the order starts one broker later.
    """

    def __init__(self, brokers: Iterable[int], draw: RandomBelow) -> None:
        self.brokers = sorted(brokers)
        self._offset = draw(len(self.brokers)) if self.brokers else 0
        self._index = 0
        self._partition_number = 0

    def next(self, partition_number: int) -> int | None:
        """Return the next broker for this partition, or None after the last broker."""
        if not self.brokers:
            return None
        if self._partition_number != partition_number:
            self._partition_number = partition_number
            self._index = 0
            self._offset = (self._offset + 1) % len(self.brokers)
        if self._index >= len(self.brokers):
            return None
        broker = self.brokers[(self._index + self._offset) % len(self.brokers)]
        self._index += 1
        return broker


class _Rack:
    def __init__(self, brokers: list[Broker], draw: RandomBelow) -> None:
        self.fenced = _BrokerList((b.broker_id for b in brokers if b.is_fenced), draw)
        self.unfenced = _BrokerList((b.broker_id for b in brokers if not b.is_fenced), draw)

    def next(self, partition_number: int) -> int | None:
        broker = self.unfenced.next(partition_number)
        return broker if broker is not None else self.fenced.next(partition_number)


class _RackList:
    def __init__(self, brokers: list[Broker], draw: RandomBelow) -> None:
        self._draw = draw
        names = sorted(
            {broker.rack for broker in brokers}, key=lambda name: (name is not None, name or "")
        )
        self._racks = [
            _Rack([broker for broker in brokers if broker.rack == name], draw) for name in names
        ]
        self._unfenced_count = sum(not broker.is_fenced for broker in brokers)
        self._partition_number = 0
        self._offset = draw(len(self._racks))

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Return the replicas of the next partition.

        The number of brokers must not be smaller than the replication factor.
        """
        if self._partition_number == self._unfenced_count and self._unfenced_count > 1:
            # Shuffle when each broker is the leader of one partition. Without the shuffle, the
            # replica lists would repeat.
            self._shuffle()
            self._partition_number = 0
        count = len(self._racks)
        start = self._offset % count
        self._offset = start + 1
        leader_rack, leader = self._next_leader(start)
        replicas = [leader]
        position = start
        while len(replicas) < replication_factor:
            if position == leader_rack:
                leader_rack = None  # Skip the leader's rack once.
            else:
                broker = self._racks[position].next(self._partition_number)
                if broker is not None:
                    replicas.append(broker)
            position = (position + 1) % count
        self._partition_number += 1
        return tuple(replicas)

    def _next_leader(self, start: int) -> tuple[int | None, int]:
        count = len(self._racks)
        for step in range(count):
            position = (start + step) % count
            broker = self._racks[position].unfenced.next(self._partition_number)
            if broker is not None:
                return position, broker
        raise AssertionError("Cannot place a partition, because all brokers are fenced.")

    def _shuffle(self) -> None:
        _shuffle(self._racks, self._draw)
        for rack in self._racks:
            _shuffle(rack.fenced.brokers, self._draw)
            _shuffle(rack.unfenced.brokers, self._draw)


def _shuffle(items: list[Any], draw: RandomBelow) -> None:
    for last in range(len(items) - 1, 0, -1):
        other = draw(last + 1)
        items[last], items[other] = items[other], items[last]
