"""Admin requests over a socket, without a Kafka client.

Purpose: `Cluster.create_topic` and other operations for tests, with the requests that a client
would send. Invariant: one connection per call, closed at its end; every wait has a timeout. Must
not know: anything inside the broker.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kio.index import load_response_from_request
from kio.schema.create_topics.v5.request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v5.response import CreateTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta
from kio.static.protocol import RequestPayload

_CLIENT_ID = "broker_ref.Cluster"


class CreateTopicError(Exception):
    """The broker rejected the creation of a topic, or did not respond (`error_code` None)."""

    def __init__(self, topic: str, reason: str, *, error_code: ErrorCode | None = None) -> None:
        super().__init__(f"Cannot create topic '{topic}': {reason}")
        self.topic = topic
        self.error_code = error_code


def create_topic(
    address: str,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    timeout_seconds: float = 30.0,
) -> None:
    """Create a topic through the broker at `address` (`host:port`), and wait for its leaders.

    Raises: CreateTopicError.
    """
    request = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(partitions),
                replication_factor=i16(replication_factor),
                assignments=(),
                configs=tuple(
                    CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ),
            ),
        ),
        timeout=i32Timedelta.parse(timedelta(seconds=timeout_seconds)),
    )
    try:
        response: CreateTopicsResponse = ask(address, request, timeout_seconds=timeout_seconds)
    except OSError as error:
        raise CreateTopicError(
            name, f"no response from the broker at {address}: {error}."
        ) from error
    for topic in response.topics:
        if topic.error_code is not ErrorCode.none:
            raise CreateTopicError(
                name,
                f"{topic.error_code.name.upper()}: {topic.error_message or 'no error message'}",
                error_code=topic.error_code,
            )


def ask(address: str, request: RequestPayload, *, timeout_seconds: float = 30.0) -> Any:
    """Send a request entity to the broker at `address` (`host:port`); return its response.

    Raises: OSError if the broker is unreachable, closes the connection or does not respond in time.
    """
    body = io.BytesIO()
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(1),
        client_id=_CLIENT_ID,
    )
    entity_writer(type(header))(body, header)
    entity_writer(type(request))(body, request)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout_seconds) as connection:
        connection.sendall(struct.pack(">i", body.tell()) + body.getvalue())
        (length,) = struct.unpack(">i", _receive(connection, 4))
        frame = _receive(connection, length)
    schema = load_response_from_request(request)
    _, header_bytes = entity_reader(schema.__header_schema__)(frame, 0)
    response, _ = entity_reader(schema)(frame, header_bytes)
    return response


def _receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return received
