"""Tests of the choice of brokers, and of the cached metadata and coordinators."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, ProtocolError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.coordinators import CoordinatorKey
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.transport import Address, TransportError, connect
from tests.pyspark_kafka.wire.scripted import (
    ALL_VERSIONS,
    Peer,
    ScriptedBroker,
    ScriptedResponses,
    refusing_address,
)

T0 = TopicPartition("t", 0)
LONG_S = 20.0


def soon(seconds: float = LONG_S) -> float:
    return time.monotonic() + seconds


def router(*bootstrap: ScriptedBroker | str, **options: Any) -> closing[Router]:
    addresses = [b if isinstance(b, str) else b.address for b in bootstrap]
    clock = Clock(random=lambda: 0.0)  # the random number selects the first bootstrap server
    dialer = Dialer(client_id="tests", clock=clock)
    return closing(Router([Address.parse(a) for a in addresses], dialer, **options))


def cluster(
    *brokers: ScriptedBroker,
    leader_id: int = 1,
    leader_epoch: int = 5,
    error_code: int = 0,
) -> dict[str, Any]:
    """Return metadata of brokers 1, 2, and so on, and of topic `t` with one partition."""
    partition = {"partition_index": 0, "leader_id": leader_id, "leader_epoch": leader_epoch}
    return {
        "brokers": [
            {"node_id": i, "host": "127.0.0.1", "port": b.port, "rack": None}
            for i, b in enumerate(brokers, 1)
        ],
        "topics": [{"name": "t", "error_code": error_code, "partitions": [partition]}],
    }


@pytest.fixture
def dead() -> Iterator[str]:
    with refusing_address() as address:
        yield address


@pytest.fixture
def hanging() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Peer.hang) as broker:
        yield broker


def test_unreachable_bootstrap_servers_leave_time_for_a_reachable_one(
    dead: str, hanging: ScriptedBroker
) -> None:
    responses = ScriptedResponses(metadata=[{"topics": []}])
    with ScriptedBroker(responses) as good, router(dead, hanging, good) as one:
        one.refresh([], deadline=soon(1.0))
        assert responses.received == ["metadata"]
        one.close()
        one.refresh([], deadline=soon(1.0))  # the client attempts the reachable broker first
        assert hanging.connections == 1


def test_the_error_of_no_reachable_broker_has_each_reason(
    dead: str, hanging: ScriptedBroker
) -> None:
    with router(dead, hanging) as one, pytest.raises(BrokerUnreachableError) as caught:
        one.refresh([], deadline=soon(0.4))
    assert re.search(rf"{dead}\b.*Connection refused", caught.value.what)
    assert hanging.address in caught.value.what
    assert str(caught.value).count("'kafka.bootstrap.servers'") == 1


def test_a_connection_is_reused_until_the_broker_closes_it() -> None:
    def once(peer: Peer) -> None:
        peer.negotiate()
        peer.respond(peer.read(), "metadata")

    with ScriptedBroker(once, ScriptedResponses(metadata=[{}])) as broker, router(broker) as one:
        connection = one.any_connection(deadline=soon())
        assert one.any_connection(deadline=soon()) is connection
        one.refresh([], deadline=soon())
        deadline = soon()
        while connection.is_usable:  # until the client detects the end of the first script
            assert time.monotonic() < deadline
            time.sleep(0.01)
        one.refresh([], deadline=soon())
        assert broker.connections == 2


def test_metadata_is_cached_until_it_is_invalidated_or_old() -> None:
    responses = ScriptedResponses(metadata=[])
    with ScriptedBroker(responses) as broker, router(broker, metadata_age_s_max=3600.0) as one:
        responses.by_api["metadata"] = [cluster(broker)]
        for _ in range(3):
            one.topics(["t"], deadline=soon())
            assert one.leader(T0).leader_epoch == 5
        assert responses.count("metadata") == 1
        one.invalidate_topic("t")
        one.topics(["t"], deadline=soon())
        assert responses.count("metadata") == 2
    with ScriptedBroker(responses) as broker, router(broker, metadata_age_s_max=0.0) as one:
        for _ in range(2):
            one.topics(["t"], deadline=soon())
        assert responses.count("metadata") == 4


@pytest.mark.parametrize(
    ("fields", "partition", "code"),
    [
        ({"error_code": 3}, T0, ErrorCode.unknown_topic_or_partition),
        ({"error_code": 29}, T0, ErrorCode.topic_authorization_failed),
        ({"leader_id": -1}, T0, ErrorCode.leader_not_available),
        ({"leader_id": 9}, T0, ErrorCode.leader_not_available),
        ({}, TopicPartition("t", 1), ErrorCode.unknown_topic_or_partition),
        ({}, TopicPartition("u", 0), ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_partition_without_a_leader_is_an_error_and_refreshed(
    fields: dict[str, Any], partition: TopicPartition, code: ErrorCode
) -> None:
    responses = ScriptedResponses(metadata=[])
    with ScriptedBroker(responses) as broker, router(broker) as one:
        responses.by_api["metadata"] = [cluster(broker, **fields)]
        for count in (1, 2):
            one.topics([partition.topic], deadline=soon())
            with pytest.raises(ApiError) as caught:
                one.leader(partition)
            assert caught.value.code is code
            assert caught.value.fields == {
                "topic": partition.topic,
                "partition": partition.partition,
            }
            assert responses.count("metadata") == count


def test_the_leader_is_connected_at_its_advertised_address() -> None:
    first, second = ScriptedResponses(metadata=[]), ScriptedResponses(metadata=[{}])
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two, router(one) as found:
        first.by_api["metadata"] = [cluster(one, two, leader_id=2)]
        found.topics(["t"], deadline=soon())
        leader = found.leader(T0).broker
        connection = found.connection(leader, deadline=soon())
        assert connection.broker == f"broker 2 at 127.0.0.1:{two.port}"
        assert two.connections == 1


def test_a_leader_in_an_error_response_replaces_a_metadata_request() -> None:
    responses = ScriptedResponses(metadata=[])
    with ScriptedBroker(responses) as broker, router(broker) as one:
        later = cluster(broker)
        later["brokers"].append({"node_id": 8, "host": "elsewhere", "port": 1, "rack": None})
        responses.by_api["metadata"] = [cluster(broker), later]
        one.topics(["t"], deadline=soon())
        new = Broker(broker_id=8, address=Address("elsewhere", 1))
        one.update_leader(T0, leader_id=8, leader_epoch=6, endpoints=[new])
        one.topics(["t"], deadline=soon())
        assert one.leader(T0).broker == new
        assert responses.count("metadata") == 1
        one.update_leader(T0, leader_id=8, leader_epoch=6)  # not newer: refresh
        one.topics(["t"], deadline=soon())
        assert responses.count("metadata") == 2
        assert one.leader(T0).broker == new  # the response has an older leader epoch


def test_connections_to_removed_brokers_are_closed() -> None:
    first, second = ScriptedResponses(metadata=[]), ScriptedResponses(metadata=[{}])
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two, router(one) as found:
        first.by_api["metadata"] = [cluster(one, two, leader_id=2), cluster(one)]
        found.topics(["t"], deadline=soon())
        connection = found.connection(found.leader(T0).broker, deadline=soon())
        found.refresh(["t"], deadline=soon())
        assert not connection.is_usable


@pytest.mark.parametrize("version", [3, 4])
def test_a_coordinator_is_cached(version: int) -> None:
    found = {"node_id": 4, "host": "h", "port": 9, "error_message": None}
    fields = found if version < 4 else {"coordinators": [{"key": "g", **found}]}
    responses = ScriptedResponses(find_coordinator=[fields])

    def script(peer: Peer) -> None:
        peer.negotiate({**ALL_VERSIONS, 10: (0, version)})
        responses.serve(peer)

    with ScriptedBroker(script) as broker, router(broker) as one:
        expected = Broker(broker_id=4, address=Address("h", 9))
        for _ in range(2):
            assert one.coordinator(CoordinatorKey.group("g"), deadline=soon()) == expected
        assert responses.count("find_coordinator") == 1
        one.invalidate_coordinator(CoordinatorKey.group("g"))
        assert one.coordinator(CoordinatorKey.group("g"), deadline=soon()) == expected
        assert responses.count("find_coordinator") == 2


def test_a_missing_coordinator_is_an_error() -> None:
    fields = {"coordinators": [{"key": "g", "error_code": 15, "error_message": None}]}
    with (
        ScriptedBroker(ScriptedResponses(find_coordinator=[fields])) as broker,
        router(broker) as one,
    ):
        with pytest.raises(ApiError) as caught:
            one.coordinator(CoordinatorKey.group("g"), deadline=soon())
        assert caught.value.code is ErrorCode.coordinator_not_available


def test_a_coordinator_of_another_group_is_a_protocol_error() -> None:
    fields = {"coordinators": [{"key": "x", "error_message": None}]}
    with (
        ScriptedBroker(ScriptedResponses(find_coordinator=[fields])) as broker,
        router(broker) as one,
        pytest.raises(ProtocolError, match="'x'"),
    ):
        one.coordinator(CoordinatorKey.group("g"), deadline=soon())


def test_a_throttled_broker_is_avoided() -> None:
    first, second = ScriptedResponses(metadata=[]), ScriptedResponses(metadata=[{}])
    with ScriptedBroker(first) as one, ScriptedBroker(second) as two, router(one) as found:
        first.by_api["metadata"] = [{**cluster(one, two, leader_id=2), "throttle_time": 60_000}]
        found.topics(["t"], deadline=soon())
        found.connection(found.leader(T0).broker, deadline=soon())
        found.refresh([], deadline=soon(1.0))
        assert (first.count("metadata"), second.count("metadata")) == (1, 1)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h:9", Address("h", 9)),
        ("[::1]:9", Address("::1", 9)),
        ("10.0.0.1:65535", Address("10.0.0.1", 65_535)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


def test_an_unknown_host_name() -> None:
    with pytest.raises(TransportError):
        connect(Address("no-such-host.invalid", 9), 5.0)


@pytest.mark.parametrize("port", [-1, 70_000, 2**31 - 1, -(2**31)])
def test_an_invalid_port(port: int) -> None:
    with pytest.raises(TransportError):
        connect(Address("127.0.0.1", port), 0.5)


@pytest.mark.parametrize("host", ["a\0b", "x" * 300, "a..b", "\U0001f600", "[]", "%"])
def test_an_invalid_host(host: str) -> None:
    with pytest.raises(TransportError):
        connect(Address(host, 9), 5.0)


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch, dead: str) -> None:
    """On many machines `localhost` resolves to ::1 first, where brokers often do not listen."""
    from pyspark_kafka.wire import transport  # noqa: PLC0415

    lookup: Callable[..., Any] = transport._lookup
    refused = lookup(Address.parse(dead), 0)
    with ScriptedBroker(Peer.hang) as broker:
        good = lookup(Address.parse(broker.address), 0)
        monkeypatch.setattr(transport, "_lookup", lambda *_: [*refused, *good])
        connect(Address("two", 1), 5.0).close()
