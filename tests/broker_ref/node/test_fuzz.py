"""Tests of arbitrary bytes as requests.

Each frame has one effect and raises no exception, and other clients are still served.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v4.request import MetadataRequestTopic
from kio.schema.types import TopicName

from broker_ref.api import APIS
from broker_ref.events import CloseConnection, ConnectionClosed, Effect, NoResponse, SendFrame
from tests.broker_ref.node.driver import NodeDriver, closes, request_frame
from tests.broker_ref.node.requests import batch, create_topic, produce, produced, request
from tests.broker_ref.protocol.test_reader import entities

pytestmark = pytest.mark.slow

SERVED = [(api.key, version) for api in APIS.values() for version in api.versions]
MAKE_TOPIC = request(
    3,
    4,
    topics=(MetadataRequestTopic(name=TopicName("t")),),
    allow_auto_topic_creation=True,
)
RELAXED = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def driver() -> NodeDriver:
    node = NodeDriver()
    create_topic(node, "served")
    return node


def assert_survives(driver: NodeDriver, frame: bytes) -> None:
    """Check that there is one effect for the connection and that other clients are served."""
    # The examples use this topic, and some of them delete it.
    driver.call(MAKE_TOPIC)
    effects = of_connection(driver.send_bytes(frame, connection_id=9), 9)
    if not effects:
        driver.handle(ConnectionClosed(connection_id=9))
    assert len(effects) <= 1, effects
    assert (
        produced(driver.call(produce(batch("still here"), topic="served"))).error_code
        is ErrorCode.none
    )


def of_connection(effects: list[Effect], connection_id: int) -> list[Effect]:
    assert all(isinstance(e, SendFrame | NoResponse | CloseConnection) for e in effects)
    return [effect for effect in effects if effect.connection_id == connection_id]


@settings(RELAXED, max_examples=300)
@given(frame=st.binary(max_size=200))
def test_random_bytes(driver: NodeDriver, frame: bytes) -> None:
    assert_survives(driver, frame)


@settings(RELAXED, max_examples=300)
@given(target=st.sampled_from(SERVED), body=st.binary(max_size=200))
def test_random_bodies_of_served_requests(
    driver: NodeDriver, target: tuple[int, int], body: bytes
) -> None:
    header = struct.pack(">hhih", *target, 1, -1)
    flexible = load_request_schema(*target).__flexible__
    assert_survives(driver, header + (b"\x00" if flexible else b"") + body)


def mutations(frame: bytes) -> st.SearchStrategy[bytes]:
    """Draw frames with changed, removed or inserted bytes after API key and version."""
    positions = st.integers(4, max(4, len(frame)))

    def change(position: int, length: int, data: bytes) -> bytes:
        return frame[:position] + data + frame[position + length :]

    return st.builds(change, positions, st.integers(0, 4), st.binary(max_size=6))


@pytest.mark.parametrize("target", SERVED, ids=lambda target: f"k{target[0]:02}v{target[1]}")
@settings(RELAXED, max_examples=8)
@given(data=st.data())
def test_valid_and_mutated_requests(
    driver: NodeDriver, target: tuple[int, int], data: st.DataObject
) -> None:
    schema: Any = load_request_schema(*target)
    frame = request_frame(data.draw(entities(schema)))
    assert_survives(driver, frame)
    assert_survives(driver, data.draw(mutations(frame)))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "byte 0"),
        (b"\x00", "byte 1"),
        (struct.pack(">hhi", 999, 0, 1), "999"),
        (struct.pack(">hhi", -1, 0, 1), "-1"),
        (struct.pack(">hhi", 3, 99, 1), "0 to 13"),
        (struct.pack(">hhi", 0, 0, 1), "3 to 13"),
        (struct.pack(">hhih", 3, 1, 1, -1), "MetadataRequest.topics"),
        (struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xff", "UTF-8"),
        (struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff", "2147483647"),
    ],
)
def test_invalid_frames_close_the_connection(driver: NodeDriver, frame: bytes, reason: str) -> None:
    assert reason in closes(driver.send_bytes(frame))
