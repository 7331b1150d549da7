"""Topics of the tool tests, written and read with librdkafka.

The module writes the records that tools copy, and reads whole partitions up to their current end.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import confluent_kafka

from integration.clusters import Cluster
from tests.conformance.clients import TIMEOUT_S
from tests.conformance.eventually import eventually

PROGRAM_TIMEOUT_S = 90.0
"""How long a Java program may take to start, or to recover from a fault."""

Values = dict[int, list[str]]
"""The values of each partition, in log order."""


def new_topic(cluster: Cluster, unique_name: Callable[[], str], *, partitions: int) -> str:
    name = unique_name()
    cluster.create_topic(
        name, partitions=partitions, replication_factor=min(3, len(cluster.broker_ids))
    )
    return name


def fill(cluster: Cluster, topic: str, *, partitions: int, count: int) -> Values:
    """Write `count` different values to each partition, and return them."""
    written = {
        partition: [f"{partition}-{number}" for number in range(count)]
        for partition in range(partitions)
    }
    write(cluster, topic, written)
    return written


def write(cluster: Cluster, topic: str, values: Values) -> None:
    """Append values to the partitions of a topic."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2, "enable.idempotence": True}
    )
    for partition, of_partition in values.items():
        for value in of_partition:
            producer.produce(topic, value=value.encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def read(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int,
    committed: bool = True,
    offsets: Sequence[int] | None = None,
) -> Values:
    """Read a topic up to its current end, or up to the last stable offset if `committed`.

    `offsets` contains the first offset of each partition, by default 0.
    """
    found = read_records(
        cluster, topic, partitions=partitions, committed=committed, offsets=offsets
    )
    return {partition: [value for _, value in records] for partition, records in found.items()}


def read_records(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int,
    committed: bool = True,
    offsets: Sequence[int] | None = None,
) -> dict[int, list[tuple[str, str]]]:
    """Read the keys and values of a topic, like `read`."""
    found: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    left = set(range(partitions))
    first = [0] * partitions if offsets is None else offsets
    with _assigned(cluster, topic, first, committed=committed) as consumer:
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"the ends of partitions {left} of {topic} were not reached"
            error = message.error()
            if error is None:
                record = ((message.key() or b"").decode(), (message.value() or b"").decode())
                found[message.partition() or 0].append(record)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                left.discard(message.partition() or 0)
            else:
                raise confluent_kafka.KafkaException(error)
    return dict(found)


def await_count(cluster: Cluster, topic: str, count: int, *, partitions: int) -> None:
    """Wait until a topic has at least `count` committed records."""
    read = 0
    deadline_s = time.monotonic() + PROGRAM_TIMEOUT_S
    with _assigned(cluster, topic, [0] * partitions, committed=True) as consumer:
        while read < count:
            assert time.monotonic() < deadline_s, f"{topic} has {read} of {count} records"
            message = consumer.poll(1)
            read += message is not None and message.error() is None


@contextmanager
def _assigned(
    cluster: Cluster, topic: str, offsets: Sequence[int], *, committed: bool
) -> Iterator[confluent_kafka.Consumer]:
    """Return a consumer that reads partitions 0 to n of a topic from these offsets."""
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
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, *each) for each in enumerate(offsets)]
        )
        yield consumer
    finally:
        consumer.close()


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
