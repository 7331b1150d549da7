"""Reading a topic with read_committed or read_uncommitted, through librdkafka.

Purpose: write records that tools copy, and read whole partitions up to their current end. Must not
know: the writer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import confluent_kafka

from integration.clusters import Cluster
from tests.conformance.clients import TIMEOUT_S
from tests.conformance.eventually import eventually

Values = dict[int, list[str]]
"""The values of each partition, in order."""


def new_topic(cluster: Cluster, unique_name: Callable[[], str], *, partitions: int) -> str:
    """Create a topic with a replica on each broker."""
    name = unique_name()
    cluster.create_topic(
        name, partitions=partitions, replication_factor=min(3, len(cluster.broker_ids))
    )
    return name


def fill(cluster: Cluster, topic: str, *, partitions: int, count: int) -> Values:
    """Write `count` records to each partition and return the values."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, "enable.idempotence": True}
    )
    written = {
        partition: [f"{partition}-{number}" for number in range(count)]
        for partition in range(partitions)
    }
    for partition, values in written.items():
        for value in values:
            producer.produce(topic, value=value.encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    return written


def read(cluster: Cluster, topic: str, *, partitions: int, committed: bool = True) -> Values:
    """Read a topic up to its current end, which is the last stable offset if `committed`."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": f"reader of {topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    found: defaultdict[int, list[str]] = defaultdict(list)
    left = set(range(partitions))
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in left])
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"partitions {left} of {topic} did not reach their end"
            error = message.error()
            if error is None:
                found[message.partition() or 0].append((message.value() or b"").decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard(message.partition() or 0)
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return dict(found)


def await_read(cluster: Cluster, topic: str, expected: Values, *, partitions: int) -> None:
    """Return once `expected` is read, because the response to a commit precedes its markers."""
    found: Values = {}

    def holds() -> bool:
        nonlocal found
        found = read(cluster, topic, partitions=partitions)
        return found == expected

    with suppress(AssertionError):
        eventually(holds)
    assert found == expected


def committed_offsets(cluster: Cluster, group: str, topic: str, *, partitions: int) -> list[int]:
    """Return the group's offset of each partition, negative without a commit."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, "group.id": group}
    )
    try:
        asked = [confluent_kafka.TopicPartition(topic, each) for each in range(partitions)]
        return [int(each.offset) for each in consumer.committed(asked, timeout=TIMEOUT_S)]
    finally:
        consumer.close()
