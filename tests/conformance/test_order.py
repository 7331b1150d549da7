"""Tests of order within a partition, and of the mapping of keys to partitions."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import kafka

from integration.raw import RawConnection
from tests.conformance.batches import parse
from tests.conformance.clients import PYTHON_SILENT
from tests.conformance.wire import fetch

TopicFactory = Callable[..., str]
PARTITIONS = 5
KEYS = [f"key-{n}" for n in range(20)]
ROUNDS = 10


def stored(raw: RawConnection, name: str) -> dict[int, list[tuple[str, str]]]:
    return {
        partition: [
            ((r.key or b"").decode(), (r.value or b"").decode())
            for found in parse(fetch(raw, name, partition=partition).records)
            for r in found.records
        ]
        for partition in range(PARTITIONS)
    }


def check(raw: RawConnection, name: str) -> dict[str, int]:
    """Check that each key is in one partition and its records are in order.

    Return the partition of each key.
    """
    found: dict[str, int] = {}
    for partition, records in stored(raw, name).items():
        for key in {key for key, _ in records}:
            assert key not in found, f"{key} is in two partitions"
            found[key] = partition
            assert [v for k, v in records if k == key] == [f"{n}" for n in range(ROUNDS)]
    assert found.keys() == set(KEYS)
    return found


def write_with_librdkafka(bootstrap: str, name: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
        }
    )
    for n in range(ROUNDS):
        for key in KEYS:
            producer.produce(name, key=key, value=f"{n}")
    assert producer.flush(30) == 0


def write_with_kafka_python(bootstrap: str, name: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **PYTHON_SILENT)
    try:
        for n in range(ROUNDS):
            for key in KEYS:
                producer.send(name, key=key.encode(), value=b"%d" % n)
        producer.flush(30)
    finally:
        producer.close()


def test_all_clients_keep_partition_and_order_of_a_key(
    raw: RawConnection, bootstrap: str, topic: TopicFactory
) -> None:
    # Both clients use murmur2 like the Java client, so they choose the same partition.
    first, second = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    write_with_librdkafka(bootstrap, first)
    write_with_kafka_python(bootstrap, second)
    assert check(raw, first) == check(raw, second)
