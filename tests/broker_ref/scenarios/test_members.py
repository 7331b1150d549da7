"""Tests of misbehaving group members: other members continue, and committed offsets stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import request
from integration.simulation.cluster import host_of
from tests.broker_ref.node.clients import SentRequest
from tests.broker_ref.scenarios.three_brokers import BROKERS, TOPIC, ThreeBrokers

SESSION_MS = 6_000
REBALANCE_MS = 10_000


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A member of `group` that may send wrong requests."""

    cluster: ThreeBrokers
    coordinator: int
    group: str
    member_id: str = ""
    generation_id: int = -1

    def send_join(self, *, metadata: bytes = b"") -> SentRequest:
        return self.cluster.send(
            self.coordinator,
            request(
                "join_group", 9, group_id=self.group, member_id=self.member_id,
                session_timeout=SESSION_MS, rebalance_timeout=REBALANCE_MS,
                protocol_type="consumer", protocols=[{"name": "range", "metadata": metadata}],
            ),
        )  # fmt: skip

    def take(self, joined: SentRequest) -> Any:
        """Return the response to JoinGroup, and use its member id and generation from then on."""
        response = self.cluster.await_response(joined)
        if response.error_code in {ErrorCode.none, ErrorCode.member_id_required}:
            self.member_id, self.generation_id = response.member_id, response.generation_id
        return response

    def request_member_id(self) -> None:
        assert self.take(self.send_join()).error_code is ErrorCode.member_id_required

    def sync(self) -> SentRequest:
        """Send SyncGroup with an assignment of all partitions to this member."""
        everything = {"member_id": self.member_id, "assignment": b"all"}
        return self.cluster.send(
            self.coordinator,
            request(
                "sync_group", 5, group_id=self.group, generation_id=self.generation_id,
                member_id=self.member_id, protocol_type="consumer", protocol_name="range",
                assignments=[everything],
            ),
        )  # fmt: skip

    def become_stable(self) -> None:
        self.request_member_id()
        assert self.take(self.send_join()).error_code is ErrorCode.none
        assert self.cluster.await_response(self.sync()).error_code is ErrorCode.none

    def heartbeat(self) -> ErrorCode:
        response = self.cluster.send(
            self.coordinator,
            request(
                "heartbeat", 4, group_id=self.group, generation_id=self.generation_id,
                member_id=self.member_id,
            ),
        )  # fmt: skip
        code: ErrorCode = self.cluster.await_response(response).error_code
        return code

    def commit(self, offset: int, **wrong: Any) -> ErrorCode:
        """Commit as this member; `wrong` overrides fields of the request."""
        fields: dict[str, Any] = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation_id,
            "member_id": self.member_id,
        }
        partition = {"partition_index": 0, "committed_offset": offset}
        topics = [{"name": TOPIC, "partitions": [partition]}]
        sent = self.cluster.send(
            self.coordinator, request("offset_commit", 9, topics=topics, **(fields | wrong))
        )
        code: ErrorCode = self.cluster.await_response(sent).topics[0].partitions[0].error_code
        return code

    def committed(self) -> int:
        groups = [{"group_id": self.group, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]
        sent = self.cluster.send(self.coordinator, request("offset_fetch", 9, groups=groups))
        response = self.cluster.await_response(sent).groups[0]
        assert response.error_code is ErrorCode.none
        return int(response.topics[0].partitions[0].committed_offset)


class Groups:
    def __init__(self) -> None:
        self.cluster = ThreeBrokers(group_initial_rebalance_delay_ms=100)
        self.coordinator = -1
        self.cluster.run_until(self.find_coordinator)

    def member(self, group: str) -> Member:
        return Member(cluster=self.cluster, coordinator=self.coordinator, group=group)

    def find_coordinator(self) -> bool:
        find = request("find_coordinator", 4, key_type=0, coordinator_keys=["any"])
        sent = self.cluster.send(BROKERS[0], find)
        found = self.cluster.await_response(sent).coordinators[0]
        self.coordinator = int(found.node_id)
        return found.error_code is ErrorCode.none and self.coordinator in BROKERS


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_consumer_that_stops_polling_loses_its_partitions(groups: Groups) -> None:
    """The consumer neither rejoins nor sends heartbeats; the other member does not wait long."""
    idle, eager = groups.member("g"), groups.member("g")
    idle.become_stable()
    assert idle.commit(5) is ErrorCode.none
    eager.request_member_id()
    joined = eager.send_join()
    began_ms = groups.cluster.now_ms
    response = eager.take(joined)
    assert groups.cluster.now_ms - began_ms <= SESSION_MS
    assert [member.member_id for member in response.members] == [eager.member_id]
    assert groups.cluster.await_response(eager.sync()).error_code is ErrorCode.none
    assert idle.heartbeat() is ErrorCode.unknown_member_id
    assert idle.commit(99) is ErrorCode.unknown_member_id
    assert eager.committed() == 5


def test_consumer_that_heartbeats_but_never_rejoins_is_removed(groups: Groups) -> None:
    """The heartbeat thread runs, but the poll loop does not: the rebalance timeout applies."""
    stuck, eager = groups.member("g"), groups.member("g")
    stuck.become_stable()
    eager.request_member_id()
    joined = eager.send_join()
    began_ms = groups.cluster.now_ms
    while joined.is_open():
        assert stuck.heartbeat() is ErrorCode.rebalance_in_progress
        groups.cluster.advance(1_000)
        assert groups.cluster.now_ms - began_ms <= REBALANCE_MS + 1_000
    assert [each.member_id for each in eager.take(joined).members] == [eager.member_id]
    assert stuck.heartbeat() is ErrorCode.unknown_member_id


def test_member_that_joins_twice_is_one_member(groups: Groups) -> None:
    member, other = groups.member("g"), groups.member("g")
    member.become_stable()
    other.request_member_id()
    first = member.send_join(metadata=b"1")
    second = member.send_join(metadata=b"2")
    others = other.send_join()
    response = member.take(second)
    ids = [
        each.member_id for each in response.members or groups.cluster.await_response(others).members
    ]
    assert sorted(ids) == sorted([member.member_id, other.member_id])
    # As in Kafka, the first request gets no response, because the second replaces it.
    assert first.is_open()
    assert other.take(others).generation_id == member.generation_id


@pytest.mark.parametrize("generation_id", [-1, 0, 2, 2**31 - 1])
def test_wrong_generation_commits_nothing(groups: Groups, generation_id: int) -> None:
    member = groups.member("g")
    member.become_stable()
    assert member.commit(5) is ErrorCode.none
    generation_id_before = member.generation_id
    assert generation_id_before == 1
    member.generation_id = generation_id
    assert member.commit(99) is ErrorCode.illegal_generation
    assert member.heartbeat() is ErrorCode.illegal_generation
    assert groups.cluster.await_response(member.sync()).error_code is ErrorCode.illegal_generation
    assert member.committed() == 5
    member.generation_id = generation_id_before
    assert member.heartbeat() is ErrorCode.none


def test_member_of_one_group_commits_nothing_for_another(groups: Groups) -> None:
    victim, intruder = groups.member("victim"), groups.member("intruder")
    victim.become_stable()
    intruder.become_stable()
    assert victim.commit(5) is ErrorCode.none
    assert intruder.commit(99, group_id="victim") is ErrorCode.unknown_member_id
    # A commit without a member id is also rejected while the group has members.
    anonymous = {"member_id": "", "generation_id_or_member_epoch": -1}
    assert intruder.commit(99, group_id="victim", **anonymous) is ErrorCode.unknown_member_id
    assert (victim.committed(), intruder.committed()) == (5, -1)
    assert victim.heartbeat() is ErrorCode.none


def test_commits_survive_every_coordinator_in_turn(groups: Groups) -> None:
    member = groups.member("g")
    cluster = groups.cluster
    for offset in (5, 7, 9):
        assert member.commit(offset) is ErrorCode.none
        cluster.kill(host_of(groups.coordinator))
        cluster.start_broker(groups.coordinator)
        cluster.settle()
        cluster.run_until(groups.find_coordinator)
        member.coordinator = groups.coordinator
        assert member.committed() == offset
