"""Request and response headers.

Decodes the header of a request (API key, version, correlation id and client id), and encodes
response frames. Invariant: a response header has version 1 if the response has a flexible version.
The header of an ApiVersions response always has version 0, because clients do not yet know which
versions the broker supports (KIP-511).
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema

from broker_ref.frozen import dataclass
from broker_ref.protocol.reader import (
    Cursor,
    MalformedRequestError,
    MessageType,
    read_message,
    skip_tagged_fields,
)
from broker_ref.protocol.writer import write_message

_PREFIX: Final = struct.Struct(">hhi")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The fields of a request header that exist in all versions."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_prefix(cursor: Cursor) -> RequestHeader:
    """Read the API key, version and correlation id; `finish_header` reads the client id."""
    if cursor.position == 0 and len(cursor.frame) >= _PREFIX.size:
        api_key, api_version, correlation_id = _PREFIX.unpack_from(cursor.frame)
        cursor.position = _PREFIX.size
        return RequestHeader(
            api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=None
        )
    api_key = cursor.fixed(_INT16, "the API key")
    api_version = cursor.fixed(_INT16, "the API version")
    correlation_id = cursor.fixed(_INT32, "the correlation id")
    return RequestHeader(
        api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=None
    )


def finish_header(cursor: Cursor, header: RequestHeader, *, flexible: bool) -> RequestHeader:
    """Read the client id, and the tagged fields if the header is flexible.

    The client id is never a compact string.
    """
    client_id = None
    length = cursor.fixed(_INT16, "the client id")
    if length >= 0:
        try:
            client_id = cursor.take(length, "the client id").decode()
        except UnicodeDecodeError:
            raise MalformedRequestError("the client id is not valid UTF-8") from None
    if flexible:
        skip_tagged_fields(cursor)
    return RequestHeader(
        api_key=header.api_key,
        api_version=header.api_version,
        correlation_id=header.correlation_id,
        client_id=client_id,
    )


@cache
def request_schema(api_key: int, version: int) -> type[Any]:
    """Return the kio class of a request."""
    return load_request_schema(api_key, version)


def response_frame(*, api_key: int, version: int, correlation_id: int, message: object) -> bytes:
    """Encode the header and body of a response, without the four-byte length."""
    schema = response_schema(api_key, version)
    out = bytearray(_INT32.pack(correlation_id))
    if schema.__header_schema__.__flexible__:
        out.append(0)
    write_message(schema, message, out)
    return bytes(out)


@cache
def response_schema(api_key: int, version: int) -> type[Any]:
    """Return the kio class of a response."""
    return load_response_schema(api_key, version)


def request_frame(
    *, api_key: int, version: int, correlation_id: int, client_id: str, message: object
) -> bytes:
    """Encode the header and body of a request, without the four-byte length."""
    schema = request_schema(api_key, version)
    client = client_id.encode()
    out = bytearray(_PREFIX.pack(api_key, version, correlation_id))
    out += _INT16.pack(len(client))
    out += client
    if schema.__header_schema__.__flexible__:
        out.append(0)
    write_message(schema, message, out)
    return bytes(out)


def read_response(
    *, api_key: int, version: int, message: type[MessageType], frame: bytes
) -> MessageType:
    """Decode a response as `message`. Raises: MalformedRequestError."""
    cursor = Cursor(frame)
    schema = response_schema(api_key, version)
    cursor.fixed(_INT32, "the correlation id")
    if schema.__header_schema__.__flexible__:
        skip_tagged_fields(cursor)
    return read_message(schema, message, cursor)


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
