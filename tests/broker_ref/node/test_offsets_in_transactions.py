"""Tests of a group's transactional offsets on three brokers while its coordinator crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.faults import Match, Sender
from integration.raw import request
from integration.simulation.cluster import host_of
from tests.broker_ref.node.clients import Clients
from tests.broker_ref.virtual import VirtualCluster

BROKERS = (1, 2, 3)
GROUP, TRANSACTIONAL_ID = 0, 1
OFFSETS_TOPIC = "__consumer_offsets"
FETCH = 1
STEP_MS, STEPS_MAX = 50, 600
UNSTABLE = (-1, ErrorCode.unstable_offset_commit)


class Process:
    """A consumer of topic t that commits its offsets in transactions of version 2."""

    def __init__(self) -> None:
        self.cluster = VirtualCluster(
            *(
                BrokerConfig(
                    node_id=each,
                    broker_session_timeout_ms=3_000,
                    broker_heartbeat_interval_ms=500,
                    offsets_topic_num_partitions=3,
                    offsets_topic_replication_factor=3,
                    transaction_state_log_num_partitions=3,
                    transaction_state_log_replication_factor=3,
                )
                for each in BROKERS
            )
        )
        self.cluster.start_all()
        self.clients = Clients(self.cluster)
        self.clients.create_topic("t", 1, 2, 3)
        self.group = "g"
        self.group_broker = self.coordinator(self.group, GROUP)
        # The transaction coordinator must survive the crash of the group coordinator.
        self.transactional_id = next(
            name
            for name in map(str, range(50))
            if self.coordinator(name, TRANSACTIONAL_ID) != self.group_broker
        )
        self.producer_id, self.producer_epoch = -1, -1

    def send(self, broker_id: int, api: str, version: int, **fields: Any) -> Any:
        """Return the response, or None if the broker crashes meanwhile."""
        sent = self.clients.send(broker_id, request(api, version, **fields))
        return self.clients.outcome(sent)

    def until(self, found: Callable[[], Any]) -> Any:
        """Advance the time until `found` returns a result, and return the result."""
        for _ in range(STEPS_MAX):
            result = found()
            if result:
                return result
            self.cluster.advance(STEP_MS)
        raise AssertionError("no result within the time limit")

    def coordinator(self, key: str, key_type: int) -> int:
        def found() -> int | None:
            response = self.send(
                self.cluster.running[0],
                "find_coordinator",
                4,
                coordinator_keys=[key],
                key_type=key_type,
            ).coordinators[0]
            is_there = response.error_code is ErrorCode.none
            return (
                response.node_id if is_there and response.node_id in self.cluster.running else None
            )

        broker_id: int = self.until(found)
        return broker_id

    def begin(self) -> None:
        def initiated() -> bool:
            response = self.send(
                self.coordinator(self.transactional_id, TRANSACTIONAL_ID),
                "init_producer_id",
                5,
                transactional_id=self.transactional_id,
                transaction_timeout=60_000,
            )
            self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
            return response.error_code is ErrorCode.none

        self.until(initiated)

    def commit(self, offset: int) -> None:
        partition = {"partition_index": 0, "committed_offset": offset}

        def committed() -> bool:
            response = self.send(
                self.coordinator(self.group, GROUP),
                "txn_offset_commit",
                5,
                transactional_id=self.transactional_id,
                group_id=self.group,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                topics=[{"name": "t", "partitions": [partition]}],
            )
            return response.topics[0].partitions[0].error_code is ErrorCode.none

        self.until(committed)

    def end(self, *, commit: bool) -> None:
        """End the transaction; the coordinator responds before the markers are written."""
        response = self.send(
            self.coordinator(self.transactional_id, TRANSACTIONAL_ID),
            "end_txn",
            5,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )
        assert response.error_code is ErrorCode.none
        self.producer_epoch = response.producer_epoch

    def fetch_request(self, *, require_stable: bool = True) -> Any:
        topics = [{"name": "t", "partition_indexes": [0]}]
        groups = [{"group_id": self.group, "topics": topics}]
        return request("offset_fetch", 8, groups=groups, require_stable=require_stable)

    def fetch(self, *, require_stable: bool = True) -> tuple[int, ErrorCode] | None:
        """Return the group's offset, or None if its coordinator is not available."""
        sent = self.fetch_request(require_stable=require_stable)
        response = self.clients.call(self.coordinator(self.group, GROUP), sent).groups[0]
        if response.error_code is not ErrorCode.none:
            return None
        partition = response.topics[0].partitions[0]
        return partition.committed_offset, partition.error_code

    def fetch_stable(self) -> int:
        def stable() -> tuple[int, ErrorCode] | None:
            found = self.fetch()
            return None if found in {None, UNSTABLE} else found

        offset, error_code = self.until(stable)
        assert error_code is ErrorCode.none
        return int(offset)

    def end_offset(self, broker_id: int) -> int:
        """Return the log end offset of a replica of the group's partition."""
        broker = self.cluster.broker(broker_id).broker
        assert broker is not None
        index = broker.groups.partition_for(self.group)
        return broker.replicas.partition(OFFSETS_TOPIC, index).log.log_end_offset

    def crash_coordinator(self) -> None:
        self.cluster.kill(host_of(self.group_broker))
        self.until(lambda: self.coordinator(self.group, GROUP) != self.group_broker)

    def hold_replication(self) -> None:
        fetches = Match(api_keys=frozenset({FETCH}), node_id=self.group_broker, sender=Sender.NODE)
        rule = self.cluster.faults.hold(fetches)
        others = len(BROKERS) - 1
        self.until(lambda: len({held.sender_id for held in rule.requests}) == others)


