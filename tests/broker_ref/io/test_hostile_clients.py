"""Tests of a broker with hostile clients.

The broker closes their connections or answers as Kafka does, and still serves other clients.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest

from broker_ref.io.cluster import Cluster
from broker_ref.io.process import BrokerProcess
from integration.raw import RawConnection
from tests.broker_ref.io.scripted import framed, is_closed, receive_frame
from tests.conformance.groups import await_coordinator

MIB = 1024 * 1024
TIMEOUT_SECONDS = 20.0

API_VERSIONS = 18
METADATA = 3
UNSUPPORTED_VERSION = 35


def header(api_key: int, version: int, correlation_id: int = 7) -> bytes:
    """Return a request header of version 1 with client id `raw`."""
    return struct.pack(">hhih", api_key, version, correlation_id, 3) + b"raw"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_topic("served")
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[socket.socket]:
    with connect(cluster.bootstrap_servers) as connected:
        yield connected


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_SECONDS)


def others_are_served(address: str) -> bool:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "log_level": 2, "acks": "all"}
    )
    producer.produce("served", b"value", on_delivery=lambda e, _: failures.append(e and str(e)))
    return producer.flush(TIMEOUT_SECONDS) == 0 and failures == [None]


MALFORMED = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\x00", id="one-byte"),
    pytest.param(b"\x00\x03\x00\x01", id="half-a-header"),
    pytest.param(header(METADATA, 1), id="no-body"),
    pytest.param(header(METADATA, 1) + struct.pack(">i", 2**31 - 1), id="array-of-2-gi"),
    pytest.param(header(METADATA, 1) + struct.pack(">ih", 1, 500) + b"short", id="short-string"),
    pytest.param(struct.pack(">hhih", METADATA, 1, 7, 30_000), id="client-id-beyond-the-end"),
    pytest.param(struct.pack(">hhih", METADATA, 1, 7, 2) + b"\xff\xfe", id="client-id-not-utf8"),
    pytest.param(header(9999, 0), id="unknown-api-key"),
    pytest.param(header(-1, 0), id="negative-api-key"),
    pytest.param(header(METADATA, 9999), id="unknown-version"),
    pytest.param(header(METADATA, -1), id="negative-version"),
    pytest.param(b"\xff" * 2000, id="ones"),
    pytest.param(bytes(200_000), id="zeros"),
]


@pytest.mark.parametrize("frame", MALFORMED)
def test_an_invalid_frame_closes_its_connection_only(
    cluster: Cluster, client: socket.socket, frame: bytes
) -> None:
    client.sendall(framed(frame))
    assert is_closed(client)
    assert others_are_served(cluster.bootstrap_servers)


TOPICS = [
    {"name": "served", "partition_indexes": [0, 0]},
    {"name": "served", "partition_indexes": [0]},
]
GROUPS = [
    {"group_id": "g", "topics": TOPICS, "member_id": None, "member_epoch": epoch}
    for epoch in (-1, 0)
]
TOPICS_OF_METADATA = [{"name": "served", "topic_id": UUID(int=number)} for number in (0, 7)]
CONFIGS = [
    {"resource_type": 2, "resource_name": "served", "configuration_keys": ["retention.ms"] * count}
    for count in (1, 2)
]


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("describe_groups", 5, {"groups": ["g", "g"], "include_authorized_operations": False}),
        (
            "consumer_group_describe",
            1,
            {"group_ids": ["g", "g"], "include_authorized_operations": False},
        ),
        ("describe_transactions", 0, {"transactional_ids": ["x", "x"]}),
        ("describe_producers", 0, {"topics": TOPICS}),
        ("offset_fetch", 9, {"groups": GROUPS, "require_stable": False}),
        (
            "describe_configs",
            4,
            {"resources": CONFIGS, "include_synonyms": False, "include_documentation": False},
        ),
        (
            "metadata",
            12,
            {
                "topics": TOPICS_OF_METADATA,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        ),
    ],
)
def test_a_repeated_element_is_in_the_response_once(
    cluster: Cluster, api: str, version: int, fields: dict[str, Any]
) -> None:
    """Otherwise, a small request could require a response of gigabytes."""
    with RawConnection(cluster.bootstrap_servers) as raw:
        await_coordinator(raw, "g")
        assert longest_array(raw.call(api, version, **fields)) == 1


def test_the_partitions_and_configs_of_a_repeated_element_are_merged(cluster: Cluster) -> None:
    topics = [{"name": "served", "partition_indexes": [index]} for index in (0, 1)]
    resources = [
        {**CONFIGS[0], "configuration_keys": [key]} for key in ("segment.ms", "preallocate")
    ]
    with RawConnection(cluster.bootstrap_servers) as raw:
        await_coordinator(raw, "g")
        offsets = raw.call("offset_fetch", 7, group_id="g", topics=topics, require_stable=False)
        producers = raw.call("describe_producers", 0, topics=topics)
        configs = raw.call(
            "describe_configs",
            4,
            resources=resources,
            include_synonyms=False,
            include_documentation=False,
        )
    for response in (offsets, producers):
        assert [one.partition_index for one in response.topics[0].partitions] == [0, 1]
    assert {one.name for one in configs.results[0].configs} == {"segment.ms", "preallocate"}


def longest_array(entity: object) -> int:
    if isinstance(entity, tuple):
        return max([len(entity), *map(longest_array, entity)])
    if not is_dataclass(entity):
        return 0
    return max(longest_array(getattr(entity, field.name)) for field in dataclass_fields(entity))


def test_an_unknown_version_of_api_versions_gets_version_0(
    client: socket.socket,
) -> None:
    """KIP-511: clients of any version can send this request and decode the response."""
    software = b"\x04raw" + b"\x021" + b"\x00"  # Name, version, and no tagged fields.
    client.sendall(framed(header(API_VERSIONS, 9999) + b"\x00" + software))
    correlation_id, error_code = struct.unpack(">ih", receive_frame(client)[:6])
    assert (correlation_id, error_code) == (7, UNSUPPORTED_VERSION)
    client.sendall(framed(header(API_VERSIONS, 0, correlation_id=8)))
    correlation_id, error_code = struct.unpack(">ih", receive_frame(client)[:6])
    assert (correlation_id, error_code) == (8, 0)


def test_pipelined_requests_get_responses_in_order(client: socket.socket) -> None:
    client.sendall(b"".join(framed(header(API_VERSIONS, 0, number)) for number in range(1000)))
    for number in range(1000):
        assert struct.unpack(">i", receive_frame(client)[:4]) == (number,)


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc/PID/statm")
def test_500_hostile_connections_cost_a_broker_process_little_memory(tmp_path: Path) -> None:
    """The clients send nothing, announce 100 MiB, send slowly, or pipeline without reading."""
    with BrokerProcess(tmp_path) as broker:
        assert others_are_served(broker.bootstrap_servers)
        before = resident_bytes(broker.pid)
        clients = [connect(broker.bootstrap_servers) for _ in range(500)]
        try:
            for number, client in enumerate(clients):
                if number % 4 == 1:
                    client.sendall(struct.pack(">i", 100 * MIB))
                elif number % 4 == 2:
                    client.sendall(struct.pack(">i", 100 * MIB) + bytes(50_000))
                elif number % 4 == 3:
                    client.sendall(framed(*[header(API_VERSIONS, 0)] * 20))
            assert others_are_served(broker.bootstrap_servers)
            assert resident_bytes(broker.pid) - before < 64 * MIB
        finally:
            for client in clients:
                client.close()
        assert others_are_served(broker.bootstrap_servers)
