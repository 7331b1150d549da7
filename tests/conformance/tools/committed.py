"""Topics of the tool tests, written and read with librdkafka.

The module writes the records that tools copy, and reads whole partitions up to their current end.
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
"""The values of each partition, in log order."""


def new_topic(cluster: Cluster, unique_name: Callable[[], str], *, partitions: int) -> str:
    name = unique_name()
    cluster.create_topic(
        name, partitions=partitions, replication_factor=min(3, len(cluster.broker_ids))
    )
    return name


def fill(cluster: Cluster, topic: str, *, partitions: int, count: int) -> Values:
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
    """Read a topic up to its current end, or up to the last stable offset if `committed`."""
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
            assert message is not None, f"the ends of partitions {left} of {topic} were not reached"
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
    """Wait until `expected` is read: EndTxn returns before the markers are written."""
    found: Values = {}

    def holds() -> bool:
        nonlocal found
        found = read(cluster, topic, partitions=partitions)
        return found == expected

    with suppress(AssertionError):
        eventually(holds)
    assert found == expected


def committed_offsets(cluster: Cluster, group: str, topic: str, *, partitions: int) -> list[int]:
    """Return the committed offset of each partition; negative without a commit."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, "group.id": group}
    )
    try:
        requested = [confluent_kafka.TopicPartition(topic, each) for each in range(partitions)]
        return [int(each.offset) for each in consumer.committed(requested, timeout=TIMEOUT_S)]
    finally:
        consumer.close()