@pytest.fixture
def process() -> Process:
    made = Process()
    made.begin()
    made.commit(3)
    made.end(commit=True)
    assert made.fetch_stable() == 3
    return made


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_applies_a_decision(process: Process, commit: bool) -> None:
    process.commit(5)
    process.crash_coordinator()
    assert process.until(process.fetch) == UNSTABLE
    assert process.fetch(require_stable=False) == (3, ErrorCode.none)
    process.end(commit=commit)
    assert process.fetch_stable() == (5 if commit else 3)
    process.commit(7)
    process.end(commit=True)
    assert process.fetch_stable() == 7


@pytest.mark.parametrize("commit", [True, False])
def test_an_unreplicated_marker_is_written_again(process: Process, commit: bool) -> None:
    """The effect of an unreplicated marker is neither applied nor returned."""
    process.commit(5)
    process.hold_replication()
    before = process.end_offset(process.group_broker)
    process.end(commit=commit)
    process.until(lambda: process.end_offset(process.group_broker) == before + 1)
    others = [each for each in BROKERS if each != process.group_broker]
    assert [process.end_offset(each) for each in others] == [before, before]
    assert process.fetch(require_stable=False) == (3, ErrorCode.none)
    sent = process.clients.send(process.group_broker, process.fetch_request())
    process.cluster.advance(1_000)
    assert sent.is_open()
    process.crash_coordinator()
    process.cluster.faults.clear()
    assert process.fetch_stable() == (5 if commit else 3)
    assert [process.end_offset(each) for each in others] == [before + 1, before + 1]


def test_a_stable_fetch_waits_for_the_writes_of_other_groups(process: Process) -> None:
    """A replaced coordinator with such writes must not return its old offsets."""
    broker = process.cluster.broker(process.group_broker).broker
    assert broker is not None
    index = broker.groups.partition_for(process.group)
    other = next(name for name in map(str, range(50)) if broker.groups.partition_for(name) == index)
    process.hold_replication()
    offset = {"partition_index": 0, "committed_offset": 1}
    topics = [{"name": "t", "partitions": [offset]}]
    process.clients.send(
        process.group_broker, request("offset_commit", 7, group_id=other, topics=topics)
    )
    expired = process.clients.call(process.group_broker, process.fetch_request())
    assert expired.groups[0].error_code is ErrorCode.not_coordinator
    waiting = process.clients.send(process.group_broker, process.fetch_request())
    process.cluster.advance(1_000)
    assert waiting.is_open()
    process.cluster.faults.clear()
    (found,) = process.clients.outcome(waiting).groups[0].topics[0].partitions
    assert (found.committed_offset, found.error_code) == (3, ErrorCode.none)
