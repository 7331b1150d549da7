"""Builds FindCoordinator requests and reads their responses (versions 1 to 5) without kio.

kio's schema is not used for these messages, because importing it would delay every micro-batch. A
valid response contains each requested key exactly once. Source: FindCoordinatorRequest.json of
Kafka; KIP-699 (requests with several keys).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from pyspark_kafka.wire.connection import Request
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import Api
from pyspark_kafka.wire.writer import NO_TAGGED_FIELDS, int8, length, string

FIRST_OF_MANY: Final = 4
"""The first version in which a request can contain several keys."""
_FIRST_FLEXIBLE: Final = 3


class CoordinatorKind(IntEnum):
    """The values of the `key_type` field in a FindCoordinator request."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorKey(NamedTuple):
    """A consumer group or a transactional id."""

    kind: CoordinatorKind
    name: str

    @classmethod
    def group(cls, group_id: str) -> Self:
        return cls(CoordinatorKind.GROUP, group_id)

    @classmethod
    def transaction(cls, transactional_id: str) -> Self:
        return cls(CoordinatorKind.TRANSACTION, transactional_id)

    @property
    def error_fields(self) -> dict[str, Any]:
        """Return the `PysparkKafkaError` field that identifies this key, as a keyword argument."""
        field = "group_id" if self.kind is CoordinatorKind.GROUP else "transactional_id"
        return {field: self.name}

    def __str__(self) -> str:
        kind = "group" if self.kind is CoordinatorKind.GROUP else "transactional id"
        return f"{kind} {self.name!r}"


class FoundCoordinator(NamedTuple):
    """The coordinator of a key. `broker` is None if `error_code` is not NONE."""

    error_code: ErrorCode
    broker: Broker | None


Found = Mapping[str, FoundCoordinator]
"""The coordinators, keyed by group id or transactional id."""


class FindResponse(NamedTuple):
    throttle_ms: int
    found: Found


def find_coordinators_request(
    version: int, kind: CoordinatorKind, names: Sequence[str]
) -> Request[FindResponse]:
    """Build a FindCoordinator request for distinct group ids or transactional ids.

    Versions before `FIRST_OF_MANY` support only one id.
    """
    assert len(names) == 1 or version >= FIRST_OF_MANY, version
    return Request(
        api=Api.FIND_COORDINATOR,
        version=version,
        body=(_write(version, kind, names),),
        read=partial(_read, version, frozenset(names)),
        throttle_ms=lambda response: response.throttle_ms,
    )


def _write(version: int, kind: CoordinatorKind, names: Sequence[str]) -> bytes:
    flexible = version >= _FIRST_FLEXIBLE
    end = NO_TAGGED_FIELDS if flexible else b""
    if version < FIRST_OF_MANY:
        return string(names[0], flexible=flexible) + int8(kind) + end
    keys = b"".join(string(name, flexible=True) for name in names)
    return int8(kind) + length(len(names), flexible=True) + keys + end


def _read(version: int, names: frozenset[str], reader: Reader) -> FindResponse:
    flexible = version >= _FIRST_FLEXIBLE
    throttle_ms = reader.int32("throttle_time_ms")
    found: dict[str, FoundCoordinator] = {}
    if version < FIRST_OF_MANY:
        error_code = reader.error_code("error_code")
        reader.nullable_string("error_message", flexible=flexible)
        (name,) = names
        found[name] = _found(error_code, _read_broker(reader, flexible=flexible))
    else:
        for name, one in reader.array(lambda: _read_one(reader), "coordinators", flexible=True):
            if name not in names or name in found:
                raise MalformedResponseError(f"key {name!r} was not requested or occurs twice")
            found[name] = one
        if len(found) < len(names):
            raise MalformedResponseError(f"key {min(names - found.keys())!r} is missing")
    if flexible:
        reader.skip_tagged_fields("the response")
    return FindResponse(throttle_ms, found)


def _read_one(reader: Reader) -> tuple[str, FoundCoordinator]:
    name = reader.string("key", flexible=True)
    broker = _read_broker(reader, flexible=True)
    error_code = reader.error_code("error_code")
    reader.nullable_string("error_message", flexible=True)
    reader.skip_tagged_fields("a coordinator")
    return name, _found(error_code, broker)


def _read_broker(reader: Reader, *, flexible: bool) -> Broker:
    broker_id = reader.int32("node_id")
    host = reader.string("host", flexible=flexible)
    return Broker(broker_id=broker_id, address=Address(host, reader.int32("port")))


def _found(error_code: ErrorCode, broker: Broker) -> FoundCoordinator:
    return FoundCoordinator(error_code, broker if error_code is ErrorCode.none else None)
