"""A connection to a Kafka broker, for tests that control every byte.

A test sends a request entity and receives the response entity, or it sends arbitrary bytes.
`request` builds a request for any API and version from plain values, so a test can iterate over
versions. Invariant: a connection sends one request at a time, without retries and without routing.
This module depends only on kio's schemas, not on the connector or the reference broker.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import socket
import struct
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.protocol import Entity, RequestPayload

TIMEOUT_S = 30.0

Plain = Any
"""An int, str, bytes, bool, None, uuid.UUID, a sequence, or a mapping of field names to Plain."""

Reader = Callable[[bytes, int], tuple[Any, int]]
"""A function that decodes an entity at a position, and returns it with its size."""

Convert = Callable[[Plain], Any]

_API_KEYS = {name: key for key, name in api_key_map.items()}


class ConnectionClosedByBrokerError(Exception):
    """The broker closed the connection instead of sending a response."""


class RawConnection:
    """A TCP connection to one broker. Use it as a context manager."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Connect to `host:port`. Raise `OSError` if the connection fails."""
        host, _, port = address.rpartition(":")
        self.address = address
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def send(self, entity: RequestPayload, *, client_id: str | None = "raw") -> Any:
        """Send a request and return its response entity.

        Raises `ConnectionClosedByBrokerError` or `TimeoutError`. Raises `ValueError` if the frame
        is not the response to this request.
        """
        self.send_only(entity, client_id=client_id)
        return self.receive(entity)

    def send_only(self, entity: RequestPayload, *, client_id: str | None = "raw") -> None:
        """Send a request without waiting for the response (acks=0, long polls, pipelining)."""
        self._correlation_id += 1
        self.send_frame(encode_request(entity, self._correlation_id, client_id))

    def receive(self, entity: RequestPayload) -> Any:
        """Receive and return the response to the last request."""
        return decode_response(entity, self.receive_frame(), self._correlation_id)

    def call(self, api: str, version: int, /, **fields: Plain) -> Any:
        """Build a request with `request`, send it and return its response entity."""
        return self.send(request(api, version, **fields))

    def send_frame(self, frame: bytes) -> None:
        """Send bytes as one frame, preceded by its four-byte length."""
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes without framing."""
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        """Receive a frame and return it without its length."""
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def closed_by_broker(self) -> bool:
        """Wait until the broker closes the connection. Return False if it sends data instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def half_close(self) -> None:
        """Close the sending direction of the connection."""
        self._socket.shutdown(socket.SHUT_WR)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the timeout in seconds after which reads raise `TimeoutError`."""
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        self._socket.close()

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._socket.recv(length - len(data))
            except ConnectionError as error:
                raise ConnectionClosedByBrokerError(self.address) from error
            if not part:
                raise ConnectionClosedByBrokerError(self.address)
            data += part
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def encode_request(entity: RequestPayload, correlation_id: int, client_id: str | None) -> bytes:
    """Return the header and the body of a request, without the length prefix."""
    header = _build(
        entity.__header_schema__,
        {
            "request_api_key": entity.__api_key__,
            "request_api_version": entity.__version__,
            "correlation_id": correlation_id,
            "client_id": client_id,
        },
    )
    buffer = io.BytesIO()
    entity_writer(entity.__header_schema__)(buffer, header)
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def decode_response(entity: RequestPayload, frame: bytes, correlation_id: int) -> Any:
    """Decode the frame of the response to the request `entity`."""
    return decode_response_of(entity.__api_key__, entity.__version__, frame, correlation_id)


def decode_response_of(api_key: int, version: int, frame: bytes, correlation_id: int) -> Any:
    """Decode the frame of a response of this API and version."""
    read_header, read = _response_readers(api_key, version)
    header, size = read_header(frame, 0)
    if header.correlation_id != correlation_id:
        raise ValueError(
            f"the response has correlation id {header.correlation_id} instead of {correlation_id}"
        )
    response, body_size = read(frame, size)
    if size + body_size != len(frame):
        raise ValueError(
            f"{len(frame) - size - body_size} unexpected bytes at the end of the frame, after "
            f"{response!r}"
        )
    return response


@cache
def _response_readers(api_key: int, version: int) -> tuple[Reader, Reader]:
    """Return the functions that decode the header and the body of a response."""
    response_type: Any = load_response_schema(api_key, version)
    return entity_reader(response_type.__header_schema__), entity_reader(response_type)


def api_key(api: str) -> int:
    """Return the key of the API with this kio name, such as `list_offsets`."""
    return _API_KEYS[api]


def request(api: str, version: int, /, **fields: Plain) -> RequestPayload:
    """Return a request for an API and version. Omitted fields have the schema's default values.

    Pass nested entities as mappings, and durations in milliseconds. Raises `TypeError` if this
    version of the request does not contain a given field.
    """
    built: RequestPayload = _build(load_request_schema(api_key(api), version), fields)
    return built


def response(api: str, version: int, /, **fields: Plain) -> Any:
    """Return a response for tests that act as a broker. Pass the fields as in `request`."""
    return _build(load_response_schema(api_key(api), version), fields)


def _build(entity_type: type[Entity], values: Mapping[str, Plain]) -> Any:
    converters, defaults = _converters(entity_type), _implicit_defaults(entity_type)
    unknown = values.keys() - converters.keys()
    if unknown:
        raise TypeError(
            f"{entity_type.__name__} v{entity_type.__version__} has no fields {sorted(unknown)}; "
            f"its fields are {sorted(converters)}"
        )
    given = {name: converters[name](value) for name, value in values.items()}
    return entity_type(**{**defaults, **given})


@cache
def _converters(entity_type: type[Entity]) -> Mapping[str, Convert]:
    """Return, for each field, the function that converts plain values to values of the field."""
    hints = typing.get_type_hints(entity_type)
    return {field.name: _converter(hints[field.name]) for field in dataclasses.fields(entity_type)}


@cache
def _implicit_defaults(entity_type: type[Entity]) -> Mapping[str, Any]:
    """Return the values of fields whose schema has no default."""
    hints = typing.get_type_hints(entity_type)
    return {
        field.name: _implicit_default(hints[field.name])
        for field in dataclasses.fields(entity_type)
        if field.default is dataclasses.MISSING
    }


def _converter(hint: Any) -> Convert:
    hint = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        item = _converter(typing.get_args(hint)[0])
        return lambda value: (
            tuple(item(each) for each in value) if isinstance(value, Sequence) else value
        )
    if dataclasses.is_dataclass(hint):
        struct_type = typing.cast("type[Entity]", hint)
        return lambda value: _build(struct_type, value) if isinstance(value, Mapping) else value
    if issubclass(hint, datetime.timedelta):
        return lambda value: None if value is None else datetime.timedelta(milliseconds=value)
    if hint is ErrorCode:
        return lambda value: None if value is None else ErrorCode(value)
    return lambda value: value


def _implicit_default(hint: Any) -> Any:
    """Return the default of a field whose schema has no default: zero, empty, false or null."""
    if type(None) in typing.get_args(hint):
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Entity]", hint), {})
    if hint is ErrorCode:
        return ErrorCode.none
    for kind, default in ((bool, False), (datetime.timedelta, datetime.timedelta()), (str, "")):
        if issubclass(hint, kind):
            return default
    return b"" if issubclass(hint, bytes) else 0


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint
