"""Sends admin requests over a socket, without a Kafka client.

`Cluster.create_topic` and other operations for tests use these functions. The functions send the
same requests as an admin client. Each call opens its own connection, and each socket operation has
a timeout. On a secured listener, the functions authenticate in the same way as a broker.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
import time
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

from broker_ref.frozen import dataclass
from broker_ref.security.sasl_client_authenticator import LoginError, SaslClientAuthenticator

_CLIENT_ID = "broker_ref.Cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The settings for connecting to a secured listener. Unused fields are None."""

    tls: ssl.SSLContext | None = None
    login: SaslClientAuthenticator | None = None


class CreateTopicError(Exception):
    """The broker rejected the request to create a topic, or did not respond.

    `error_code` is None if there was no response.
    """

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
    credentials: Credentials | None = None,
) -> None:
    """Create a topic through the broker at `address` (`host:port`), and wait until it has leaders.

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
        response: CreateTopicsResponse = send_request(
            address, request, timeout_seconds=timeout_seconds, credentials=credentials
        )
    except OSError as error:
        raise CreateTopicError(
            name, f"the broker at {address} did not respond ({error})."
        ) from error
    for topic in response.topics:
        if topic.error_code is not ErrorCode.none:
            raise CreateTopicError(
                name,
                f"{topic.error_code.name.upper()}: {topic.error_message or 'no error message'}",
                error_code=topic.error_code,
            )


def send_request(
    address: str,
    request: RequestPayload,
    *,
    timeout_seconds: float = 30.0,
    credentials: Credentials | None = None,
) -> Any:
    """Send a request to the broker at `address` (`host:port`) and return the response.

    Raises: OSError if the broker is unreachable, closes the connection, rejects the credentials or
    does not respond in time.
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
    with _connect(address, credentials or Credentials(), timeout_seconds) as connection:
        frame = _exchange(connection, body.getvalue())
    schema = load_response_from_request(request)
    _, header_bytes = entity_reader(schema.__header_schema__)(frame, 0)
    response, _ = entity_reader(schema)(frame, header_bytes)
    return response


def _connect(address: str, credentials: Credentials, timeout_seconds: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection = socket.create_connection((host, int(port)), timeout_seconds)
    try:
        if credentials.tls is not None:
            connection = credentials.tls.wrap_socket(connection, server_hostname=host)
        if credentials.login is not None:
            request = credentials.login.begin()
            while request is not None:
                response = _exchange(connection, request)
                request = credentials.login.receive(response, time.time_ns() // 1_000_000)
    except BaseException as error:
        connection.close()
        if isinstance(error, LoginError):
            raise ConnectionError(str(error)) from error
        raise
    return connection


def _exchange(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(struct.pack(">i", len(request)) + request)
    (length,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return received
