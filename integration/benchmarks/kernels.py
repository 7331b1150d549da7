"""Benchmarks of decoding and encoding record batches, without Spark.

Measures the implementations of `pyspark_kafka.records`, the upper bounds of their throughput, and
the equivalent functions of other clients. Only the benchmark of confluent-kafka connects to a
broker.

Invariant: all decoders process bytes that one broker has stored. The bytes are split as in Fetch
responses. All encoders process the same values. Each measured implementation returns the number of
records that it processed.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from integration.benchmarks.measure import Sample, measure_process
from integration.benchmarks.payload import DISTINCT, values
from integration.benchmarks.resources import WORK_TIMEOUT_S, Resources
from integration.benchmarks.topics import BATCH_RECORDS, Contents, record_counts, stored_chunks

Implementation = Literal["cython", "pure"]
Client = Literal["aiokafka", "kafka-python"]

FETCH_BYTES: Final = 4 * 1024 * 1024
"""The fetch size of the native engine."""

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_KERNEL: Final = "pyspark_kafka.records._kernel"
_DECODERS: Final = {"cython": _KERNEL, "pure": "pyspark_kafka.records._pure"}
_ENCODERS: Final = {"cython": _KERNEL, "pure": "pyspark_kafka.records._pure_encode"}
_CLIENTS: Final = {"aiokafka": "aiokafka.record", "kafka-python": "kafka.record"}
_ENCODED_ROWS: Final = 10 * BATCH_RECORDS
_TIMESTAMP_MS: Final = 1_700_000_000_000
_MEASURED_S: Final = 0.3
_NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatches(ABC):
    """One side of a comparison, which processes stored record batches.

    `share` is the fraction of the records to process. It is lower for slow implementations.
    """

    contents: Contents
    share: float = 1.0

    @abstractmethod
    def work(self, topic: str, chunks: Sequence[bytes], records: int) -> int:
        """Process all chunks once and return the number of records in them."""

    def run(self, resources: Resources, records: int) -> Sample:
        wanted = max(int(records * self.share), 1)
        topic = resources.topic(self.contents, wanted)
        directory = resources.cluster.data_directory(resources.cluster.broker_ids[0])
        chunks = stored_chunks(directory, topic, chunk_bytes=FETCH_BYTES)

        stored = record_counts(chunks)
        found = self.work(topic, chunks, stored)
        if not found == stored == wanted:
            raise ValueError(f"{found} of {wanted} records were decoded; {stored} are stored")
        return measure_process(lambda: repeated(lambda: self.work(topic, chunks, stored)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding(StoredBatches):
    """One side of a comparison, which decodes record batches to Arrow batches of all 7 columns."""

    implementation: Implementation = "cython"

    def work(self, topic: str, chunks: Sequence[bytes], records: int) -> int:  # noqa: ARG002
        from pyspark_kafka.records import DecodeRequest  # noqa: PLC0415

        decode = importlib.import_module(_DECODERS[self.implementation]).decode
        rows = position = 0
        for chunk in chunks:
            wanted = DecodeRequest(
                topic=topic,
                partition=0,
                start_offset=position,
                end_offset=_NO_END,
                columns=COLUMNS,
                aborted=(),
            )
            decoded = decode(chunk, wanted)
            rows += sum(batch.num_rows for batch in decoded.batches)
            position = decoded.next_offset
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum(StoredBatches):
    """One side of a comparison, which only calculates the CRC of all bytes with the kernel."""

    def work(self, topic: str, chunks: Sequence[bytes], records: int) -> int:  # noqa: ARG002
        crc_of = importlib.import_module(_KERNEL).crc_of
        for chunk in chunks:
            crc_of(chunk)
        return records


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying(StoredBatches):
    """One side of a comparison, which copies all bytes, as `memcpy` does."""

    def work(self, topic: str, chunks: Sequence[bytes], records: int) -> int:  # noqa: ARG002
        copy = _scratch()
        for chunk in chunks:
            copy[: len(chunk)] = chunk
        return records


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherClientDecoding(StoredBatches):
    """One side of a comparison, which decodes record batches with another client library.

    The client checks CRCs and creates an object per record.
    """

    client: Client

    def work(self, topic: str, chunks: Sequence[bytes], records: int) -> int:  # noqa: ARG002
        memory_records = _of_client(self.client, "memory_records").MemoryRecords
        rows = 0
        for chunk in chunks:
            left = memory_records(chunk)
            while (batch := left.next_batch()) is not None:
                if not batch.validate_crc():
                    raise ValueError("a valid batch failed the CRC check")
                for record in batch:
                    rows += record.value is not None
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """A benchmark workload that connects to the broker and consumes a topic with confluent-kafka.

    With `fields`, it reads the seven fields of each message, as a program that builds rows would.
    Otherwise, it only checks each message for an error.
    """

    contents: Contents
    fields: bool = False
    share: float = 1.0

    def run(self, resources: Resources, records: int) -> Sample:
        wanted = max(int(records * self.share), 1)
        topic = resources.topic(self.contents, wanted)
        servers = resources.cluster.bootstrap_servers
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "log_level": 2,
                "group.id": "benchmark",
                "enable.auto.commit": False,
                # By default, the client stops fetching for one second whenever its queue is full.
                "fetch.queue.backoff.ms": 5,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            return measure_process(lambda: self._consume(consumer, wanted))
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer, wanted: int) -> int:
        rows = 0
        deadline_s = time.monotonic() + WORK_TIMEOUT_S
        while rows < wanted:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{rows} of {wanted} records read within {WORK_TIMEOUT_S:g} s")
            for message in consumer.consume(10_000, timeout=1.0):
                rows += message.error() is None
                if self.fields:
                    message.key()
                    message.value()
                    message.topic()
                    message.partition()
                    message.offset()
                    message.timestamp()
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Values(ABC):
    """One side of a comparison, which encodes values as record batches.

    `share` is the fraction of the records to encode. It is lower for slow implementations.
    """

    value_bytes: int
    share: float = 1.0

    @abstractmethod
    def work(self, records: int) -> int:
        """Encode `records` values and return the number of records in the batches."""

    def run(self, resources: Resources, records: int) -> Sample:  # noqa: ARG002
        wanted = max(int(records * self.share) // _ENCODED_ROWS, 1) * _ENCODED_ROWS
        found = self.work(wanted)
        if found != wanted:
            raise ValueError(f"{found} of {wanted} records were encoded")
        return measure_process(lambda: repeated(lambda: self.work(wanted)))

    def pool(self) -> list[bytes]:
        """Return values for one Arrow batch of the size that Spark uses."""
        pool = values(self.value_bytes)
        return [pool[i % DISTINCT] for i in range(_ENCODED_ROWS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding(Values):
    """One side of a comparison, which encodes Arrow batches as record batches."""

    implementation: Implementation = "cython"

    def work(self, records: int) -> int:
        encode = importlib.import_module(_ENCODERS[self.implementation]).encode
        contract = importlib.import_module("pyspark_kafka.records.encoding")
        rows = pa.RecordBatch.from_pydict({"value": pa.array(self.pool(), pa.binary())})
        encoding = contract.Encoding(
            topic="bench",
            partition_count=1,
            unkeyed=(0,),
            producer=contract.ProducerState(producer_id=1, producer_epoch=0, next_sequences={}),
            now_ms=_TIMESTAMP_MS,
            batch_bytes_max=BATCH_RECORDS * (self.value_bytes + 10),
        )
        encoded = 0
        for _ in range(records // rows.num_rows):
            encoded += sum(batch.record_count for batch in encode(rows, encoding))
        return encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherClientEncoding(Values):
    """One side of a comparison, which appends every record to another client's batch builder."""

    client: Client

    def work(self, records: int) -> int:
        builder_class = _of_client(self.client, "default_records").DefaultRecordBatchBuilder
        pool = self.pool()[:BATCH_RECORDS]
        encoded = 0
        for _ in range(records // len(pool)):
            builder = builder_class(
                magic=2,
                compression_type=0,
                is_transactional=0,
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                batch_size=1 << 24,
            )
            for offset, value in enumerate(pool):
                builder.append(offset, _TIMESTAMP_MS, None, value, [])
            encoded += record_counts([bytes(builder.build())])
        return encoded


def repeated(work: Callable[[], int]) -> int:
    """Repeat `work` for long enough to be measured. Return the number of processed records."""
    until_s = time.perf_counter() + _MEASURED_S
    done = work()
    while time.perf_counter() < until_s:
        done += work()
    return done


@lru_cache(maxsize=1)
def _scratch() -> memoryview:
    """Return a buffer of `2 * FETCH_BYTES` bytes, because a chunk can exceed `FETCH_BYTES`."""
    return memoryview(bytearray(2 * FETCH_BYTES))


def _of_client(client: Client, module: str) -> Any:
    return importlib.import_module(f"{_CLIENTS[client]}.{module}")
