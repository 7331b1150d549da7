"""Tests of the splitting of encoded batches."""

from __future__ import annotations

import pytest

from pyspark_kafka.records import Codec, encode
from pyspark_kafka.records.splitting import split
from tests.pyspark_kafka.records.encoded import (
    NO_PRODUCER,
    NOW,
    encoding,
    records,
    rows_of,
    state,
    values,
)

ROWS = rows_of(
    [None if i % 9 == 0 else b"v" * (i * 7 % 300) for i in range(300)],
    keys=[None if i % 5 == 0 else b"k%d" % i for i in range(300)],
    partitions=[6] * 300,
    timestamps=[NOW + i * i * 17 % 7001 - 3000 for i in range(300)],
    headers=[[("h", b"x"), ("", None)] * (i % 3) for i in range(300)],
)


@pytest.mark.parametrize("codec", Codec)
def test_halves_equal_encoded_batches(codec: Codec) -> None:
    level = 2 if codec in (Codec.GZIP, Codec.ZSTD) else None
    producer = state({6: 2**31 - 100}, is_transactional=True)
    options = encoding(producer=producer, codec=codec, level=level)
    (whole,) = encode(ROWS, options)
    first, second = split(whole, level=level)
    assert records(first) + records(second) == records(whole)
    count = first.record_count
    assert 130 < count < 170
    assert (first.base_sequence, second.base_sequence) == (2**31 - 100, count - 100)
    rest = encoding(
        producer=state({6: count - 100}, is_transactional=True), codec=codec, level=level
    )
    assert [first, second] == [*encode(ROWS[:count], options), *encode(ROWS[count:], rest)]


def test_splitting_down_to_single_records() -> None:
    left, found = [*encode(ROWS[:37], encoding())], []
    expected = records(left[0])
    while left:
        batch = left.pop(0)
        if batch.record_count > 1:
            left = split(batch) + left
        else:
            found.append(batch)
    assert [record for batch in found for record in records(batch)] == expected
    assert [batch.base_sequence for batch in found] == list(range(37))


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_record_with_most_of_the_bytes(at: int) -> None:
    made: list[bytes | None] = [b"x" * 100_000 if i == at else b"small" for i in range(10)]
    (whole,) = encode(rows_of(made), encoding())
    halves = split(whole)
    assert [value for half in values(halves) for value in half] == made
    assert len(halves) == 2


def test_no_sequences_without_idempotence() -> None:
    (whole,) = encode(ROWS, encoding(producer=NO_PRODUCER))
    assert [half.base_sequence for half in split(whole)] == [-1, -1]
