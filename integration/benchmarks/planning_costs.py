"""Count the requests that are sent to plan a read, and measure the time and memory of planning.

    python -m integration.benchmarks.planning_costs --partitions 1 --partitions 1000

Plans reads of topics with one record in each partition, without Spark: a batch read with a new
client, and micro-batches with one client for the whole query. Invariant: each request that a client
sends is counted, including retries and ApiVersions.

This is not a benchmark case: it reports counts, milliseconds and bytes, not ratios.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import Producer

from integration.benchmarks.sink_costs import BROKERS, sent_requests
from integration.clusters import BACKENDS, Cluster, open_cluster
from pyspark_kafka.options.parse import parse_source_options
from pyspark_kafka.source.batch_reader import KafkaBatchReader
from pyspark_kafka.source.schema import source_schema
from pyspark_kafka.source.stream_reader import KafkaStreamReader

PARTITIONS: Final = (1, 10, 100, 1_000, 10_000)
ROUNDS: Final = 5
_PARTITIONS_OF_TOPIC_MAX: Final = 5_000
"""Apache Kafka cannot create 10,000 partitions in one request."""
_TIMEOUT_S: Final = 300
_HEAD: Final = (
    "partitions",
    "batch read: requests",
    "ms",
    "memory, MiB",
    "plan, bytes",
    "micro-batch: requests",
    "ms",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The cost of planning a read. Each value is the median of several rounds.

    `memory_bytes` is the peak of the memory that Python allocates while it plans a batch read, and
    `plan_bytes` is the size of the pickled plan. Planning a micro-batch determines the end offsets
    and the offset ranges to read.
    """

    partitions: int
    batch_requests: int
    batch_ms: float
    memory_bytes: int
    plan_bytes: int
    micro_batch_requests: int
    micro_batch_ms: float


def measure(cluster: Cluster, partitions: int) -> Costs:
    """Create topics with `partitions` partitions in total, and return the costs of planning."""
    topics = []
    for first in range(0, partitions, _PARTITIONS_OF_TOPIC_MAX):
        topics.append(f"planning-{partitions}-{first}")
        count = min(_PARTITIONS_OF_TOPIC_MAX, partitions - first)
        cluster.create_topic(topics[-1], partitions=count)
        _write_one_record_each(cluster, topics[-1], count)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "engine": "native",
    }
    schema = source_schema(include_headers=False)

    def plan_batch() -> Sequence[Any]:
        parsed = parse_source_options(options, streaming=False)
        return KafkaBatchReader(schema, parsed).partitions()

    stream = KafkaStreamReader(schema, parse_source_options(options, streaming=True))
    start = stream.initialOffset()

    def plan_micro_batch() -> Sequence[Any]:
        return stream.partitions(start, stream.latestOffset(start))

    tracemalloc.start()
    plan = plan_batch()
    _, memory_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if len(plan) != partitions:
        raise ValueError(f"{len(plan)} tasks were planned for {partitions} partitions")
    batch = [_measure(plan_batch) for _ in range(ROUNDS)]
    micro_batch = [_measure(plan_micro_batch) for _ in range(ROUNDS)]
    stream.stop()
    return Costs(
        partitions=partitions,
        batch_requests=statistics.median_low(requests for requests, _ in batch),
        batch_ms=statistics.median(taken_ms for _, taken_ms in batch),
        memory_bytes=memory_bytes,
        plan_bytes=sum(len(pickle.dumps(task)) for task in plan),
        micro_batch_requests=statistics.median_low(requests for requests, _ in micro_batch),
        micro_batch_ms=statistics.median(taken_ms for _, taken_ms in micro_batch),
    )


def table(costs: Iterable[Costs]) -> Iterator[str]:
    """Yield a Markdown table."""
    yield f"| {' | '.join(_HEAD)} |"
    yield f"|{' ---: |' * len(_HEAD)}"
    for one in costs:
        cells = (
            f"{one.partitions:,}",
            f"{one.batch_requests:,}",
            f"{one.batch_ms:,.0f}",
            f"{one.memory_bytes / 2**20:.1f}",
            f"{one.plan_bytes:,}",
            f"{one.micro_batch_requests:,}",
            f"{one.micro_batch_ms:,.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def _measure(work: Callable[[], T]) -> tuple[int, float]:
    with sent_requests() as sent:
        since_s = time.perf_counter()
        work()
        return len(sent), 1000 * (time.perf_counter() - since_s)


def _write_one_record_each(cluster: Cluster, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    for partition in range(partitions):
        producer.produce(topic, b"value", partition=partition)
        producer.poll(0)
    if producer.flush(_TIMEOUT_S):
        raise TimeoutError(f"not all records of topic {topic} were written within {_TIMEOUT_S} s")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.planning_costs", description=__doc__
    )
    parser.add_argument("--cluster", choices=BACKENDS, default="kafka")
    parser.add_argument("--partitions", type=int, action="append", metavar="N")
    parsed = parser.parse_args(arguments)
    found = []
    with open_cluster(parsed.cluster, brokers=BROKERS, is_measured=True) as cluster:
        sys.stdout.write(f"{cluster.version}, {BROKERS} brokers\n")
        for partitions in parsed.partitions or PARTITIONS:
            found.append(measure(cluster, partitions))
            sys.stdout.write(f"{partitions:,} partitions measured\n")
            sys.stdout.flush()
    sys.stdout.write("\n".join(["", *table(found)]) + "\n")


if __name__ == "__main__":
    main()
