"""Tests of offsets in JSON: the format of Spark's connector, and its errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.offsets_json import (
    OffsetFormatError,
    from_json_object,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    to_json_object,
)
from tests.pyspark_kafka.source.planning import tp

PARTITIONS = st.builds(
    TopicPartition,
    st.text("abc.-_0", min_size=1, max_size=8),
    st.integers(0, 2**31 - 1),
)


def test_offsets_are_written_in_the_format_of_sparks_connector() -> None:
    offsets = {tp("b", 10): 7, tp("b", 2): 3, tp("a"): 2**62}
    assert json.dumps(to_json_object(offsets)) == (
        '{"a": {"0": 4611686018427387904}, "b": {"2": 3, "10": 7}}'
    )


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)))
def test_offsets_survive_a_round_trip(offsets: dict[TopicPartition, int]) -> None:
    assert from_json_object(json.loads(json.dumps(to_json_object(offsets)))) == offsets


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
    | st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers() | st.text()))
)
def test_any_json_is_valid_or_an_offset_format_error(value: object) -> None:
    try:
        offsets = from_json_object(value)
    except OffsetFormatError:
        return
    assert all(p.topic and p.partition >= 0 and offset >= 0 for p, offset in offsets.items())


def test_partitions_offsets_and_timestamps_of_options() -> None:
    assert parse_offsets('{"t":{"0":23,"1":-1,"2":-2}}') == {
        tp("t", 0): 23,
        tp("t", 1): -1,
        tp("t", 2): -2,
    }
    assert parse_partitions('{"t":[0,1,1]}') == {tp("t", 0), tp("t", 1)}
    assert parse_timestamps('{"t":{"0":1700000000000}}') == {tp("t"): 1700000000000}


@pytest.mark.parametrize(
    ("text", "topic", "partition", "fact"),
    [
        ("{", None, None, "JSON"),
        ('{"t":{"0":1},}', None, None, "JSON"),
        ("[]", None, None, ""),
        ("{}", None, None, ""),
        ('{"t":5}', "t", None, ""),
        ('{"t":{}}', "t", None, ""),
        ('{"":{"0":1}}', None, None, ""),
        ('{"t":{"x":1}}', "t", None, "'x'"),
        ('{"t":{"-1":1}}', "t", None, "'-1'"),
        ('{"t":{"--1":1}}', "t", None, "'--1'"),
        ('{"t":{"99999999999":1}}', "t", None, "'99999999999'"),
        ('{"t":{"0":"1"}}', "t", 0, "'1'"),
        ('{"t":{"0":1.5}}', "t", 0, "1.5"),
        ('{"t":{"0":true}}', "t", 0, "True"),
        ('{"t":{"0":-3}}', "t", 0, "-3"),
        ('{"t":{"0":9223372036854775808}}', "t", 0, "9223372036854775808"),
        (f'{{"t":{{"0":{"9" * 5_000}}}}}', None, None, ""),
        ('{"t":{"0":1,"0":2}}', None, None, "'0'"),
        ('{"t":{"0":1,"00":2}}', "t", 0, "t-0"),
        ('{"t":{"0":1},"t":{"1":2}}', None, None, "'t'"),
        ("[" * 100_000, None, None, ""),
    ],
)
def test_invalid_offsets(text: str, topic: str | None, partition: int | None, fact: str) -> None:
    with pytest.raises(OffsetFormatError) as caught:
        parse_offsets(text)
    assert fact in str(caught.value)
    assert (caught.value.topic, caught.value.partition) == (topic, partition)
    assert parse_offsets(caught.value.example)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ('{"t":[]}', "'t'"),
        ('{"t":{"0":1}}', "'t'"),
        ('{"t":["a"]}', "'a'"),
        ('{"t":[-1]}', "-1"),
        ('{"t":[true]}', "True"),
    ],
)
def test_invalid_partitions(text: str, fact: str) -> None:
    with pytest.raises(OffsetFormatError) as caught:
        parse_partitions(text)
    assert fact in str(caught.value)
    assert caught.value.topic == "t"
    assert parse_partitions(caught.value.example)


def test_offsets_of_a_checkpoint_are_not_negative() -> None:
    with pytest.raises(OffsetFormatError, match="-1") as caught:
        from_json_object({"t": {"0": -1}})
    assert (caught.value.topic, caught.value.partition) == ("t", 0)
