"""Clients that are members of a group that uses the consumer protocol (KIP-848).

Members send heartbeats, take ownership of assigned partitions, release revoked partitions, and
commit offsets with their member epochs. They leave, crash, or rejoin as static members. Modeled on
Kafka's `ConsumerHeartbeatRequestManager` and `ConsumerMembershipManager`. Checked invariants:

- No two members own a partition at the same time.
- A commit from a previous owner is rejected.
- A committed offset is never lost and never decreases.

The coordinator assigns a partition to another member only after the owner has released the
partition, has left, or has sent no heartbeat within the session timeout. Therefore, two members can
own a partition only if the last successful heartbeat of the first owner is older than the session
timeout. A heartbeat to a broker that has been replaced as coordinator does not count as successful.
As in Kafka, such a broker accepts heartbeats until it receives metadata with another leader.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from integration.simulation.client import Client, Script, Sleep, Step, TopicPartition
from integration.simulation.coordinators import GROUP, Coordinator
from integration.simulation.group_member import CommitAttempts, GroupHistory
from integration.simulation.invariants import InvariantChecker, InvariantViolationError
from integration.simulation.messages import request
from integration.simulation.offset_reads import (
    OffsetRead,
    committed_offset,
    fetch_offset,
    was_replaced,
)

CONSUMER_GROUP_ID: Final = "g-consumer"
CONSUMER_SESSION_TIMEOUT_MS: Final = 1_500
CONSUMER_HEARTBEAT_MS: Final = 300
REBALANCE_TIMEOUT_MS: Final = 2_500
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2

_ABANDON: Final = frozenset(
    {
        ErrorCode.fenced_member_epoch,
        ErrorCode.unknown_member_id,
        ErrorCode.unreleased_instance_id,
        ErrorCode.group_id_not_found,
    }
)
"""Error codes of heartbeats after which a member abandons its partitions and joins again."""
_REJECTED: Final = frozenset(
    {ErrorCode.stale_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found}
)
"""Error codes of commits from members that must send a heartbeat first."""


@dataclass(frozen=True, slots=True)
class _Owned:
    """A partition that a member owns, and its owner epoch."""

    owner_epoch: int
    offset: int | None = None


class ConsumerGroupHistory(GroupHistory):
    """Records the assignments and commits of all members, and checks the invariants."""

    def __init__(self, checker: InvariantChecker, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(checker, partitions, group_id=CONSUMER_GROUP_ID)
        self.members: list[ConsumerGroupMember] = []

    def acquired(self, partition: TopicPartition, member: ConsumerGroupMember) -> int:
        """Record a new owner of a partition, and return the new owner epoch."""
        for other in self.members:
            if (
                other is not member
                and partition in other.owned
                and other.is_known_until_ms > member.now_ms
            ):
                raise InvariantViolationError(
                    f"group {CONSUMER_GROUP_ID}: {partition} is assigned to {member.name} although "
                    f"{other.name} owns it and has sent a heartbeat"
                )
        owner_epoch = self.generation_of(partition) + 1
        self.assigned(partition, owner_epoch, member.name, process=member.name)
        return owner_epoch


class ConsumerGroupMember:
    """A simulated process that is a member of the group."""

    def __init__(
        self,
        client: Client,
        history: ConsumerGroupHistory,
        *,
        topic: str,
        instance_id: str | None,
        until_ms: int,
        start_successor: Callable[[], None],
    ) -> None:
        """Create a member. `start_successor` starts the process that replaces this member."""
        self.is_done = False
        self.name = client.name
        self.owned: dict[TopicPartition, _Owned] = {}
        self.is_known_until_ms = 0
        """The time until which the coordinator does not remove this member."""
        self._client = client
        self._history = history
        self._topic = topic
        self._instance_id = instance_id
        self._until_ms = until_ms
        self._succeed = start_successor
        self._coordinator = Coordinator(client, CONSUMER_GROUP_ID, GROUP)
        self._member_id = str(uuid.UUID(int=client.random.getrandbits(128)))
        self._epoch = JOIN_EPOCH
        self._topic_id: uuid.UUID | None = None
        self._reports_all = True
        history.members.append(self)
        client.spawn(self._main(), after_ms=client.random.randint(0, 800))

    @property
    def now_ms(self) -> int:
        """The current virtual time in milliseconds."""
        return self._client.now_ms

    def _main(self) -> Script:
        client = self._client
        while client.now_ms < self._until_ms:
            if (yield from self._heartbeat()):
                yield from self._work()
            if client.random.random() < 0.12 and client.now_ms < self._until_ms:
                self.is_done = True
                self._succeed()
                if client.random.random() < 0.5:
                    client.stop()
                    return
                break
            yield Sleep(ms=client.random.randint(1, CONSUMER_HEARTBEAT_MS))
        yield from self._leave()
        self.is_done = True

    def _heartbeat(self) -> Step:
        """Send a heartbeat and return whether it succeeded. Apply the received assignment."""
        sent_ms, is_replaced = 0, False

        def sending(broker_id: int) -> None:
            nonlocal sent_ms, is_replaced
            sent_ms = self._client.now_ms
            is_replaced = was_replaced(self._history.checker, CONSUMER_GROUP_ID, broker_id)

        response, code = yield from self._coordinator.call(
            self._request(self._epoch), on_send=sending, attempts_max=1
        )
        if code is ErrorCode.none:
            if not is_replaced:
                self.is_known_until_ms = sent_ms + CONSUMER_SESSION_TIMEOUT_MS
            self._epoch = response.member_epoch
            # When a late response arrives, the coordinator may have removed the member.
            is_late = self._client.now_ms >= sent_ms + CONSUMER_SESSION_TIMEOUT_MS
            self._reports_all = is_late
            if response.assignment is not None and not is_late:
                self._reconcile(response.assignment)
            return True
        self._reports_all = True
        if response is not None and code not in _ABANDON:
            self._require("ConsumerGroupHeartbeat", code)
        if response is not None:
            self.owned.clear()
            self._epoch = JOIN_EPOCH
        return False

    def _request(self, epoch: int) -> Any:
        """Return a heartbeat request. Include all fields after an error and at random times."""
        fields: dict[str, Any] = {}
        if epoch == JOIN_EPOCH or self._reports_all or self._client.random.random() < 0.3:
            fields = {
                "rebalance_timeout": REBALANCE_TIMEOUT_MS,
                "subscribed_topic_names": [self._topic],
                "topic_partitions": self._reported(),
            }
        return request(
            "consumer_group_heartbeat",
            group_id=CONSUMER_GROUP_ID,
            member_id=self._member_id,
            instance_id=self._instance_id,
            member_epoch=epoch,
            **fields,
        )

    def _reported(self) -> list[dict[str, object]]:
        if not self.owned or self._topic_id is None:
            return []
        indexes = sorted(partition.partition for partition in self.owned)
        return [{"topic_id": self._topic_id, "partitions": indexes}]

    def _reconcile(self, assignment: Any) -> None:
        """Release revoked partitions, and take ownership of newly assigned partitions."""
        assigned = set()
        for topic in assignment.topic_partitions:
            self._topic_id = topic.topic_id
            assigned |= {TopicPartition(self._topic, index) for index in topic.partitions}
        for partition in [each for each in self.owned if each not in assigned]:
            del self.owned[partition]
            self._reports_all = True
        for partition in sorted(assigned - self.owned.keys()):
            self.owned[partition] = _Owned(self._history.acquired(partition, self))
            self._reports_all = True

    def _work(self) -> Step:
        """Commit offsets for the partitions that this member owns."""
        for partition, owned in list(self.owned.items()):
            offset = owned.offset
            if offset is None:
                read: OffsetRead = yield from fetch_offset(
                    self._coordinator, self._history.checker, CONSUMER_GROUP_ID, partition
                )
                self._require("OffsetFetch", read.error_code)
                self._history.fetched(partition, read, who=self.name)
                offset = read.offset
            for _ in range(self._client.random.randint(1, 3)):
                offset += 1
                if not (yield from self._commit(partition, owned.owner_epoch, offset)):
                    return
            self.owned[partition] = _Owned(owned.owner_epoch, offset)

    def _commit(self, partition: TopicPartition, owner_epoch: int, offset: int) -> Step:
        """Commit an offset and return whether the commit succeeded."""
        attempts = CommitAttempts(self._history, partition, offset)
        _, code = yield from self._coordinator.call(
            request(
                "offset_commit",
                version=9,
                group_id=CONSUMER_GROUP_ID,
                generation_id_or_member_epoch=self._epoch,
                member_id=self._member_id,
                group_instance_id=self._instance_id,
                topics=[committed_offset(partition, offset)],
            ),
            lambda response: response.topics[0].partitions[0].error_code,
            again_on=frozenset({ErrorCode.unknown_topic_or_partition}),
            on_send=attempts.add,
        )
        if code in _REJECTED:
            attempts.rejected()
            return False
        self._require("OffsetCommit", code)
        self._history.acknowledged(
            partition, offset, generation=owner_epoch, newest=attempts.newest
        )
        return True

    def _leave(self) -> Step:
        self.owned.clear()
        if self._epoch == JOIN_EPOCH:
            return
        epoch = LEAVE_EPOCH if self._instance_id is None else LEAVE_STATIC_EPOCH
        _, code = yield from self._coordinator.call(self._request(epoch))
        # A retry can arrive after the successor has joined.
        if code not in _ABANDON and code is not ErrorCode.fenced_instance_id:
            self._require("ConsumerGroupHeartbeat", code)

    def _require(self, what: str, code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            raise InvariantViolationError(
                f"group {CONSUMER_GROUP_ID}: {what} of {self.name} failed with {code.name}"
            )
