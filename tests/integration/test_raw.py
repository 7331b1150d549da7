"""The raw connection builds requests and rejects invalid fields and frames."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from integration.raw import decode_response, encode_request, request


def test_nested_fields_and_durations_are_built_from_plain_values() -> None:
    built: Any = request(
        "create_topics",
        7,
        timeout=1500,
        topics=[{"name": "t", "configs": [{"name": "retention.ms", "value": None}]}],
    )
    assert built.timeout == datetime.timedelta(milliseconds=1500)
    (topic,) = built.topics
    assert (topic.name, topic.num_partitions, topic.assignments) == ("t", 0, ())
    assert topic.configs[0].value is None


def test_an_unknown_field_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"MetadataRequest v9 .*\['topic'\].*topics"):
        request("metadata", 9, topic="t")


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        # API key, version, correlation id, client id "c", an empty array of topics
        (1, "0003 0001 00000007 0001 63 00000000"),
        # The same with a flexible header, a compact array, three flags and no tagged fields
        (9, "0003 0009 00000007 0001 63 00 01 00 00 00 00"),
    ],
)
def test_a_frame_has_the_header_of_its_version(version: int, frame: str) -> None:
    payload = request(
        "metadata",
        version,
        topics=[],
        **({} if version < 4 else {"allow_auto_topic_creation": False}),
    )
    assert encode_request(payload, 7, "c") == bytes.fromhex(frame)


def test_a_response_to_another_request_is_rejected() -> None:
    payload = request("metadata", 0, topics=[])
    with pytest.raises(ValueError, match=r"8.* 7"):
        decode_response(payload, bytes.fromhex("00000008 00000000 00000000"), 7)


def test_a_response_with_extra_bytes_is_rejected() -> None:
    payload = request("metadata", 0, topics=[])
    with pytest.raises(ValueError, match=r"\b1\b"):
        decode_response(payload, bytes.fromhex("00000007 00000000 00000000 ff"), 7)
