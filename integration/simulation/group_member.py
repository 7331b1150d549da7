"""Clients that are members of a consumer group.

Members join, receive partitions, commit offsets, send heartbeats, and leave or crash. A static
member (KIP-345) keeps its partitions if another process with the same instance id replaces it. The
replaced process may continue to run. Modeled on Kafka's `ConsumerCoordinator`. Checked invariants:

- In each generation, a partition is assigned to one member.
- A commit succeeds only in the latest generation and from the latest process of a static member.
- A committed offset is never lost and never decreases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from integration.simulation.client import Client, Script, Sleep, Step, TopicPartition
from integration.simulation.coordinators import GROUP, Coordinator
from integration.simulation.invariants import InvariantChecker, InvariantViolationError
from integration.simulation.messages import request
from integration.simulation.offset_reads import (
    AcknowledgedOffsets,
    OffsetRead,
    committed_offset,
    fetch_offset,
)
from integration.simulation.offset_transactions import NOT_COMMITTED, OffsetTransactions

GROUP_ID: Final = "g"
SESSION_TIMEOUT_MS: Final = 1_500
REBALANCE_TIMEOUT_MS: Final = 2_500
HEARTBEAT_MS: Final = 300

REJOIN: Final = frozenset(
    {
        ErrorCode.rebalance_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.group_id_not_found,
        ErrorCode.inconsistent_group_protocol,
    }
)


class _FencedError(Exception):
    """Another process has replaced this static member."""


class Join(NamedTuple):
    """The times at which a process sent its last JoinGroup request and received the response."""

    sent_ms: int
    received_ms: int


_NO_JOIN: Final = Join(-1, -1)


@dataclass(slots=True)
class _Owned:
    """The last owner of a partition, its generation, and the offsets that members have committed.

    `process` is None if two processes joined at the same time. For each offset, `tried` contains
    the number of attempted commits that the coordinator did not reject.
    """

    acknowledged: AcknowledgedOffsets
    generation: int = -1
    process: str | None = None
    join: Join = _NO_JOIN
    tried: Counter[int] = field(default_factory=Counter)


class GroupHistory:
    """Records the responses that members have received, and checks the invariants."""

    def __init__(
        self,
        checker: InvariantChecker,
        partitions: Sequence[TopicPartition],
        *,
        group_id: str = GROUP_ID,
    ) -> None:
        self.checker = checker
        self.group_id = group_id
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._owned = {
            partition: _Owned(acknowledged=AcknowledgedOffsets(checker)) for partition in partitions
        }

    def assigned(
        self,
        partition: TopicPartition,
        generation: int,
        member: str,
        *,
        process: str,
        join: Join = _NO_JOIN,
    ) -> None:
        """Record that a process of a member owns a partition in a generation.

        If two processes join in a generation, the process that joined last owns the partition. The
        other process may receive its assignment later.

        Raises `InvariantViolationError` if another member owns the partition.
        """
        owner = self._owners.setdefault((generation, partition), member)
        if owner != member:
            raise InvariantViolationError(
                f"group {self.group_id}: {partition} is assigned to {owner} and to {member} in "
                f"generation {generation}"
            )
        owned = self._owned[partition]
        if generation < owned.generation:
            return
        if generation > owned.generation or join.sent_ms >= owned.join.received_ms:
            owned.generation, owned.process, owned.join = generation, process, join
        elif join.received_ms > owned.join.sent_ms:
            owned.process = None
            owned.join = Join(
                min(join.sent_ms, owned.join.sent_ms),
                max(join.received_ms, owned.join.received_ms),
            )

    def process_of(self, partition: TopicPartition) -> str | None:
        """Return the name of the process that owns the partition, or None if it is not known."""
        return self._owned[partition].process

    def generation_of(self, partition: TopicPartition) -> int:
        """Return the latest generation in which a member owned the partition."""
        return self._owned[partition].generation

    def tries(self, partition: TopicPartition, offset: int) -> None:
        """Record that a member will try to commit an offset."""
        self._owned[partition].tried[offset] += 1

    def rejected(self, partition: TopicPartition, offset: int) -> None:
        """Record that the coordinator rejected the only request of a commit."""
        self._owned[partition].tried[offset] -= 1

    def acknowledged(
        self, partition: TopicPartition, offset: int, *, generation: int, newest: int
    ) -> None:
        """Record an acknowledged commit and check its generation.

        `newest` was the latest generation when the commit was sent.
        """
        if generation < newest:
            raise InvariantViolationError(
                f"group {self.group_id}: a commit of generation {generation} for {partition} was "
                f"acknowledged although generation {newest} had started"
            )
        self._owned[partition].acknowledged.add(offset)

    def fetched(self, partition: TopicPartition, read: OffsetRead, *, who: str) -> None:
        """Check a fetched offset."""
        owned, offset = self._owned[partition], read.offset
        least = owned.acknowledged.highest_before(read.complete_to)
        if offset < least:
            raise InvariantViolationError(
                f"group {self.group_id}: {who} fetched offset {offset} of {partition}, but a "
                f"commit of offset {least} was acknowledged"
            )
        if offset >= 0 and owned.tried[offset] <= 0:
            raise InvariantViolationError(
                f"group {self.group_id}: {who} fetched offset {offset} of {partition}, but all "
                "commits of this offset were rejected"
            )


class CommitAttempts:
    """The requests of one offset commit. A request without a response may have succeeded.

    `newest` is the latest generation at the time of the last request. `process` is the owner of the
    partition at that time, or None if the owner is unknown.
    """

    def __init__(self, history: GroupHistory, partition: TopicPartition, offset: int) -> None:
        self.newest = -1
        self.process: str | None = None
        self._history = history
        self._partition = partition
        self._offset = offset
        self._count = 0
        history.tries(partition, offset)

    def add(self, broker_id: int) -> None:
        """Record that a request is sent."""
        del broker_id
        self._count += 1
        self.newest = self._history.generation_of(self._partition)
        self.process = self._history.process_of(self._partition)

    def rejected(self) -> None:
        """Record that the last request was rejected."""
        if self._count == 1:
            self._history.rejected(self._partition, self._offset)


class GroupMember:
    """A simulated process that is a member of the group."""

    def __init__(
        self,
        client: Client,
        history: GroupHistory,
        *,
        partitions: Sequence[TopicPartition],
        until_ms: int,
        start_successor: Callable[[], None],
        instance_id: str | None = None,
        transactions: OffsetTransactions | None = None,
    ) -> None:
        """Create a member. `start_successor` starts the process that replaces this member.

        With `transactions`, the member commits offsets in transactions.
        """
        self._transactions = transactions
        self._instance_id = instance_id
        self.is_done = False
        self._client = client
        self._history = history
        self._partitions = tuple(partitions)
        self._until_ms = until_ms
        self._succeed = start_successor
        self._coordinator = Coordinator(client, GROUP_ID, GROUP)
        self._member_id = ""
        self._generation = -1
        self._has_succeeded = False
        client.spawn(self._main(), after_ms=client.random.randint(0, 800))

    def _main(self) -> Script:
        try:
            yield from self._participate()
        except _FencedError:
            self.is_done = True

    def _participate(self) -> Script:
        client = self._client
        while client.now_ms < self._until_ms:
            mine = yield from self._join()
            if mine is not None:
                yield from self._work(mine)
            is_replaced = client.random.random() < 0.15 and not self._has_succeeded
            if is_replaced and client.now_ms < self._until_ms:
                self.is_done = self._has_succeeded = True
                self._succeed()
                if client.random.random() < 0.5:
                    client.stop()
                    return
                if self._instance_id is None:
                    break
            yield Sleep(ms=client.random.randint(1, 50))
        yield from self._leave()
        self.is_done = True

    def _join(self) -> Step:
        """Join the group. Return this member's partitions, or None if it must rejoin."""
        joining = request(
            "join_group",
            group_id=GROUP_ID,
            session_timeout=SESSION_TIMEOUT_MS,
            rebalance_timeout=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
            group_instance_id=self._instance_id,
        )
        sent_ms = self._client.now_ms
        joined, code = yield from self._coordinator.call(joining, timeout_ms=6_000)
        join = Join(sent_ms, self._client.now_ms)
        if code is ErrorCode.member_id_required:
            self._member_id = joined.member_id
            return None
        if self._must_rejoin("JoinGroup", code):
            return None
        self._member_id, self._generation = joined.member_id, joined.generation_id
        synced, code = yield from self._coordinator.call(
            request(
                "sync_group",
                group_id=GROUP_ID,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=self._instance_id,
                assignments=self._assignments(joined),
            ),
            timeout_ms=6_000,
        )
        if self._must_rejoin("SyncGroup", code):
            return None
        mine = [self._partitions[index] for index in synced.assignment]
        for partition in mine:
            self._history.assigned(
                partition,
                self._generation,
                self._instance_id or self._member_id,
                process=self._client.name,
                join=join,
            )
        return mine

    def _assignments(self, joined: Any) -> list[dict[str, object]]:
        """Return the assignment if this member is the group leader, otherwise an empty list.

        Each member's assignment contains the indexes of its partitions, one byte each.
        """
        if joined.leader != joined.member_id:
            return []
        members = sorted(member.member_id for member in joined.members)
        return [
            {
                "member_id": member_id,
                "assignment": bytes(range(place, len(self._partitions), len(members))),
            }
            for place, member_id in enumerate(members)
        ]

    def _work(self, mine: Sequence[TopicPartition]) -> Step:
        """Commit offsets until the next rebalance."""
        offsets: dict[TopicPartition, int] = {}
        for partition in mine:
            offset = yield from self._fetch(partition)
            if offset is None:
                return
            offsets[partition] = offset
        for _ in range(self._client.random.randint(2, 12)):
            for partition in mine:
                offsets[partition] += 1
                if not (yield from self._commit(partition, offsets[partition])):
                    return
            yield Sleep(ms=self._client.random.randint(1, HEARTBEAT_MS))
            beat = request(
                "heartbeat",
                group_id=GROUP_ID,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=self._instance_id,
            )
            _, code = yield from self._coordinator.call(beat)
            if self._must_rejoin("Heartbeat", code):
                return
            if self._client.now_ms >= self._until_ms:
                return

    def _fetch(self, partition: TopicPartition) -> Step:
        read: OffsetRead = yield from fetch_offset(
            self._coordinator, self._history.checker, GROUP_ID, partition
        )
        if self._must_rejoin("OffsetFetch", read.error_code):
            return None
        self._history.fetched(partition, read, who=self._client.name)
        return read.offset

    def _commit(self, partition: TopicPartition, offset: int) -> Step:
        """Commit an offset and return whether the commit succeeded."""
        attempts = CommitAttempts(self._history, partition, offset)
        code = yield from self._send_commit(committed_offset(partition, offset), attempts.add)
        if code is NOT_COMMITTED:
            return False
        if self._must_rejoin("OffsetCommit", code):
            attempts.rejected()
            return False
        self._history.acknowledged(
            partition, offset, generation=self._generation, newest=attempts.newest
        )
        if attempts.newest == self._generation and attempts.process not in (
            self._client.name,
            None,
        ):
            raise InvariantViolationError(
                f"group {GROUP_ID}: a commit of {self._client.name} for {partition} was "
                f"acknowledged although {attempts.process} had replaced it"
            )
        return True

    def _send_commit(self, offset: dict[str, object], on_send: Callable[[int], None]) -> Step:
        member: dict[str, Any] = {
            "member_id": self._member_id,
            "group_instance_id": self._instance_id,
        }
        if self._transactions is not None:
            return (
                yield from self._transactions.commit(
                    self._coordinator,
                    GROUP_ID,
                    offset,
                    member={**member, "generation_id": self._generation},
                    on_send=on_send,
                )
            )
        _, code = yield from self._coordinator.call(
            request(
                "offset_commit",
                group_id=GROUP_ID,
                generation_id_or_member_epoch=self._generation,
                topics=[offset],
                **member,
            ),
            lambda response: response.topics[0].partitions[0].error_code,
            again_on=frozenset({ErrorCode.unknown_topic_or_partition}),
            on_send=on_send,
        )
        return code

    def _leave(self) -> Step:
        if self._member_id:
            members = [{"member_id": self._member_id, "group_instance_id": self._instance_id}]
            yield from self._coordinator.call(
                request("leave_group", group_id=GROUP_ID, members=members)
            )

    def _must_rejoin(self, what: str, code: ErrorCode) -> bool:
        if code is ErrorCode.none:
            return False
        if code is ErrorCode.fenced_instance_id and self._instance_id is not None:
            raise _FencedError
        if code not in REJOIN:
            raise InvariantViolationError(f"group {GROUP_ID}: {what} failed with {code.name}")
        if code is ErrorCode.unknown_member_id:
            self._member_id = ""
        return True
