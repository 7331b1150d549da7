"""Clients that are members of a consumer group.

Purpose: members that join, get partitions, commit offsets of them, heartbeat, and leave or die at
times. Invariants that it checks: a partition has one member in a generation; a commit counts only
while its generation is the last; a committed offset never goes back or gets lost. What it must not
know: who coordinates in truth. Source: Kafka's `ConsumerCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from integration.simulation.client import Client, Pause, Script, Step, TopicPartition
from integration.simulation.coordinators import GROUP, Coordinator
from integration.simulation.invariants import Violation
from integration.simulation.messages import request

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


@dataclass(slots=True)
class _Owned:
    """What is known of one partition: who has it, since when, and what is committed for it."""

    generation: int = -1
    member_id: str = ""
    acknowledged: int = -1
    tried: set[int] = field(default_factory=set)


class GroupHistory:
    """What members were told, in the order in which they were told."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._owned = {partition: _Owned() for partition in partitions}

    def assigned(self, partition: TopicPartition, generation: int, member_id: str) -> None:
        """A member has got a partition in a generation."""
        owner = self._owners.setdefault((generation, partition), member_id)
        if owner != member_id:
            raise Violation(
                f"group {GROUP_ID}: {partition} is of {owner} and of {member_id} in generation "
                f"{generation}"
            )
        owned = self._owned[partition]
        if generation > owned.generation:
            owned.generation, owned.member_id = generation, member_id

    def generation_of(self, partition: TopicPartition) -> int:
        """The last generation in which anybody has got a partition."""
        return self._owned[partition].generation

    def least_offset(self, partition: TopicPartition) -> int:
        """What was acknowledged as committed."""
        return self._owned[partition].acknowledged

    def tries(self, partition: TopicPartition, offset: int) -> None:
        """A member is about to commit an offset."""
        self._owned[partition].tried.add(offset)

    def acknowledged(
        self, partition: TopicPartition, offset: int, *, generation: int, newest: int
    ) -> None:
        """A commit was acknowledged; `newest` was the last generation when it was sent."""
        if generation < newest:
            raise Violation(
                f"group {GROUP_ID}: a commit of generation {generation} for {partition} is "
                f"acknowledged, but it is in generation {newest}"
            )
        owned = self._owned[partition]
        owned.acknowledged = max(owned.acknowledged, offset)

    def fetched(self, partition: TopicPartition, offset: int, *, least: int, who: str) -> None:
        """A member was told what is committed; `least` was so when it asked."""
        if offset < least or (offset >= 0 and offset not in self._owned[partition].tried):
            raise Violation(
                f"group {GROUP_ID}: {who} is told offset {offset} of {partition}, where {least} "
                "was acknowledged"
            )


def offset_fetch(group_id: str, partition: TopicPartition) -> RequestPayload:
    """A request for a group's offset that waits for transactions (KIP-447)."""
    wanted = {"name": partition.topic, "partition_indexes": [partition.partition]}
    return request("offset_fetch", group_id=group_id, topics=[wanted], require_stable=True)


def committed_offset(partition: TopicPartition, offset: int) -> dict[str, object]:
    """One offset, as requests that commit it have it."""
    committed = {
        "partition_index": partition.partition,
        "committed_offset": offset,
        "committed_metadata": None,
    }
    return {"name": partition.topic, "partitions": [committed]}


