"""Tests of the format of the offset log: what a change of offsets keeps."""

from __future__ import annotations

import pytest

from pyspark_kafka.checkpoint.offset_log import parse_offset_log
from pyspark_kafka.kafka.topics import TopicPartition

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1763771111111,"conf":{"a":"b"}}'
SPARKS_OWN = '{"t":{"1":7,"0":5},"u":{"10":1}}'
OURS = '{"t": {"1": 7, "0": 5}, "u": {"10": 1}}'


def content(*sources: str, version: str = "v1") -> bytes:
    return "\n".join([version, METADATA, *sources]).encode()


@pytest.mark.parametrize(
    "data",
    [
        content(SPARKS_OWN, "-", OURS, "17", '{"logOffset":3}'),
        content(f"0:{OURS}", "name:-", "b:c", version="v2"),
        content("{}", version="v1"),
    ],
)
def test_every_line_is_kept(data: bytes) -> None:
    entry = parse_offset_log(data)
    assert entry.to_bytes() == data
    assert entry.with_offsets(entry.offsets).to_bytes() == data


@pytest.mark.parametrize(
    ("version", "prefixes"), [("v1", ("", "", "")), ("v2", ("a:", "b:", "c:"))]
)
def test_only_the_requested_offsets_change(version: str, prefixes: tuple[str, ...]) -> None:
    """The spacing of each connector, the order of the partitions and all other lines are kept."""
    lines = [prefix + text for prefix, text in zip(prefixes, (SPARKS_OWN, OURS, "17"), strict=True)]
    entry = parse_offset_log(content(*lines, version=version))
    first, second, _ = (source.name for source in entry.sources)
    new = {
        (first, TopicPartition("u", 10)): 30,
        (second, TopicPartition("t", 1)): 0,
        (second, TopicPartition("other", 0)): 9,
    }
    changed = [
        prefixes[0] + '{"t":{"1":7,"0":5},"u":{"10":30}}',
        prefixes[1] + '{"t": {"1": 0, "0": 5}, "u": {"10": 1}}',
        prefixes[2] + "17",
    ]
    result = entry.with_offsets(new)
    assert result.to_bytes() == content(*changed, version=version)
    assert result == parse_offset_log(result.to_bytes())


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (METADATA, 1763771111111),
        ("", None),
        ("[]", None),
        ('{"batchTimestampMs":"x"}', None),
        ('{"batchTimestampMs":1e99}', None),
        ('{"batchTimestampMs":999999999999999999}', None),
    ],
)
def test_time_of_planning(metadata: str, expected: int | None) -> None:
    assert parse_offset_log(f"v1\n{metadata}\n-".encode()).planned_ms == expected
