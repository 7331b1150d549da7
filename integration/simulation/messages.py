"""The requests of simulated clients, and the version of each API that they use.

Requests are built with the field names of Kafka's schemas. If later versions of an API use topic
ids, the last version with topic names is used. The clients encode requests with the writer of
`broker_ref`, which is faster than the writer of kio, and decode responses with kio. Some requests
are also encoded with kio, and both encodings must be equal. Invariant: omitted fields have the
default values of the schema.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from broker_ref.log.batch import Record, decode_records
from broker_ref.protocol.frames import request_schema
from broker_ref.protocol.schema import FieldSchema, fields_of
from broker_ref.protocol.writer import write_message
from integration import raw

_VERSIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "add_offsets_to_txn": 3,
        "add_partitions_to_txn": 3,
        "alter_partition_reassignments": 0,
        "consumer_group_heartbeat": 1,
        "create_topics": 5,
        "delete_topics": 5,
        "elect_leaders": 2,
        "end_txn": 3,
        "fetch": 12,
        "find_coordinator": 3,
        "heartbeat": 4,
        "init_producer_id": 4,
        "join_group": 6,
        "leave_group": 4,
        "list_offsets": 7,
        "metadata": 9,
        "offset_commit": 7,
        "offset_fetch": 7,
        "produce": 9,
        "sync_group": 4,
        "txn_offset_commit": 3,
        "update_features": 1,
    }
)
_VERSIONS_V2: Final[Mapping[str, int]] = MappingProxyType(
    {**_VERSIONS, "end_txn": 5, "produce": 12, "txn_offset_commit": 5}
)
"""The API versions for transaction.version 2 (KIP-890): implicit AddPartitions and epoch bumps."""


@lru_cache(maxsize=512)
def _records_of(batch: bytes) -> tuple[Record, ...]:
    return tuple(decode_records(batch))


def records_of(batch: memoryview) -> tuple[Record, ...]:
    """Return the records of a batch. The result is cached for the clients and the checks."""
    return _records_of(bytes(batch))


COMPARED: Final = 100
"""One of this many requests is also encoded with kio."""

_HEADER: Final = struct.Struct(">hhih")


class EncodingError(Exception):
    """The writer of `broker_ref` and kio encode a request differently."""


@dataclasses.dataclass(slots=True)
class Request:
    """A request for one API and version. `body` is encoded once and reused in retries."""

    api_key: int
    version: int
    body: bytes
    is_flexible: bool

    def frame(self, correlation_id: int, client_id: str) -> bytes:
        """Return the header and the body."""
        client = client_id.encode()
        header = _HEADER.pack(self.api_key, self.version, correlation_id, len(client)) + client
        return header + b"\x00" + self.body if self.is_flexible else header + self.body

    def response(self, frame: bytes, correlation_id: int) -> Any:
        """Return the response entity."""
        return raw.decode_response_of(self.api_key, self.version, frame, correlation_id)


def request(
    api: str, /, *, is_v2: bool = False, version: int | None = None, **fields: Any
) -> Request:
    """Return a request. Nested entities are mappings, and times are in milliseconds."""
    if version is None:
        version = (_VERSIONS_V2 if is_v2 else _VERSIONS)[api]
    api_key = raw.api_key(api)
    schema = request_schema(api_key, version)
    out = bytearray()
    write_message(schema, _struct_of(schema).message(fields), out)
    built = Request(api_key, version, bytes(out), schema.__flexible__)
    if zlib.crc32(built.body) % COMPARED == 0:
        expected = raw.encode_request(raw.request(api, version, **fields), 1, "client")
        if built.frame(1, "client") != expected:
            raise EncodingError(f"{built} should be encoded as {expected!r}: {fields}")
    return built


class _Struct:
    """Creates the messages of one struct from mappings with the field names of Kafka's schema."""

    def __init__(self, schema: type[Any]) -> None:
        described = fields_of(schema)
        self._fields = {
            field.name: (
                field.message_name,
                None if field.struct is None else _struct_of(field.struct),
                field.is_array,
            )
            for field in described
        }
        self._message = dataclasses.make_dataclass(
            schema.__name__, [(field.message_name, object) for field in described], slots=True
        )
        self._defaults = {field.message_name: _default(field) for field in described}

    def message(self, values: Mapping[str, Any]) -> Any:
        """Return the message. Omitted fields have their default values, or are zero or empty."""
        given = dict(self._defaults)
        for name, value in values.items():
            message_name, nested, is_array = self._fields[name]
            if nested is None or value is None:
                given[message_name] = value
            elif is_array:
                given[message_name] = [nested.message(item) for item in value]
            else:
                given[message_name] = nested.message(value)
        return self._message(**given)


_structs: dict[type[Any], _Struct] = {}


def _struct_of(schema: type[Any]) -> _Struct:
    struct_of_schema = _structs.get(schema)
    if struct_of_schema is None:
        struct_of_schema = _structs[schema] = _Struct(schema)
    return struct_of_schema


def _default(field: FieldSchema) -> Any:
    if isinstance(field.default, timedelta):
        return field.default // timedelta(milliseconds=1)
    if not field.required:
        return field.default
    if field.nullable or field.kafka_type == "uuid":
        return None
    if field.is_array:
        return ()
    if field.struct is not None:
        return _struct_of(field.struct).message({})
    return {"string": "", "bytes": b"", "records": b""}.get(field.kafka_type or "", 0)
