"""Tests that both engines return the same rows for the same ranges."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import EngineOption
from tests.conformance.eventually import eventually
from tests.conftest import ClusterFactory, TopicFactory
from tests.pyspark_kafka.client.records import TIMEOUT_S, Record, options, producer, put

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ENGINES: tuple[EngineOption, ...] = ("librdkafka", "native")
ALL_COLUMNS = tuple(SOURCE_SCHEMA.names)
MEBIBYTE = 1024 * 1024
LARGE = {"max.message.bytes": str(12 * MEBIBYTE)}
LARGE_PRODUCER = {"message.max.bytes": 11 * MEBIBYTE}
RANGES = 12
SEED = 20_261_121


def some_records(chance: random.Random, count: int) -> list[Record]:
    """Return records of 1 byte to several kilobytes, some with nulls, empty fields or headers."""

    def field() -> bytes | None:
        size = chance.choice([0, 1, 7, 31, 32, 33, 100, 129, 4_000])
        return None if chance.random() < 0.1 else chance.randbytes(size)

    def headers() -> tuple[tuple[str, bytes | None], ...]:
        if chance.random() < 0.7:
            return ()
        return tuple((chance.choice("aäb"), field()) for _ in range(chance.randint(1, 4)))

    return [
        Record(
            key=field(),
            value=field(),
            headers=headers(),
            timestamp_ms=1_700_000_000_000 + chance.randint(-1000, 1000),
        )
        for _ in range(count)
    ]


def fill(bootstrap: str, topic: str, chance: random.Random) -> None:
    """Write batches with each codec, then records of up to 10 MiB."""
    for codec in CODECS:
        settings = {"compression.type": codec, **LARGE_PRODUCER}
        one = producer(bootstrap, **settings)
        for _ in range(3):
            put(one, topic, some_records(chance, chance.randint(1, 60)))
        put(one, topic, [Record(value=chance.randbytes(MEBIBYTE))])
    put(
        producer(bootstrap, **LARGE_PRODUCER),
        topic,
        [Record(value=chance.randbytes(10 * MEBIBYTE)), *some_records(chance, 5)],
    )


def rows(
    client: KafkaReadClient, wanted: FetchRange, columns: tuple[str, ...], level: IsolationLevel
) -> list[dict[str, Any]]:
    return [row for batch in client.fetch(wanted, columns, level) for row in batch.to_pylist()]


def end_of(client: KafkaReadClient, partition: TopicPartition, level: IsolationLevel) -> int:
    end = client.list_offsets({partition: LATEST}, level)[partition]
    assert end is not None
    return end


def assert_agreement(bootstrap: str, topic: str, chance: random.Random) -> int:
    """Compare both engines on the partition and on random ranges of it; return the row count."""
    partition = TopicPartition(topic, 0)
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    with (
        open_client(options(bootstrap, engine="librdkafka")) as librdkafka,
        open_client(options(bootstrap, engine="native")) as native,
    ):
        for level in IsolationLevel:
            end = end_of(native, partition, level)
            assert end == end_of(librdkafka, partition, level)
            assert native.list_offsets({partition: EARLIEST}, level)[partition] == 0
            cuts = [(0, end)]
            cuts += [
                tuple(sorted(chance.sample(range(end + 1), 2)))  # type: ignore[misc]
                for _ in range(RANGES)
            ]
            for start, stop in cuts:
                some = tuple(chance.sample(ALL_COLUMNS, chance.randint(1, len(ALL_COLUMNS))))
                columns = ALL_COLUMNS if (start, stop) == (0, end) else some
                wanted = FetchRange(topic_partition=partition, start_offset=start, end_offset=stop)
                by_native = rows(native, wanted, columns, level)
                assert by_native == rows(librdkafka, wanted, columns, level), (wanted, level)
                found[start, stop, level] = by_native
        return len(found[0, end_of(native, partition, level), level])


@pytest.mark.slow
def test_of_every_codec_and_size(bootstrap: str, topic: TopicFactory) -> None:
    chance = random.Random(SEED)
    name = topic(**LARGE)
    fill(bootstrap, name, chance)
    assert assert_agreement(bootstrap, name, chance) > 100


@pytest.mark.kafka_only
def test_of_transactions(
    bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    """Two producers write overlapping and separate transactions, and plain records."""
    chance = random.Random(SEED)
    name = topic(**LARGE)
    settings = {"compression.type": chance.choice(CODECS)}
    ones = [producer(bootstrap, transactional_id=unique_name(), **settings) for _ in range(2)]
    for one in ones:
        one.init_transactions(TIMEOUT_S)
    for _ in range(12):
        both = chance.sample(ones, chance.randint(1, 2))
        for one in both:
            one.begin_transaction()
        for _ in range(chance.randint(1, 4)):
            put(chance.choice(both), name, some_records(chance, chance.randint(1, 20)))
        put(producer(bootstrap), name, some_records(chance, 2))
        for one in both:
            if chance.random() < 0.5:
                one.commit_transaction(TIMEOUT_S)
            else:
                one.abort_transaction(TIMEOUT_S)
    partition = TopicPartition(name, 0)
    with open_client(options(bootstrap, engine="native")) as client:
        # The coordinator responses EndTxn before the markers are written.
        eventually(lambda: len({end_of(client, partition, level) for level in IsolationLevel}) == 1)
    assert assert_agreement(bootstrap, name, chance) > 20


@pytest.mark.slow
def test_compacted_log(cluster_with: ClusterFactory, unique_name: Callable[[], str]) -> None:
    chance = random.Random(SEED)
    cluster = cluster_with(configs={"log.cleaner.backoff.ms": "100"})
    bootstrap, name = cluster.bootstrap_servers, unique_name()
    cluster.create_topic(
        name,
        configs={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    written = 0
    keys: list[int] = []
    latest: dict[int, int] = {}
    begin_ms = int(time.time() * 1000) - 3_000_000
    one = producer(bootstrap)
    for step in range(20):  # each batch closes the previous segment
        latest |= {key: written - len(keys) + n for n, key in enumerate(keys)}
        keys = [chance.choice(b"abcdefgh") for _ in range(chance.randint(1, 9))]
        records = [
            Record(
                key=bytes([key]), value=chance.randbytes(50), timestamp_ms=begin_ms + 1000 * step
            )
            for key in keys
        ]
        put(one, name, records)
        written += len(records)
    # The cleaner does not touch the last batch, which is in the active segment.
    kept = {*latest.values(), *range(written - len(keys), written)}
    wanted = FetchRange(topic_partition=TopicPartition(name, 0), start_offset=0, end_offset=written)

    def is_compacted() -> bool:
        with open_client(options(bootstrap, engine="native")) as client:
            left = rows(client, wanted, ("offset",), IsolationLevel.READ_COMMITTED)
        return {row["offset"] for row in left} == kept

    eventually(is_compacted, timeout_s=60)
    assert assert_agreement(bootstrap, name, chance) == len(kept)
