"""Tests of the decoding of responses that kio wrote, and of malformed ones."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from pyspark_kafka.wire.entities import (
    has_flexible_header,
    read_entity,
    request_bytes,
    request_header,
)
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.pyspark_kafka.wire.messages import entities, entity_bytes

WITHOUT_KIO = (
    Api.DESCRIBE_CONFIGS,
    Api.DESCRIBE_TRANSACTIONS,
    Api.END_TXN,
    Api.FETCH,
    Api.FIND_COORDINATOR,
    Api.LIST_TRANSACTIONS,
    Api.PRODUCE,
)
RESPONSES = [
    load_response_schema(api, version)
    for api, supported in SUPPORTED_VERSIONS.items()
    if api not in WITHOUT_KIO
    for version in range(supported.first, supported.last + 1)
]
REQUESTS = [
    load_request_schema(api, version)
    for api, supported in SUPPORTED_VERSIONS.items()
    if api not in WITHOUT_KIO
    for version in range(supported.first, supported.last + 1)
]
ANY_RESPONSE: st.SearchStrategy[Any] = st.sampled_from(RESPONSES)


def read(schema: Any, data: bytes) -> Any:
    reader = Reader(memoryview(data))
    entity = read_entity(schema, reader)
    reader.end("the response")
    return entity


@pytest.mark.slow
@pytest.mark.parametrize("schema", RESPONSES, ids=lambda s: f"{s.__name__} v{s.__version__}")
def test_every_version_of_every_response_is_read(schema: Any) -> None:
    @settings(max_examples=25)
    @given(entities(schema))
    def check(entity: Any) -> None:
        assert read(schema, entity_bytes(entity)) == entity

    check()


@pytest.mark.slow
@given(st.data())
def test_corrupt_responses_are_malformed_or_read(data: st.DataObject) -> None:
    schema = data.draw(ANY_RESPONSE)
    found = bytearray(entity_bytes(data.draw(entities(schema))))
    for _ in range(data.draw(st.integers(1, 3))):
        if not found:
            break
        position = data.draw(st.integers(0, len(found) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "end"])):
            case "flip":
                found[position] ^= data.draw(st.integers(1, 255))
            case "cut":
                del found[position : position + data.draw(st.integers(1, 8))]
            case "insert":
                found[position:position] = data.draw(st.binary(max_size=8))
            case "end":
                del found[position:]
    try:
        read(schema, bytes(found))
    except MalformedResponseError as error:
        assert str(error)  # noqa: PT017


@given(ANY_RESPONSE, st.binary(max_size=80))
def test_garbage_is_malformed_or_a_response(schema: Any, data: bytes) -> None:
    with contextlib.suppress(MalformedResponseError):
        read(schema, data)


def reader_of(data: str) -> Reader:
    return Reader(memoryview(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("data", "value"), [("00", 0), ("7f", 127), ("8001", 128), ("ffffffff0f", 2**32 - 1)]
)
def test_varints(data: str, value: int) -> None:
    reader = reader_of(data)
    assert reader.unsigned_varint("n") == value
    assert reader.left == 0


@pytest.mark.parametrize("data", ["", "80", "ffffffff1f", "8080808080", "ffffffffffffffffff01"])
def test_invalid_varints(data: str) -> None:
    with pytest.raises(MalformedResponseError, match=r"\bn\b"):
        reader_of(data).unsigned_varint("n")


def test_an_array_longer_than_the_frame_is_malformed() -> None:
    with pytest.raises(MalformedResponseError, match="2147483647"):
        reader_of("7fffffff00").array(lambda: None, "n", flexible=False)


def test_tagged_fields_have_a_limit() -> None:
    """Otherwise, a response of 100 MB could contain 50 million empty fields."""
    declared = bytes.fromhex("c196b102")  # 5,000,001
    reader = Reader(memoryview(declared + bytes(2 * 5_000_001)))
    with pytest.raises(MalformedResponseError):
        reader.skip_tagged_fields("n")


def test_arrays_have_a_limit_of_elements() -> None:
    """The limit also stops arrays whose elements have no bytes."""
    data = bytes(4_000_000)
    reader = Reader(memoryview(b"\x00\x3d\x09\x00" + data))
    reader.array(lambda: None, "n", flexible=False)
    reader.position = 0
    with pytest.raises(MalformedResponseError, match="1000000"):
        reader.array(lambda: None, "n", flexible=False)


@pytest.mark.parametrize("data", ["ffff", "fffe", "7fff6162"])
def test_invalid_strings(data: str) -> None:
    with pytest.raises(MalformedResponseError, match="name"):
        reader_of(data).string("name", flexible=False)


def test_unknown_tags_are_skipped_and_known_ones_must_have_their_size() -> None:
    reader = reader_of("02 05 03 616263 07 01 2a".replace(" ", ""))
    seen = []

    def known(tag: int) -> bool:
        if tag == 7:
            seen.append(reader.int8("seven"))
        return tag == 7

    reader.tagged_fields(known, "x")
    assert seen == [42]
    reader = reader_of("0107022a00")
    with pytest.raises(MalformedResponseError, match=r"\b7\b.*\bx\b"):
        reader.tagged_fields(known, "x")
    with pytest.raises(MalformedResponseError, match=r"\b7\b.*\bx\b.*\b9\b"):
        reader_of("0107092a").tagged_fields(known, "x")


def test_an_unknown_error_code_is_unknown_server_error() -> None:
    assert reader_of("7fff").error_code("code") is ErrorCode.unknown_server_error


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return value


@pytest.mark.slow
@pytest.mark.parametrize("schema", REQUESTS, ids=lambda s: f"{s.__name__} v{s.__version__}")
def test_every_version_of_every_request_equals_kios(schema: Any) -> None:
    api = Api(schema.__api_key__)

    @settings(max_examples=25)
    @given(entities(schema))
    def check(entity: Any) -> None:
        found = request_bytes(api, schema.__version__, plain(entity))
        assert found == entity_bytes(entity)

    check()


@pytest.mark.parametrize("api", SUPPORTED_VERSIONS)
def test_request_headers_equal_kios(api: Api) -> None:
    for version in range(SUPPORTED_VERSIONS[api].first, SUPPORTED_VERSIONS[api].last + 1):
        schema: Any = load_request_schema(api, version).__header_schema__
        header = schema(
            request_api_key=api,
            request_api_version=version,
            correlation_id=5,
            client_id="tests",
        )
        found = request_header(api, version, correlation_id=5, client_id="tests")
        assert found == entity_bytes(header)
        of_response = load_response_schema(api, version).__header_schema__
        assert has_flexible_header(api, version) is of_response.__flexible__


def test_a_request_has_the_fields_of_its_version() -> None:
    values = {
        "topics": [{"name": "t", "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    assert request_bytes(Api.METADATA, 4, values).hex() == "00000001" + "000174" + "00"
    new = request_bytes(Api.METADATA, 12, values)
    assert new.hex() == "02" + "00" * 16 + "0274" + "00" + "00" + "00" + "00"
    with pytest.raises(TypeError, match=r"MetadataRequest v12\b.*'topics'"):
        request_bytes(Api.METADATA, 12, {})
    nothing = request_bytes(Api.METADATA, 12, {**values, "topics": None})
    assert nothing.hex() == "00" + "00" + "00" + "00"
