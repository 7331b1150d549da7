"""Classic members of groups that also have members with the consumer protocol (KIP-848).

A member rejoins whenever a heartbeat requires it, as a real consumer does. It then owns the
partitions of its last assignment (a cooperative consumer) or none (an eager consumer).
"""

from __future__ import annotations

import struct
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.consumer_members import ConsumerMember, is_stable
from tests.conformance.eventually import eventually
from tests.conformance.members import GroupMember

REJOIN = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation})


def embedded_partitions(topic: str, *partitions: int) -> bytes:
    """Encode the partitions of one topic, as in assignments and subscriptions."""
    if not partitions:
        return struct.pack(">i", 0)
    name = topic.encode()
    numbers = struct.pack(f">{len(partitions)}i", *sorted(partitions))
    return struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", len(partitions)) + numbers


def subscription(topic: str, *owned: int) -> bytes:
    """Encode a subscription (ConsumerProtocolSubscription version 1)."""
    name = topic.encode()
    topics = struct.pack(">ih", 1, len(name)) + name
    return b"\x00\x01" + topics + b"\xff\xff\xff\xff" + embedded_partitions(topic, *owned)


def assignment(topic: str, *partitions: int, user_data: bytes | None = None) -> bytes:
    """Encode an assignment (ConsumerProtocolAssignment version 1)."""
    data = b"\xff\xff\xff\xff" if user_data is None else struct.pack(">i", len(user_data))
    return b"\x00\x01" + embedded_partitions(topic, *partitions) + data + (user_data or b"")


def partitions_of(data: bytes, topic: str) -> set[int]:
    """Return the partitions of an encoded assignment that contains at most this topic."""
    version, topics = struct.unpack_from(">hi", data)
    assert (version, topics) in {(1, 0), (1, 1)}, data
    if not topics:
        return set()
    start = 6 + 2 + len(topic.encode())
    assert data[8:start] == topic.encode()
    (count,) = struct.unpack_from(">i", data, start)
    return set(struct.unpack_from(f">{count}i", data, start + 4))


class ClassicMember(GroupMember):
    """A member that uses the classic protocol and subscribes to one topic."""

    def __init__(self, raw: RawConnection, group: str, topic: str, **options: Any) -> None:
        """Create a member. With `is_eager=True`, it owns nothing when it rejoins."""
        self.is_eager = options.pop("is_eager", False)
        super().__init__(raw.address, group, **options)
        self.topic = topic
        self.owned: set[int] = set()
        self._subscribe()

    def connect_to(self, raw: RawConnection) -> None:
        """Use the broker of `raw` from now on."""
        self.raw.close()
        self.raw = RawConnection(raw.address)

    def _subscribe(self) -> None:
        owned = () if self.is_eager else self.owned
        self.protocols = dict.fromkeys(self.protocols, subscription(self.topic, *owned))

    def step(self) -> None:
        """Send a heartbeat, and rejoin if necessary."""
        code = self.heartbeat()
        if code in REJOIN:
            self.rejoin()
        else:
            assert code == ErrorCode.none

    def rejoin(self) -> Any:
        """Join a consumer group again, and take the new assignment. Return the last response."""
        self._subscribe()
        joined = self.join()
        assert (joined.error_code, joined.leader) == (ErrorCode.none, ""), joined
        synced = self.sync()
        if synced.error_code == ErrorCode.none:
            self.owned = partitions_of(synced.assignment, self.topic)
        else:
            assert synced.error_code in REJOIN
        return synced


def settle(*members: ClassicMember | ConsumerMember) -> None:
    """Let each member send heartbeats until all have their target assignments."""

    def settled() -> bool:
        for member in members:
            if isinstance(member, ClassicMember):
                member.step()
            else:
                member.heartbeat()
        return is_stable(members[0].raw, members[0].group)

    eventually(settled)
