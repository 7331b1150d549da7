"""The JSON of offsets is that of Spark's connector, and what is wrong with it is said."""

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


def test_text_is_that_of_sparks_connector() -> None:
    offsets = {tp("b", 10): 7, tp("b", 2): 3, tp("a"): 2**62}
    assert json.dumps(to_json_object(offsets)) == (
        '{"a": {"0": 4611686018427387904}, "b": {"2": 3, "10": 7}}'
    )


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)))
def test_round_trip(offsets: dict[TopicPartition, int]) -> None:
    assert from_json_object(json.loads(json.dumps(to_json_object(offsets)))) == offsets


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
    | st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers() | st.text()))
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        offsets = from_json_object(value)
    except OffsetFormatError:
        return
    assert all(p.topic and p.partition >= 0 and offset >= 0 for p, offset in offsets.items())


def test_what_users_write() -> None:
    assert parse_offsets('{"t":{"0":23,"1":-1,"2":-2}}') == {
        tp("t", 0): 23,
        tp("t", 1): -1,
        tp("t", 2): -2,
    }
    assert parse_partitions('{"t":[0,1,1]}') == {tp("t", 0), tp("t", 1)}
    assert parse_timestamps('{"t":{"0":1700000000000}}') == {tp("t"): 1700000000000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"not JSON .* at character 2"),
        ('{"t":{"0":1},}', r"not JSON .* at character 1[34]"),
        ("[]", r"expected e\.g\. \{"),
        ("{}", r"expected e\.g\. \{"),
        ('{"t":5}', r"topic 't' must have its partitions"),
        ('{"t":{}}', r"topic 't' must have its partitions"),
        ('{"":{"0":1}}', r"must have a name"),
        ('{"t":{"x":1}}', r"partition 'x', which is not a number from 0"),
        ('{"t":{"-1":1}}', r"partition '-1'"),
        ('{"t":{"--1":1}}', r"partition '--1'"),
        ('{"t":{"99999999999":1}}', r"partition '99999999999'"),
        ('{"t":{"0":"1"}}', r"t-0 has '1', which is no number"),
        ('{"t":{"0":1.5}}', r"t-0 has 1\.5"),
        ('{"t":{"0":true}}', r"t-0 has True"),
        ('{"t":{"0":-3}}', r"t-0 has -3, which is not from -2"),
        ('{"t":{"0":9223372036854775808}}', r"not from -2 to 9223372036854775807"),
        ('{"t":{"0":1,"0":2}}', r"names '0' twice"),
        ('{"t":{"0":1,"00":2}}', r"names t-0 twice"),
        ('{"t":{"0":1},"t":{"1":2}}', r"names 't' twice"),
        ("[" * 100_000, r"nested too deep"),
    ],
)
def test_bad_offsets(text: str, message: str) -> None:
    with pytest.raises(OffsetFormatError, match=message):
        parse_offsets(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"t":[]}', "must have a list of partitions"),
        ('{"t":{"0":1}}', "must have a list of partitions"),
        ('{"t":["a"]}', "partition 'a'"),
        ('{"t":[-1]}', "partition -1"),
        ('{"t":[true]}', "partition True"),
    ],
)
def test_bad_partitions(text: str, message: str) -> None:
    with pytest.raises(OffsetFormatError, match=message):
        parse_partitions(text)


def test_checkpoint_offsets_are_never_symbolic() -> None:
    with pytest.raises(OffsetFormatError, match="t-0 has -1"):
        from_json_object({"t": {"0": -1}})