class GroupMember:
    """One member process."""

    def __init__(
        self,
        client: Client,
        history: GroupHistory,
        *,
        partitions: Sequence[TopicPartition],
        until_ms: int,
        succeed: Callable[[], None],
    ) -> None:
        """`succeed` has another process take its place."""
        self.is_done = False
        self._client = client
        self._history = history
        self._partitions = tuple(partitions)
        self._until_ms = until_ms
        self._succeed = succeed
        self._coordinator = Coordinator(client, GROUP_ID, GROUP)
        self._member_id = ""
        self._generation = -1
        client.spawn(self._main(), after_ms=client.random.randint(0, 800))

    def _main(self) -> Script:
        client = self._client
        while client.now_ms < self._until_ms:
            mine = yield from self._join()
            if mine is not None:
                yield from self._work(mine)
            if client.random.random() < 0.15 and client.now_ms < self._until_ms:
                self.is_done = True
                self._succeed()
                if client.random.random() < 0.5:
                    client.stop()
                    return
                break
            yield Pause(ms=client.random.randint(1, 50))
        yield from self._leave()
        self.is_done = True

    def _join(self) -> Step:
        """The partitions that are this member's; None where it has to join again."""
        joining = request(
            "join_group",
            group_id=GROUP_ID,
            session_timeout=SESSION_TIMEOUT_MS,
            rebalance_timeout=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        joined, code = yield from self._coordinator.ask(joining, timeout_ms=6_000)
        if code is ErrorCode.member_id_required:
            self._member_id = joined.member_id
            return None
        if self._must_rejoin("JoinGroup", code):
            return None
        self._member_id, self._generation = joined.member_id, joined.generation_id
        synced, code = yield from self._coordinator.ask(
            request(
                "sync_group",
                group_id=GROUP_ID,
                generation_id=self._generation,
                member_id=self._member_id,
                assignments=self._assignments(joined),
            ),
            timeout_ms=6_000,
        )
        if self._must_rejoin("SyncGroup", code):
            return None
        mine = [self._partitions[index] for index in synced.assignment]
        for partition in mine:
            self._history.assigned(partition, self._generation, self._member_id)
        return mine

    def _assignments(self, joined: Any) -> list[dict[str, object]]:
        """What the leader assigns: an assignment is the indexes of partitions, a byte each."""
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
        """Commit offsets until there is to be another generation."""
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
            yield Pause(ms=self._client.random.randint(1, HEARTBEAT_MS))
            beat = request(
                "heartbeat",
                group_id=GROUP_ID,
                generation_id=self._generation,
                member_id=self._member_id,
            )
            _, code = yield from self._coordinator.ask(beat)
            if self._must_rejoin("Heartbeat", code):
                return
            if self._client.now_ms >= self._until_ms:
                return

    def _fetch(self, partition: TopicPartition) -> Step:
        least = self._history.least_offset(partition)
        response, code = yield from self._coordinator.ask(
            offset_fetch(GROUP_ID, partition),
            lambda response: response.error_code or response.topics[0].partitions[0].error_code,
        )
        if self._must_rejoin("OffsetFetch", code):
            return None
        offset: int = response.topics[0].partitions[0].committed_offset
        self._history.fetched(partition, offset, least=least, who=self._client.name)
        return offset

    def _commit(self, partition: TopicPartition, offset: int) -> Step:
        """Whether the offset is committed; not where there is to be another generation."""
        newest = self._history.generation_of(partition)
        self._history.tries(partition, offset)
        _, code = yield from self._coordinator.ask(
            request(
                "offset_commit",
                group_id=GROUP_ID,
                generation_id_or_member_epoch=self._generation,
                member_id=self._member_id,
                topics=[committed_offset(partition, offset)],
            ),
            lambda response: response.topics[0].partitions[0].error_code,
            again_on=frozenset({ErrorCode.unknown_topic_or_partition}),
        )
        if self._must_rejoin("OffsetCommit", code):
            return False
        self._history.acknowledged(partition, offset, generation=self._generation, newest=newest)
        return True

    def _leave(self) -> Step:
        if self._member_id:
            members = [{"member_id": self._member_id}]
            yield from self._coordinator.ask(
                request("leave_group", group_id=GROUP_ID, members=members)
            )

    def _must_rejoin(self, what: str, code: ErrorCode) -> bool:
        if code is ErrorCode.none:
            return False
        if code not in REJOIN:
            raise Violation(f"group {GROUP_ID}: {what} is refused with {code.name}")
        if code is ErrorCode.unknown_member_id:
            self._member_id = ""
        return True
