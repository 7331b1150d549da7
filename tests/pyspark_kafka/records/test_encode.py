"""Tests of the encoding of rows, with each implementation."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from pyspark_kafka.columns import PRODUCE_SCHEMA
from pyspark_kafka.errors import RowError
from pyspark_kafka.records import Codec, Encode
from pyspark_kafka.records.encoding import SEQUENCE_MAX
from pyspark_kafka.records.partitioning import murmur2
from tests.pyspark_kafka.records.batches import HEADER_BYTES, Row, records_section
from tests.pyspark_kafka.records.encoded import (
    NO_PRODUCER,
    NOW,
    encoding,
    header,
    records,
    rows_of,
    section,
    state,
    values,
)

PARTITIONS_FOR_KEYS = Path(__file__).with_name("partitions_for_keys.json")
"""Keys, murmur2 hashes, and partitions of 1, 2, 7 and 1000, from `PartitionsForKeys.java`."""

FIELDS = ["key", "value"]

# The size of a record with an empty value; a value below 57 bytes adds its own size.
EMPTY_BYTES = 7


def test_every_byte_of_a_batch(encode: Encode) -> None:
    rows = rows_of(
        [b"v", None, b""],
        keys=[b"k", None, b""],
        partitions=[5, 5, 5],
        timestamps=[NOW + 500, NOW, None],
        headers=[[("a", b"1"), ("a", None), ("é", b"")], None, []],
    )
    (batch,) = encode(rows, encoding(producer=state({5: 77}), now_ms=NOW + 70_000))
    expected = [
        Row(key=b"k", value=b"v", headers=[(b"a", b"1"), (b"a", None), ("é".encode(), b"")]),
        Row(key=None, value=None, timestamp_delta=-500),
        Row(key=b"", value=b"", timestamp_delta=69_500),
    ]
    assert bytes(section(batch)) == records_section(expected)[0]
    assert header(batch) == {
        "base_offset": 0,
        "length": len(batch.data) - 12,
        "partition_leader_epoch": -1,
        "magic": 2,
        "crc": crc32c(batch.data[21:]),
        "attributes": 0,
        "last_offset_delta": 2,
        "base_timestamp": NOW + 500,
        "max_timestamp": NOW + 70_000,
        "producer_id": 4711,
        "producer_epoch": 3,
        "base_sequence": 77,
        "record_count": 3,
    }
    assert (batch.partition, batch.base_sequence, batch.record_count) == (5, 77, 3)


def test_no_rows_are_no_batches(encode: Encode) -> None:
    empty = pa.RecordBatch.from_pylist([], schema=PRODUCE_SCHEMA)
    assert encode(empty, encoding()) == []


def test_missing_columns_are_null(encode: Encode) -> None:
    only_keys = pa.RecordBatch.from_pydict({"key": pa.array([b"k"])})
    (batch,) = encode(only_keys, encoding())
    nothing = {"key": None, "value": None, "headers": None, "timestamp": NOW}
    assert records(batch) == [nothing | {"key": b"k"}]
    all_null = pa.RecordBatch.from_pylist([{"topic": "x"}], schema=PRODUCE_SCHEMA)
    assert records(*encode(all_null, encoding())) == [nothing]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_binary_and_string_types(encode: Encode, kind: Any) -> None:
    texts = ["ä", None, "", "b" * 100]
    column = pa.array(texts, kind)
    pairs = pa.StructArray.from_arrays(
        [column.drop_null(), pa.array([None, "", "z"], kind)], FIELDS
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 3], pa.int32()), pairs)
    rows = pa.RecordBatch.from_pydict({"key": column, "value": column, "headers": headers})
    (batch,) = encode(rows, encoding(partition_count=1))
    found = records(batch)
    as_bytes = [None if text is None else text.encode() for text in texts]
    assert [(row["key"], row["value"]) for row in found] == [(data, data) for data in as_bytes]
    assert [row["headers"] for row in found] == [
        [{"key": "ä", "value": None}],
        None,
        [{"key": "", "value": b""}, {"key": "b" * 100, "value": b"z"}],
        None,
    ]


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("ms", tz="UTC")], ids=str
)
def test_timestamps_and_now(encode: Encode, kind: Any) -> None:
    stamps = pa.array([0, None, 2**47, 5], pa.int64()).cast(kind)
    rows = rows_of([b""] * 4).append_column("timestamp", stamps)
    (batch,) = encode(rows, encoding())
    assert [row["timestamp"] for row in records(batch)] == [0, NOW, 2**47, 5]
    assert (header(batch)["base_timestamp"], header(batch)["max_timestamp"]) == (0, 2**47)


def test_slices_are_encoded_without_the_other_rows(encode: Encode) -> None:
    whole = rows_of(
        [b"%d" % i if i % 3 else None for i in range(40)],
        keys=[b"k%d" % i if i % 4 else None for i in range(40)],
        partitions=[None if i % 5 else i % 8 for i in range(40)],
        timestamps=[None if i % 7 == 0 else i for i in range(40)],
        headers=[None if i % 6 == 0 else [(f"h{i}", b"x" * i)] * (i % 3) for i in range(40)],
    )
    for start, length in [(0, 40), (1, 39), (7, 9), (8, 8), (13, 27), (39, 1)]:
        part = whole.slice(start, length)
        copy = pa.RecordBatch.from_pylist(part.to_pylist(), schema=part.schema)
        assert encode(part, encoding()) == encode(copy, encoding())
    # The offsets of the child arrays differ from those of their parents.
    pairs = whole.column("headers").values
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 2, 5], pa.int32()), pairs.slice(3, 6))
    (batch,) = encode(pa.RecordBatch.from_pydict({"headers": lists.slice(1)}), encoding())
    assert [row["headers"] for row in records(batch)] == [
        pairs.slice(3, 2).to_pylist(),
        pairs.slice(5, 3).to_pylist(),
    ]


class TestPartitions:
    def test_a_partition_takes_precedence_over_the_key(self, encode: Encode) -> None:
        rows = rows_of([b"a", b"b", b"c"], keys=[b"k", b"k", b"k"], partitions=[7, 0, 7])
        found = encode(rows, encoding())
        assert [batch.partition for batch in found] == [7, 0]
        assert values(found) == [[b"a", b"c"], [b"b"]]

    def test_keys_are_partitioned_as_by_kafkas_producer(self, encode: Encode) -> None:
        known = json.loads(PARTITIONS_FOR_KEYS.read_text())
        keys = [bytes.fromhex(key) for key, _, _ in known]
        assert {len(key) for key in keys} == set(range(70))
        assert [murmur2(key) for key in keys] == [known_hash % 2**32 for _, known_hash, _ in known]
        for place, count in enumerate([1, 2, 7, 1000]):
            found = encode(rows_of(keys, keys=keys), encoding(partition_count=count))
            put = {record["key"]: b.partition for b in found for record in records(b)}
            expected = {bytes.fromhex(key): partitions[place] for key, _, partitions in known}
            assert put == expected

    def test_rows_without_a_key_change_partition_with_each_batch(self, encode: Encode) -> None:
        rows = rows_of([b"%d" % i for i in range(7)])
        two_rows = HEADER_BYTES + 2 * (EMPTY_BYTES + 1)
        found = encode(rows, encoding(unkeyed=(3, 1, 6), batch_bytes_max=two_rows))
        assert [batch.partition for batch in found] == [3, 1, 6, 3]
        assert values(found) == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"], [b"6"]]

    def test_rows_without_a_key_join_open_batches(self, encode: Encode) -> None:
        rows = rows_of(
            [b"a", b"b", b"c", b"d", b"e", b"f"], partitions=[1, None, 0, None, None, None]
        )
        two_rows = HEADER_BYTES + 2 * (EMPTY_BYTES + 1)
        found = encode(rows, encoding(unkeyed=(0, 1), batch_bytes_max=two_rows))
        assert [batch.partition for batch in found] == [1, 0, 0]
        assert values(found) == [[b"a", b"d"], [b"b", b"c"], [b"e", b"f"]]

    @pytest.mark.parametrize("partition", [-1, 8, 2**31 - 1, -(2**31)])
    def test_an_unknown_partition_is_an_error(self, encode: Encode, partition: int) -> None:
        rows = rows_of([b"", b""], partitions=[0, partition])
        with pytest.raises(RowError) as caught:
            encode(rows, encoding())
        assert caught.value.column == "partition"
        assert (caught.value.topic, caught.value.partition) == ("clicks", partition)
        assert "0 to 7" in caught.value.what


class TestBounds:
    def test_a_batch_is_filled_to_its_last_byte(self, encode: Encode) -> None:
        rows = rows_of([b"x" * 20] * 3)
        exactly = HEADER_BYTES + 3 * (EMPTY_BYTES + 20)
        for bytes_max, expected in [(exactly, [3]), (exactly - 1, [2, 1]), (exactly + 1, [3])]:
            found = encode(rows, encoding(batch_bytes_max=bytes_max))
            assert [batch.record_count for batch in found] == expected
            assert len(found[0].data) <= bytes_max

    @pytest.mark.parametrize("bytes_max", [1, 100])
    def test_a_larger_record_has_its_own_batch(self, encode: Encode, bytes_max: int) -> None:
        made = [b"a", b"x" * 5000, b"b", b"c"]
        found = encode(rows_of(made), encoding(batch_bytes_max=bytes_max))
        assert [value for batch in values(found) for value in batch] == made
        for batch in found:
            assert batch.record_count == 1 or len(batch.data) <= bytes_max
        assert [batch.record_count for batch in found] == (
            [1, 1, 2] if bytes_max == 100 else [1, 1, 1, 1]
        )

    def test_deltas_of_several_bytes_are_counted(self, encode: Encode) -> None:
        """Offset deltas of 64 and more take two bytes, those of 8192 and more take three.

        Timestamp deltas take up to ten bytes.
        """
        count = 9000
        rows = rows_of([b""] * count, timestamps=[(i * i) << (i % 20) for i in range(count)])
        (whole,) = encode(rows, encoding())
        for bytes_max in (len(whole.data), len(whole.data) - 1):
            first, *rest = encode(rows, encoding(batch_bytes_max=bytes_max))
            assert len(first.data) <= bytes_max
            assert first.record_count + sum(b.record_count for b in rest) == count
            assert bool(rest) == (bytes_max < len(whole.data))
        assert [row["timestamp"] for row in records(whole)] == [
            (i * i) << (i % 20) for i in range(count)
        ]

    @pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1 << 20, 10 << 20])
    def test_values_at_the_edges_of_their_lengths(self, encode: Encode, size: int) -> None:
        value = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
        (batch,) = encode(rows_of([value, b"end"]), encoding(batch_bytes_max=20 << 20))
        assert [record["value"] == value for record in records(batch)] == [True, False]

    def test_a_record_of_two_gibibytes(self, encode: Encode, tmp_path: Path) -> None:
        one_too_many = 2**31 + 12 - (HEADER_BYTES + 5 + 10)
        with (tmp_path / "holes").open("w+b") as file:
            file.truncate(2**31)
            hole = mmap.mmap(file.fileno(), 2**31, access=mmap.ACCESS_READ)
        column: Any = pa.Array.from_buffers(
            pa.large_binary(),
            2,
            [None, pa.py_buffer(struct.pack("<qqq", 0, 1, 1 + one_too_many)), pa.py_buffer(hole)],
        )
        rows = pa.RecordBatch.from_pydict({"value": column})
        with pytest.raises(RowError) as caught:
            encode(rows, encoding(unkeyed=(4,)))
        assert (caught.value.topic, caught.value.partition) == ("clicks", 4)
        assert str(2**31 + 12) in caught.value.what


class TestSequences:
    def test_sequences_of_a_partition_are_consecutive(self, encode: Encode) -> None:
        rows = rows_of([b""] * 9, partitions=[0, 1, 0, 1, 0, 1, 0, 1, 1])
        two_rows = HEADER_BYTES + 2 * EMPTY_BYTES
        options = encoding(producer=state({0: 5, 7: 9}), batch_bytes_max=two_rows)
        found = encode(rows, options)
        assert [(b.partition, b.base_sequence, b.record_count) for b in found] == [
            (0, 5, 2), (1, 0, 2), (0, 7, 2), (1, 2, 2), (1, 4, 1),
        ]  # fmt: skip
        assert [header(b)["base_sequence"] for b in found] == [b.base_sequence for b in found]
        assert options.producer.next_sequences == {0: 5, 7: 9}

    @pytest.mark.parametrize(("first", "second"), [(SEQUENCE_MAX - 1, 0), (SEQUENCE_MAX, 1)])
    def test_sequences_wrap_to_0(self, encode: Encode, first: int, second: int) -> None:
        two_rows = HEADER_BYTES + 2 * EMPTY_BYTES
        options = encoding(producer=state({0: first}), batch_bytes_max=two_rows)
        found = encode(rows_of([b""] * 4), options)
        assert [b.base_sequence for b in found] == [first, second]

    def test_no_sequences_without_idempotence(self, encode: Encode) -> None:
        rows = rows_of([b""] * 2, partitions=[0, 1])
        for batch in encode(rows, encoding(producer=NO_PRODUCER)):
            found = header(batch)
            assert batch.base_sequence == -1
            assert (found["producer_id"], found["producer_epoch"]) == (-1, -1)
            assert found["base_sequence"] == -1

    def test_transactional(self, encode: Encode) -> None:
        options = encoding(producer=state({}, is_transactional=True), codec=Codec.ZSTD)
        (batch,) = encode(rows_of([b""]), options)
        assert header(batch)["attributes"] == 0x10 | Codec.ZSTD


def test_referenced_batches_keep_their_memory(encode: Encode) -> None:
    """The kernel reuses memory only if no batch references it."""
    options = encoding(batch_bytes_max=200_000)
    held: list[tuple[memoryview, bytes]] = []
    for turn in range(30):
        found = encode(rows_of([bytes([65 + turn]) * 50_000] * 15), options)
        assert all(batch.data.readonly for batch in found)
        held += [(batch.data, bytes(batch.data)) for batch in found[turn % 2 :: 2]]
        del held[: turn % 4]
    assert len(held) > 20
    assert all(data == copied for data, copied in held)
