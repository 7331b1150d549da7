"""Tests of FindCoordinator, compared with kio's encoding, also with several keys."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration import raw
from pyspark_kafka.errors import BrokerUnreachableError, ProtocolError
from pyspark_kafka.wire.coordinators import (
    FIRST_OF_MANY,
    CoordinatorKey,
    CoordinatorKind,
    FindResponse,
    find_coordinators_request,
)
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.router import ApiError
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.pyspark_kafka.wire.messages import entity_bytes
from tests.pyspark_kafka.wire.scripted import ALL_VERSIONS, Peer, ScriptedBroker, ScriptedResponses
from tests.pyspark_kafka.wire.test_router import router, soon

SUPPORTED = SUPPORTED_VERSIONS[Api.FIND_COORDINATOR]
VERSIONS = range(SUPPORTED.first, SUPPORTED.last + 1)
OF_MANY = range(FIRST_OF_MANY, SUPPORTED.last + 1)
TRANSACTION = CoordinatorKind.TRANSACTION


def read(version: int, names: list[str], **fields: Any) -> FindResponse:
    data = entity_bytes(raw.response("find_coordinator", version, throttle_time=9, **fields))
    reader = Reader(memoryview(data))
    found = find_coordinators_request(version, TRANSACTION, names).read(reader)
    reader.end("the response")
    return found


def coordinator(name: str, error_code: int = 0, **fields: Any) -> dict[str, Any]:
    found = {"node_id": 4, "host": "h", "port": 9, "error_message": "well"}
    return {"key": name, "error_code": error_code, **found, **fields}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_equals_kios(version: int) -> None:
    names = ["x", "ü"] if version >= FIRST_OF_MANY else ["ü"]
    keys: dict[str, Any] = {"coordinator_keys": names} if len(names) > 1 else {"key": names[0]}
    expected = raw.request("find_coordinator", version, key_type=1, **keys)
    (body,) = find_coordinators_request(version, TRANSACTION, names).body
    assert bytes(body) == entity_bytes(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_of_kio_is_read(version: int) -> None:
    fields = coordinator("x")
    del fields["key"]
    found = read(version, ["x"], **fields) if version < FIRST_OF_MANY else None
    found = found or read(version, ["x"], coordinators=[coordinator("x")])
    assert found.throttle_ms == 9
    broker = Broker(broker_id=4, address=Address("h", 9))
    assert found.found == {"x": (ErrorCode.none, broker)}


@pytest.mark.parametrize("version", OF_MANY)
def test_a_missing_coordinator(version: int) -> None:
    nobody = coordinator("y", 15, node_id=-1, host="", port=-1)
    found = read(version, ["x", "y"], coordinators=[nobody, coordinator("x")]).found
    assert found["y"] == (ErrorCode.coordinator_not_available, None)
    assert found["x"].broker is not None


@pytest.mark.parametrize("version", OF_MANY)
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x", "z"], "'z'"),
        (["x", "x"], "'x'"),
        (["x"], "'y'"),
    ],
)
def test_a_response_with_other_keys_is_malformed(
    version: int, names: list[str], expected: str
) -> None:
    with pytest.raises(MalformedResponseError, match=expected):
        read(version, ["x", "y"], coordinators=[coordinator(name) for name in names])


def test_groups_and_transactional_ids_have_different_coordinators() -> None:
    ports = {"group": 1, "transaction": 2}
    found = [{"coordinators": [coordinator("x", port=port)]} for port in ports.values()]
    responses = ScriptedResponses(find_coordinator=found)
    with ScriptedBroker(responses) as broker, router(broker) as one:
        for _ in range(2):
            group = one.coordinator(CoordinatorKey.group("x"), deadline=soon())
            transaction = one.coordinator(CoordinatorKey.transaction("x"), deadline=soon())
            assert (group.address.port, transaction.address.port) == (1, 2)
        assert responses.count("find_coordinator") == 2


def test_unknown_coordinators_are_looked_up_in_one_request() -> None:
    responses = ScriptedResponses(
        find_coordinator=[
            {"coordinators": [coordinator("x"), coordinator("y", 15)]},
            {"coordinators": [coordinator("z"), coordinator("y")]},
        ]
    )
    with ScriptedBroker(responses) as broker, router(broker) as one:
        first = one.coordinators(TRANSACTION, ["x", "y"], deadline=soon())
        refused = first["y"]
        assert isinstance(refused, ApiError)
        assert refused.code is ErrorCode.coordinator_not_available
        assert refused.fields == {"transactional_id": "y"}
        second = one.coordinators(TRANSACTION, ["x", "y", "z"], deadline=soon())
        assert set(second.values()) == {first["x"]}
        one.coordinators(TRANSACTION, ["x", "y", "z"], deadline=soon())
        assert responses.count("find_coordinator") == 2


def test_an_old_broker_gets_a_request_for_each_key() -> None:
    fields = coordinator("x")
    del fields["key"]
    responses = ScriptedResponses(find_coordinator=[fields, {**fields, "port": 10}])

    def script(peer: Peer) -> None:
        peer.negotiate({**ALL_VERSIONS, 10: (0, 3)})
        responses.serve(peer)

    with ScriptedBroker(script) as broker, router(broker) as one:
        found = one.coordinators(TRANSACTION, ["x", "y"], deadline=soon())
        ports = [b.address.port for b in found.values() if isinstance(b, Broker)]
        assert ports == [9, 10]


def test_a_response_about_another_id_is_a_protocol_error() -> None:
    responses = ScriptedResponses(find_coordinator=[{"coordinators": [coordinator("y")]}])
    with ScriptedBroker(responses) as broker, router(broker) as one:
        with pytest.raises(ProtocolError, match="'y'"):
            one.coordinators(TRANSACTION, ["x"], deadline=soon())
        with pytest.raises((ProtocolError, BrokerUnreachableError)):
            one.coordinator(CoordinatorKey.transaction("x"), deadline=soon())
