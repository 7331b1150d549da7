"""Tests of preferred read replicas, fetches from replicas, and limits of a new leader."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.broker_configs import RACK_AWARE_REPLICA_SELECTOR
from broker_ref.config import BrokerConfig, InvalidBrokerConfigError
from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.log.log_dir import DiskSpace, LogDir
from broker_ref.replication.partition import Partition
from broker_ref.replication.remote_replica import RemoteReplica
from broker_ref.replication.replica_selector import ReplicaView, preferred_read_replica
from integration.raw import request
from tests.broker_ref.node.driver import NodeDriver, only_response
from tests.broker_ref.node.requests import batch, create_topic, fetched, produce

NEAR, FAR = "near", "far"


def view(broker_id: int, *, end: int = 10, caught_up_ms: int = 0, rack: str | None = NEAR) -> Any:
    return ReplicaView(
        broker_id=broker_id,
        log_start_offset=2,
        log_end_offset=end,
        caught_up_ms=caught_up_ms,
        rack=rack,
    )


@pytest.mark.parametrize(
    ("followers", "leader_rack", "offset", "expected"),
    [
        pytest.param([view(2)], FAR, 5, 2, id="in the client's rack"),
        pytest.param([view(2)], NEAR, 5, None, id="the leader is in that rack"),
        pytest.param([view(2, rack=FAR)], FAR, 5, None, id="none is near"),
        pytest.param([view(2, rack=None)], None, 5, None, id="nobody knows"),
        pytest.param([view(2)], FAR, 11, None, id="beyond its end"),
        pytest.param([view(2)], FAR, 1, None, id="before its start"),
        pytest.param([view(2), view(3, end=11)], FAR, 5, 3, id="the furthest"),
        pytest.param([view(2, caught_up_ms=7), view(3)], FAR, 5, 2, id="caught up last"),
        pytest.param([view(3), view(2)], FAR, 5, 3, id="of equals one"),
    ],
)
def test_the_replica_to_read_from(
    followers: list[ReplicaView], leader_rack: str | None, offset: int, expected: int | None
) -> None:
    found = preferred_read_replica(
        followers, leader_rack=leader_rack, client_rack=NEAR, fetch_offset=offset
    )
    assert found == expected


def test_the_selector_is_kafkas_or_none() -> None:
    configs = {"replica.selector.class": RACK_AWARE_REPLICA_SELECTOR}
    assert BrokerConfig.from_mapping(configs).replica_selector_class == RACK_AWARE_REPLICA_SELECTOR
    with pytest.raises(InvalidBrokerConfigError, match=r"replica\.selector\.class"):
        BrokerConfig.from_mapping({"replica.selector.class": "mine"})


def fetch_from(offset: int = 0, *, rack: str = NEAR, version: int = 12, **fields: Any) -> Any:
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    if version >= 11:
        fields["rack_id"] = rack
    return request(
        "fetch",
        version,
        replica_id=-1,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[{"topic": "t", "partitions": [wanted]}],
        **fields,
    )


@pytest.fixture
def racks(monkeypatch: pytest.MonkeyPatch) -> NodeDriver:
    """Return a leader in one rack; broker 2 in the other rack has both records."""
    driver = NodeDriver(BrokerConfig(rack=FAR, replica_selector_class=RACK_AWARE_REPLICA_SELECTOR))
    create_topic(driver, "t")
    driver.call(produce(batch("a", "b")))
    brokers = driver.broker.metadata.brokers
    brokers[2] = dataclasses.replace(brokers[1], broker_id=2, rack=NEAR)
    partition = driver.broker.replicas.partition("t", 0)
    _set_metadata(partition, monkeypatch, isr=(1, 2))
    follower = RemoteReplica(broker_id=2, log_start_offset=0, log_end_offset=2)
    monkeypatch.setattr(
        Partition, "remote_replica", lambda _self, replica: follower if replica == 2 else None
    )
    return driver


def _set_metadata(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> PartitionMetadata:
    changed = dataclasses.replace(partition.metadata, **changes)
    monkeypatch.setattr(partition, "metadata", changed)
    return changed


def test_a_consumer_is_redirected_to_a_follower_in_its_rack(racks: NodeDriver) -> None:
    (response,) = fetched(racks.call(fetch_from(max_wait=500, session_id=0, session_epoch=-1)))
    assert (response.error_code, response.preferred_read_replica) == (ErrorCode.none, 2)
    assert (response.records, response.high_watermark) == (b"", 2)


@pytest.mark.parametrize(
    "options", [{"rack": FAR}, {"rack": ""}, {"version": 10}], ids=["far", "unknown", "old"]
)
def test_other_consumers_are_not_redirected(racks: NodeDriver, options: dict[str, Any]) -> None:
    (response,) = fetched(racks.call(fetch_from(**options)))
    assert getattr(response, "preferred_read_replica", -1) == -1
    assert response.records


def test_a_session_repeats_the_preferred_replica(racks: NodeDriver) -> None:
    session_id = racks.call(fetch_from(session_id=0, session_epoch=0)).session_id
    for epoch in (1, 2):
        waiting = request(
            "fetch", 12, replica_id=-1, rack_id=NEAR, session_id=session_id, session_epoch=epoch,
            max_wait=500, min_bytes=1, max_bytes=1 << 20,
        )  # fmt: skip
        (response,) = fetched(racks.call(waiting))
        assert response.preferred_read_replica == 2


def test_a_follower_serves_consumers_up_to_its_own_high_watermark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = NodeDriver()
    create_topic(driver, "t")
    for _ in range(2):
        driver.call(produce(batch("a")))

    def not_leading(self: Partition, epoch: int) -> None:
        raise AssertionError("the fetch requires the leader")

    monkeypatch.setattr(Partition, "check_leader", not_leading)
    monkeypatch.setattr(Partition, "is_leader", False)
    monkeypatch.setattr(Partition, "high_watermark", 1)
    (response,) = fetched(driver.call(fetch_from()))
    assert (response.high_watermark, len(response.records)) == (1, len(batch("a")))
    # A fetch beyond the last visible offset gets a response immediately.
    (beyond,) = fetched(only_response(fetch_from(2), driver.send(fetch_from(2, max_wait=500))))
    assert (beyond.error_code, beyond.records) == (ErrorCode.none, b"")


def look_up(driver: NodeDriver, timestamp: int, *, replica_id: int = -1, version: int = 9) -> Any:
    partition = {"partition_index": 0, "timestamp": timestamp}
    response = driver.call(
        request(
            "list_offsets",
            version,
            replica_id=replica_id,
            topics=[{"name": "t", "partitions": [partition]}],
        )
    )
    return response.topics[0].partitions[0]


@pytest.fixture
def elected(monkeypatch: pytest.MonkeyPatch) -> NodeDriver:
    """Return a leader whose epoch starts at offset 2 and that knows that offset 1 is committed."""
    driver = NodeDriver()
    create_topic(driver, "t")
    driver.call(produce(batch("a", "b")))
    driver.restart()
    driver.call(produce(batch("c")))
    monkeypatch.setattr(Partition, "high_watermark", 1)
    return driver


@pytest.mark.parametrize("timestamp", [-1, 1 << 60])
def test_a_new_leader_does_not_know_the_latest_offset(elected: NodeDriver, timestamp: int) -> None:
    response = look_up(elected, timestamp)
    assert (response.error_code, response.offset) == (ErrorCode.offset_not_available, -1)
    old = look_up(elected, timestamp, version=4)
    assert old.error_code is ErrorCode.leader_not_available


def test_other_requests_to_a_new_leader_succeed(elected: NodeDriver) -> None:
    for timestamp, offset in ((-2, 0), (-4, 0), (0, 0), (-5, -1), (-6, -1)):
        response = look_up(elected, timestamp, version=11)
        assert (response.error_code, response.offset) == (ErrorCode.none, offset), timestamp


@pytest.mark.parametrize("replica_id", [0, 7, -2])
def test_replicas_and_debuggers_see_the_log_end(elected: NodeDriver, replica_id: int) -> None:
    response = look_up(elected, -1, replica_id=replica_id)
    assert (response.error_code, response.offset) == (ErrorCode.none, 3)


def test_epochs_end_where_the_next_begins(elected: NodeDriver) -> None:
    latest = elected.broker.replicas.partition("t", 0).leader_epoch
    found = []
    for epoch in (0, latest):
        requested: Any = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": latest}
        response = elected.call(
            request(
                "offset_for_leader_epoch",
                4,
                replica_id=2,
                topics=[{"topic": "t", "partitions": [requested]}],
            )
        )
        (answer,) = response.topics[0].partitions
        found.append((answer.leader_epoch, answer.end_offset))
    assert found == [(0, 2), (latest, 3)]


def test_the_lag_and_the_volume_in_log_dirs(monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = LogDir(path="/data", space=lambda: DiskSpace(total_bytes=9, usable_bytes=4))
    driver = NodeDriver(log_dir=log_dir)
    create_topic(driver, "t")
    driver.call(produce(batch("a")))
    monkeypatch.setattr(Partition, "high_watermark", 5)
    (result,) = driver.call(request("describe_log_dirs", 4, topics=None)).results
    assert (result.log_dir, result.total_bytes, result.usable_bytes) == ("/data", 9, 4)
    (described,) = result.topics[0].partitions
    assert (described.partition_size, described.offset_lag) == (len(batch("a")), 4)
