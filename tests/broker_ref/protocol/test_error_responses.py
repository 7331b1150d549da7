"""Tests of error responses to every request, decoded with kio."""

from __future__ import annotations

import dataclasses
import datetime
import io
from typing import Any
from uuid import UUID

import pytest
from kio.index import UnknownEntity, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from broker_ref.api import APIS
from broker_ref.protocol.error_responses import MIRRORS, error_frame, error_response
from broker_ref.protocol.frames import request_schema
from broker_ref.protocol.reader import Cursor, read_message
from broker_ref.protocol.schema import fields_of

CODE = ErrorCode.coordinator_load_in_progress
TOPIC_ID = UUID(int=12345)
WITHOUT_ERROR_CODE = {(35, 0), (35, 1), (35, 2)}
"""DescribeLogDirs has no top-level error code before version 3."""


def versions_of(api_key: int) -> list[int]:
    found = []
    for version in range(30):
        try:
            load_response_schema(api_key, version)
            request_schema(api_key, version)
        except UnknownEntity:
            continue
        found.append(version)
    return found


def example(schema: type[Any]) -> Any:
    """Return a request with one element in each array, and with non-empty names."""
    values: dict[str, Any] = {}
    for described in fields_of(schema):
        if described.struct is not None:
            inner = example(described.struct)
            values[described.name] = (inner,) if described.is_array else inner
        elif described.is_array:
            values[described.name] = (plain(described.kafka_type, described.name),)
        elif described.required or described.kafka_type in {"string", "uuid"}:
            values[described.name] = plain(described.kafka_type, described.name)
    if "session_id" in {field.name for field in dataclasses.fields(schema)}:
        values["session_id"] = 77
    return schema(**values)


def plain(kafka_type: str | None, name: str) -> Any:
    match kafka_type:
        case "string":
            return f"some-{name}"
        case "uuid":
            return TOPIC_ID
        case "bytes" | "records":
            return b"xyz"
        case "bool":
            return True
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(seconds=1)
        case _:
            return 3


def codes(entity: Any) -> list[ErrorCode]:
    found: list[ErrorCode] = []
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, ErrorCode):
            found.append(value)
        elif isinstance(value, tuple):
            for element in value:
                if dataclasses.is_dataclass(element):
                    found += codes(element)
    return found


def refuse(request: Any) -> Any:
    api_key, version = int(type(request).__api_key__), int(type(request).__version__)
    frame = error_frame(
        request, api_key=api_key, version=version, correlation_id=9, error_code=CODE, message="no"
    )
    assert frame is not None
    schema: Any = load_response_schema(api_key, version)
    header, header_size = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == 9
    response, size = entity_reader(schema)(frame, header_size)
    assert header_size + size == len(frame)
    return response


@pytest.mark.parametrize("api_key", MIRRORS)
def test_every_request_has_an_error_response(api_key: int) -> None:
    versions = versions_of(api_key)
    assert versions
    for version in versions:
        response = refuse(example(request_schema(api_key, version)))
        if (api_key, version) in WITHOUT_ERROR_CODE:
            assert codes(response) == []
        else:
            assert codes(response), version
            assert set(codes(response)) == {CODE}, version


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.request.__name__)
def test_error_responses_accept_messages(api: Any) -> None:
    for version in api.versions:
        request = example(request_schema(api.key, version))
        buffer = io.BytesIO()
        entity_writer(type(request))(buffer, request)
        message = read_message(type(request), api.request, Cursor(buffer.getvalue()))
        refused = error_response(message, api_key=api.key, version=version, error_code=CODE)
        expected = error_response(request, api_key=api.key, version=version, error_code=CODE)
        assert refused == expected, (api.request.__name__, version)


def test_a_produce_error_response_names_its_partitions() -> None:
    by_name = refuse(example(request_schema(0, 9)))
    (topic,) = by_name.responses
    (partition,) = topic.partition_responses
    assert (topic.name, partition.index) == ("some-name", 3)
    assert partition.error_code is CODE
    assert partition.base_offset == -1
    assert partition.error_message == "no"
    (topic,) = refuse(example(request_schema(0, 13))).responses
    assert topic.topic_id == TOPIC_ID


def test_a_produce_with_acks_0_has_no_error_response() -> None:
    request = dataclasses.replace(example(request_schema(0, 9)), acks=0)
    assert error_response(request, api_key=0, version=9, error_code=CODE) is None


def test_a_fetch_error_is_per_partition_up_to_version_12() -> None:
    old = refuse(example(request_schema(1, 12)))
    assert old.error_code is CODE
    assert old.session_id == 77
    assert old.responses[0].partitions[0].partition_index == 3
    assert old.responses[0].partitions[0].records == b""
    new = refuse(example(request_schema(1, 13)))
    assert (new.error_code, new.session_id, new.responses) == (CODE, 77, ())


def test_an_offset_fetch_error_depends_on_the_version() -> None:
    assert refuse(example(request_schema(9, 1))).topics[0].partitions[0].partition_index == 3
    assert refuse(example(request_schema(9, 2))).topics == ()
    assert refuse(example(request_schema(9, 7))).error_code is CODE
    (group,) = refuse(example(request_schema(9, 8))).groups
    assert (group.group_id, group.error_code, group.topics) == ("some-group_id", CODE, ())


def test_error_responses_name_groups_coordinators_and_elections() -> None:
    assert refuse(example(request_schema(15, 5))).groups[0].group_id == "some-groups"
    assert refuse(example(request_schema(42, 2))).results[0].group_id == "some-groups_names"
    (found,) = refuse(example(request_schema(10, 4))).coordinators
    assert (found.key, found.node_id, found.port) == ("some-coordinator_keys", -1, -1)
    (topic,) = refuse(example(request_schema(43, 2))).replica_election_results
    assert (topic.topic, topic.partition_result[0].partition_id) == ("some-topic", 3)
    (deleted,) = refuse(example(request_schema(20, 5))).responses
    assert deleted.name == "some-topic_names"


def test_an_error_for_log_directories_names_the_partitions_of_all_directories() -> None:
    (directory,) = example(request_schema(34, 2)).dirs
    request = request_schema(34, 2)(dirs=(directory, directory))
    found = [(topic.topic_name, topic.partitions[0]) for topic in refuse(request).results]
    assert [(name, one.partition_index) for name, one in found] == [("some-name", 3)] * 2


def test_every_served_api_has_an_error_response() -> None:
    assert APIS.keys() <= MIRRORS.keys()
