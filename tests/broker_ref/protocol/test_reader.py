"""Tests of the decoding of requests, compared with kio's encoding, and of invalid frames."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import MISSING, dataclass, fields, make_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v4.request import FetchRequest as FetchRequestV4
from kio.schema.fetch.v17.request import FetchRequest as FetchRequestV17
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.metadata.v1.request import MetadataRequest as MetadataRequestV1
from kio.schema.metadata.v12.request import MetadataRequest as MetadataRequestV12

from broker_ref.api import APIS
from broker_ref.api.k10_find_coordinator import FindCoordinatorRequest as FindCoordinator
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.protocol.reader import Cursor, MalformedRequestError, read_message
from broker_ref.protocol.schema import FieldSchema, fields_of
from broker_ref.protocol.writer import write_entities, write_message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SERVED = [(api.key, version) for api in APIS.values() for version in api.versions]


def _integers(bits: int) -> st.SearchStrategy[int]:
    """Draw integers of all sizes, often special values."""
    return st.integers(-7, 7) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "bool": st.booleans(),
    "string": st.sampled_from(["", "t", "g", "1"]) | st.text(max_size=20),
    "bytes": st.binary(max_size=40),
    "records": st.binary(max_size=40),
    "uuid": st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "float64": st.floats(allow_nan=False),
    "datetime_i64": st.integers(0, 2**41).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
    "timedelta_i32": st.integers(-1000, 10**6).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-1000, 10**6).map(lambda ms: timedelta(milliseconds=ms)),
}


def entities(schema: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(schema, **{field.name: _values(field) for field in fields_of(schema)})


def _values(field: FieldSchema) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        one = entities(field.struct)
    else:
        assert field.kafka_type is not None
        one = _PRIMITIVES[field.kafka_type]
    values = st.lists(one, max_size=3).map(tuple) if field.is_array else one
    return st.none() | values if field.nullable and field.tag is None else values


def message_of(entity: Any) -> Any:
    """Return an entity as a message: with times as integers in milliseconds."""
    if isinstance(entity, tuple):
        return tuple(message_of(item) for item in entity)
    if isinstance(entity, timedelta):
        return entity // timedelta(milliseconds=1)
    if isinstance(entity, datetime):
        return message_of(entity - EPOCH)
    if not hasattr(type(entity), "__version__"):
        return entity
    names = {field.message_name: field.name for field in fields_of(type(entity))}
    values = [message_of(getattr(entity, name)) for name in names.values()]
    return make_dataclass(type(entity).__name__, [(name, object) for name in names])(*values)


def assert_same(message: Any, entity: Any) -> None:
    names = {field.message_name: field.name for field in fields_of(type(entity))}
    for field in fields(message):
        if field.name in names:
            _assert_same_value(getattr(message, field.name), getattr(entity, names[field.name]))
        else:
            assert field.default is not MISSING, (type(message), field.name)


def _assert_same_value(value: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            _assert_same_value(one, other)
    elif isinstance(expected, timedelta):
        assert timedelta(milliseconds=value) == expected
    elif expected is None or isinstance(expected, Uuid):
        assert value == expected or (expected is None and value == ZERO_UUID)
    elif hasattr(type(expected), "__version__"):
        assert_same(value, expected)
    else:
        assert value == expected
        assert not isinstance(expected, datetime) or expected.tzinfo is UTC


@pytest.mark.slow
@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_requests_round_trip_with_kio(api_key: int, version: int, data: st.DataObject) -> None:
    schema: type[Any] = load_request_schema(api_key, version)
    entity = data.draw(entities(schema))
    frame = write_entities(entity)
    cursor = Cursor(frame)
    assert_same(read_message(schema, APIS[api_key].request, cursor), entity)
    assert cursor.position == len(frame)


@pytest.mark.slow
@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_responses_are_encoded_as_by_kio(api_key: int, version: int, data: st.DataObject) -> None:
    schema: type[Any] = load_response_schema(api_key, version)
    entity = data.draw(entities(schema))
    out = bytearray()
    write_message(schema, message_of(entity), out)
    assert bytes(out) == write_entities(entity)


@pytest.mark.slow
@pytest.mark.parametrize(("api_key", "version"), SERVED)
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_truncated_requests_are_rejected(api_key: int, version: int, data: st.DataObject) -> None:
    schema: type[Any] = load_request_schema(api_key, version)
    frame = write_entities(data.draw(entities(schema)))
    if not frame:
        return
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(MalformedRequestError):
        read_message(schema, APIS[api_key].request, Cursor(frame[:cut]))


HUGE_COMPACT = b"\xff\xff\xff\xff\x0f"
FETCH_V4_PREFIX = struct.pack(">iiiib", -1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("api_key", "schema", "frame", "reason"),
    [
        (3, MetadataRequestV1, struct.pack(">i", 2**31 - 1) + bytes(30), "2147483647"),
        (3, MetadataRequestV1, struct.pack(">i", -5) + bytes(30), "-5"),
        (3, MetadataRequestV12, HUGE_COMPACT + bytes(30), "4294967294"),
        (3, MetadataRequestV12, b"\xff" * 12, r"MetadataRequest\.topics\b.*\b5\b"),
        (
            1,
            FetchRequestV4,
            FETCH_V4_PREFIX + struct.pack(">i", 2**31 - 1) + bytes(9),
            "2147483647",
        ),
        (
            1,
            FetchRequestV4,
            FETCH_V4_PREFIX + struct.pack(">i", -1),
            r"FetchRequest\.topics\b.*\b21\b",
        ),
        (1, FetchRequestV4, FETCH_V4_PREFIX + struct.pack(">ih", 1, -3) + bytes(9), "-3"),
        (1, FetchRequestV17, bytes(21) + HUGE_COMPACT + bytes(30), "4294967294"),
        (32, DescribeConfigsRequest, HUGE_COMPACT + bytes(30), "4294967294"),
        (
            3,
            MetadataRequestV1,
            struct.pack(">ih", 1, 2) + b"\xff\xfe",
            r"MetadataRequestTopic\.name\b.*UTF-8",
        ),
        (10, FindCoordinatorRequest, b"\x00\x02\x02a" + HUGE_COMPACT + b"\x09\x01a", "4294967295"),
        (
            10,
            FindCoordinatorRequest,
            b"\x00\x02\x02a\x01\x09" + HUGE_COMPACT,
            "4294967295",
        ),
    ],
)
def test_false_lengths_are_rejected_without_allocation(
    api_key: int, schema: type[Any], frame: bytes, reason: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequestError, match=reason):
            read_message(schema, APIS[api_key].request, Cursor(frame))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(("size", "is_valid"), [(32_767, True), (32_768, False)])
def test_the_size_of_compact_strings_is_limited(size: int, is_valid: bool) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=("x" * size,))  # type: ignore[arg-type]
    cursor = Cursor(write_entities(request))
    if is_valid:
        assert read_message(FindCoordinatorRequest, FindCoordinator, cursor).key_type == 0
    else:
        with pytest.raises(MalformedRequestError):
            read_message(FindCoordinatorRequest, FindCoordinator, cursor)


def test_the_number_of_array_elements_is_limited() -> None:
    frame = b"\x00" + b"\x81\x89\x7a" + b"\x01" * 2_000_000 + b"\x00"
    cursor = Cursor(frame, elements_left=1_999_999)
    with pytest.raises(MalformedRequestError, match="1999999"):
        read_message(FindCoordinatorRequest, FindCoordinator, cursor)


@pytest.mark.parametrize(("elements", "is_valid"), [(1_001, True), (1_000, False)])
def test_the_number_of_tagged_fields_is_limited(elements: int, is_valid: bool) -> None:
    frame = b"\x00\x02\x02a" + b"\xe8\x07" + b"\x63\x00" * 1_000
    cursor = Cursor(frame, elements_left=elements)
    if is_valid:
        assert read_message(FindCoordinatorRequest, FindCoordinator, cursor).key_type == 0
    else:
        with pytest.raises(MalformedRequestError, match="1000"):
            read_message(FindCoordinatorRequest, FindCoordinator, cursor)


def test_unknown_tagged_fields_are_skipped() -> None:
    frame = b"\x00\x02\x02a" + b"\x02" + b"\x09\x02ab" + b"\x63\x00"
    cursor = Cursor(frame)
    request = read_message(FindCoordinatorRequest, FindCoordinator, cursor)
    assert request.coordinator_keys == ("a",)
    assert cursor.position == len(frame)


def test_a_tagged_field_has_the_size_it_claims() -> None:
    request = FetchRequestV17(
        max_wait=timedelta(),  # type: ignore[arg-type]
        min_bytes=0,  # type: ignore[arg-type]
        topics=(),
        forgotten_topics_data=(),
        rack_id="",
    )
    frame = write_entities(request)
    assert frame.endswith(b"\x00")
    lying = frame[:-1] + b"\x01\x00\x05\x02x\x00\x00\x00"
    with pytest.raises(MalformedRequestError, match="5 bytes"):
        read_message(FetchRequestV17, APIS[1].request, Cursor(lying))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyType:
    key_type: int


def test_fields_that_a_message_lacks_are_skipped() -> None:
    cursor = Cursor(b"\x01\x02\x02a\x00")
    assert read_message(FindCoordinatorRequest, OnlyType, cursor) == OnlyType(key_type=1)
    assert cursor.position == 5
