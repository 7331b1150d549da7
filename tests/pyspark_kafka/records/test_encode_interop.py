"""Tests that brokers accept our batches and that other clients read them, with every codec.

They show that the written format is Kafka's, and is not only readable by our own decoder. The
cluster of the run provides the broker and the tools; with `--cluster=kafka` they are Apache
Kafka's.
"""

from __future__ import annotations

import base64
import random
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from integration.kafka_tools import KafkaTools
from integration.raw import RawConnection
from pyspark_kafka.records import Codec, EncodedBatch, ProducerState, encode
from pyspark_kafka.records.splitting import split
from tests.conformance.wire import append
from tests.pyspark_kafka.records.encoded import PRODUCER, encoding, records, rows_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python raises it on import
    from kafka import codec as kafka_python_codecs
    from kafka.record.memory_records import MemoryRecords

Topic = Callable[..., str]

TIMEOUT_S = 30.0
NOW = int(time.time() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record whose fields are text, so that the console consumer shows them unchanged."""

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]


def text(seed: int, size: int) -> str:
    """Return incompressible text, which LZ4 stores uncompressed."""
    return base64.b85encode(random.Random(seed).randbytes(size)).decode()[:size]


VALUES: Sequence[str | None] = (
    "plain", None, "", "ä€😀", "x" * 200_000, text(1, 150_000), text(2, 70_000) + "y" * 70_000,
)  # fmt: skip
KEYS: Sequence[str | None] = (None, "key", "", None, "ключ", "k" * 300, None)
HEADERS: Sequence[tuple[tuple[str, str | None], ...]] = (
    (), (("h", "1"),), (), (("é", ""), ("é", "again"), ("null", None)), (), (("long", "z" * 999),),
    (),
)  # fmt: skip


TINY = rows_of([b""])
"""Shorter, when compressed with snappy, than the header of Java's snappy format."""


def rows_over(start: int) -> pa.RecordBatch:
    count = 2 * len(VALUES)
    return rows_of(
        [None if value is None else value.encode() for value in VALUES] * 2,
        keys=[None if key is None else key.encode() for key in KEYS] * 2,
        timestamps=[None if i == 3 else NOW + start - 5 * i for i in range(count)],
        headers=[[(k, None if v is None else v.encode()) for k, v in row] for row in HEADERS] * 2,
    )


def encoded(codec: Codec, producer: ProducerState, rows: pa.RecordBatch) -> list[EncodedBatch]:
    batches = encode(
        rows,
        encoding(
            partition_count=2,
            unkeyed=(1, 0),
            producer=producer,
            now_ms=NOW,
            batch_bytes_max=300_000,
            codec=codec,
        ),
    )
    assert sum(batch.record_count for batch in batches) == rows.num_rows
    return batches


def read_by_us(batch: EncodedBatch, base_offset: int) -> list[Record]:
    return [
        Record(
            partition=batch.partition,
            offset=base_offset + index,
            timestamp=row["timestamp"],
            key=as_text(row["key"]),
            value=as_text(row["value"]),
            headers=tuple((h["key"], as_text(h["value"])) for h in row["headers"] or ()),
        )
        for index, row in enumerate(records(batch))
    ]


def as_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def write(raw: RawConnection, topic: str, codecs: Iterable[Codec]) -> list[Record]:
    """Send batches of each codec as one idempotent producer; return the expected records."""
    answer = raw.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
    written = {0: 0, 1: 0}
    expected: list[Record] = []
    for start, codec in enumerate(codecs):
        for rows in (rows_over(start), TINY):
            producer = ProducerState(
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
                next_sequences=dict(written),
            )
            for batch in encoded(codec, producer, rows):
                partition = batch.partition
                base_offset = append(raw, topic, bytes(batch.data), partition=partition)
                assert base_offset == written[partition]
                expected += read_by_us(batch, base_offset)
                written[partition] += batch.record_count
    assert min(written.values()) > 0
    return sorted(expected, key=lambda record: (record.partition, record.offset))


def read_by_librdkafka(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "group.id": "encode-interop",
            "check.crcs": "true",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
        found: list[Record] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            message: Any
            for message in consumer.consume(count, 1.0):
                assert message.error() is None, message.error()
                found.append(
                    Record(
                        partition=message.partition(),
                        offset=message.offset(),
                        timestamp=message.timestamp()[1],
                        key=as_text(message.key()),
                        value=as_text(message.value()),
                        headers=tuple(
                            (name, as_text(value)) for name, value in message.headers() or ()
                        ),
                    )
                )
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def read_by_kafka(tools: KafkaTools, topic: str, count: int) -> list[list[str]]:
    """Return the columns of Kafka's console consumer, which prints `null` for null."""
    shown = ("timestamp", "partition", "offset", "headers", "key", "value")
    output = tools.run(
        "console-consumer",
        *("--topic", topic, "--from-beginning", "--max-messages", str(count)),
        *(part for name in shown for part in ("--formatter-property", f"print.{name}=true")),
    )
    return [line.split("\t") for line in output.stdout.splitlines()]


def as_kafka_shows(record: Record) -> list[str]:
    headers = ",".join(f"{name}:{null(value)}" for name, value in record.headers)
    return [
        f"CreateTime:{record.timestamp}",
        f"Partition:{record.partition}",
        f"Offset:{record.offset}",
        headers or "NO_HEADERS",
        null(record.key),
        null(record.value),
    ]


def null(data: str | None) -> str:
    return "null" if data is None else data


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_reads_every_codec(
    bootstrap: str, raw: RawConnection, topic: Topic, codec: Codec
) -> None:
    name = topic(partitions=2)
    expected = write(raw, name, [codec])
    contents = [(row.key, row.value, row.headers) for row in expected]
    sent = [*zip(KEYS, VALUES, HEADERS, strict=True), *zip(KEYS, VALUES, HEADERS, strict=True)]
    sent.append((None, "", ()))
    assert sorted(contents, key=str) == sorted(sent, key=str)
    assert read_by_librdkafka(bootstrap, name, len(expected)) == expected


@pytest.mark.kafka_only  # the reference broker does not recompress
def test_a_broker_that_recompresses_reads_every_codec(
    bootstrap: str, raw: RawConnection, topic: Topic
) -> None:
    name = topic(partitions=2, **{"compression.type": "zstd"})
    expected = write(raw, name, Codec)
    assert read_by_librdkafka(bootstrap, name, len(expected)) == expected


@pytest.mark.full  # the test starts Java twice
@pytest.mark.slow
def test_kafkas_console_consumer_reads_every_codec(
    bootstrap: str, raw: RawConnection, topic: Topic
) -> None:
    tools = KafkaTools(bootstrap)
    name = topic(partitions=2)
    expected = write(raw, name, Codec)
    with tools:
        found = read_by_kafka(tools, name, len(expected))
    assert sorted(found) == sorted(as_kafka_shows(record) for record in expected)


def test_split_batches_are_accepted(bootstrap: str, raw: RawConnection, topic: Topic) -> None:
    """The broker checks that the sequences of the halves are consecutive."""
    name = topic(partitions=2)
    answer = raw.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
    sequence, expected = 0, []
    producer = ProducerState(
        producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, next_sequences={}
    )
    batches = [b for b in encoded(Codec.ZSTD, producer, rows_over(0)) if b.partition == 1]
    assert any(batch.record_count > 1 for batch in batches)
    for batch in batches:
        for half in split(batch) if batch.record_count > 1 else [batch]:
            base_offset = append(raw, name, bytes(half.data), partition=1)
            assert base_offset == half.base_sequence == sequence
            expected += read_by_us(half, base_offset)
            sequence += half.record_count
    assert read_by_librdkafka(bootstrap, name, len(expected)) == expected


KAFKA_PYTHON_HAS = {
    Codec.NONE: True,
    Codec.GZIP: kafka_python_codecs.has_gzip(),
    Codec.SNAPPY: kafka_python_codecs.has_snappy(),
    Codec.LZ4: kafka_python_codecs.has_lz4(),
    Codec.ZSTD: kafka_python_codecs.has_zstd(),
}
"""kafka-python needs an optional package for each of these codecs."""


@pytest.mark.parametrize("codec", [codec for codec, there in KAFKA_PYTHON_HAS.items() if there])
def test_kafka_python_reads_every_codec(codec: Codec) -> None:
    for batch in encoded(codec, PRODUCER, rows_over(0)):
        found = MemoryRecords(bytes(batch.data)).next_batch()
        assert found.validate_crc()
        assert (found.producer_id, found.base_sequence) == (4711, batch.base_sequence)
        assert [
            Record(
                partition=batch.partition,
                offset=record.offset,
                timestamp=record.timestamp,
                key=as_text(record.key),
                value=as_text(record.value),
                headers=tuple((name, as_text(value)) for name, value in record.headers),
            )
            for record in found
        ] == read_by_us(batch, 0)
