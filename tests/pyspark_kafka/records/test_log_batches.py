"""Tests of log batches: control batches, transactions, and records that are decoded on use."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka.errors import CorruptBatchError, KafkaError
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.transactions import TransactionResult
from pyspark_kafka.records.contract import DecodeError, DecodeFailure
from pyspark_kafka.records.log_batches import log_batches
from tests.pyspark_kafka.records.batches import (
    ABORT,
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    ZSTD,
    Row,
    batch,
    decode_request,
    marker,
    plain,
    raw_batch,
)

T = TypeVar("T")
R = TypeVar("R")


def all_of(generator: Generator[T, None, R]) -> tuple[list[T], R]:
    """Return the yielded values and the return value of a generator."""
    found: list[T] = []
    while True:
        try:
            found.append(next(generator))
        except StopIteration as end:
            return found, end.value


def walk(data: bytes, start: int = 0, end: int = 1 << 40) -> tuple[list[LogBatch], int]:
    return all_of(log_batches(data, decode_request(start, end)))


LOG = (
    batch([Row(key=b"k", value=None), Row(value=b"v")], attributes=TRANSACTIONAL, producer_id=7)
    + plain([b"open"], base_offset=2, attributes=TRANSACTIONAL, producer_id=8)
    + marker(ABORT, base_offset=3, producer_id=7)
    + plain([b"x"], base_offset=4, codec=ZSTD, producer_id=9)
    + marker(COMMIT, base_offset=6, producer_id=8)
)


def test_every_batch_is_returned() -> None:
    found, next_offset = walk(LOG)
    assert next_offset == 7
    assert [
        (b.base_offset, b.last_offset, b.producer.producer_id, b.is_transactional, b.ends_with)
        for b in found
    ] == [
        (0, 1, 7, True, None),
        (2, 2, 8, True, None),
        (3, 3, 7, True, TransactionResult.ABORT),
        (4, 4, 9, False, None),
        (6, 6, 8, True, TransactionResult.COMMIT),
    ]
    assert [list(b.records) for b in found] == [
        [(b"k", None), (None, b"v")],
        [(None, b"open")],
        [],
        [(None, b"x")],
        [],
    ]
    first = found[0].records
    assert (len(first), first[-1], list(first[1:])) == (2, (None, b"v"), [(None, b"v")])


@pytest.mark.parametrize(
    ("start", "end", "bases", "next_offset"),
    [
        (1, 3, [0, 2], 3),
        (2, 4, [2, 3], 4),
        (4, 6, [4], 6),
        (5, 7, [6], 7),
        (7, 9, [], 7),
        (3, 5, [3, 4], 5),
    ],
)
def test_batches_that_overlap_the_range(
    start: int, end: int, bases: list[int], next_offset: int
) -> None:
    found, following = walk(LOG, start, end)
    assert [one.base_offset for one in found] == bases
    assert following == next_offset


def test_an_incomplete_batch_is_ignored() -> None:
    whole, _ = walk(LOG)
    for length in range(len(LOG)):
        found, next_offset = walk(LOG[:length])
        count = len(found)
        assert [b.base_offset for b in found] == [b.base_offset for b in whole[:count]]
        assert next_offset == (whole[count - 1].last_offset + 1 if count else 0)


def test_records_are_decoded_on_use() -> None:
    damaged = raw_batch(b"\xff" * 9, count=1, last_offset_delta=0, producer_id=5)
    found, next_offset = walk(damaged + marker(COMMIT, base_offset=1, producer_id=5))
    assert next_offset == 2
    assert [one.ends_with for one in found] == [None, TransactionResult.COMMIT]
    with pytest.raises(CorruptBatchError, match="clicks-3") as caught:
        len(found[0].records)
    assert caught.value.offset == 0


def test_a_corrupt_batch_is_an_error() -> None:
    data = bytearray(LOG)
    data[30] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC") as caught:
        walk(bytes(data))
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("clicks", 3, 0)


def test_control_batches_without_a_result() -> None:
    """The control batches have an unknown type, or compaction has emptied them."""
    unknown = marker(6, base_offset=0, producer_id=7)
    emptied = raw_batch(
        b"",
        count=0,
        last_offset_delta=0,
        base_offset=1,
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=7,
    )
    found, next_offset = walk(unknown + emptied)
    assert [(one.ends_with, list(one.records)) for one in found] == [(None, []), (None, [])]
    assert next_offset == 2


def test_a_marker_without_a_key_is_corrupt() -> None:
    keyless = batch([Row()], attributes=CONTROL | TRANSACTIONAL, producer_id=7)
    with pytest.raises(CorruptBatchError) as caught:
        walk(keyless)
    assert isinstance(caught.value.__context__, DecodeError)
    assert caught.value.__context__.failure is DecodeFailure.MARKER


@given(st.data())
def test_corrupt_bytes_are_batches_or_a_kafka_error(data: st.DataObject) -> None:
    found = bytearray(LOG)
    for _ in range(data.draw(st.integers(1, 3))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    try:
        batches, _ = walk(bytes(found))
        for one in batches:
            len(one.records)
    except KafkaError as error:
        assert "clicks-3" in str(error)  # noqa: PT017
