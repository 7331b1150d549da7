"""Compare the reference cluster with Apache Kafka in one run on this machine.

    python -m integration.benchmarks.cluster [--records 200000] [--rounds 3] [--only failover]

Measures:

- the throughput of produced and fetched records with confluent-kafka
- the time for which a partition is unavailable after its leader is killed
- the CPU time of three idle brokers
- the memory of a thousand partitions
- transactions (see `cluster_transactions`)
- clusters with many partitions (see `cluster_partitions`)
- the longest callbacks of a node's event loop (see `cluster_event_loop`)

Prints each figure to stderr as soon as it is measured. Finally, prints a table and writes
`build/cluster-benchmark.json`. A test of the benchmark uses `--partitions` to limit the number of
partitions.

Invariant: each round measures both clusters with the same client and settings, so other load on the
machine affects both. The throughput is the value of the best round. All other figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from integration import clusters
from integration.benchmarks import (
    cluster_event_loop,
    cluster_partitions,
    cluster_transactions,
)
from integration.benchmarks.processes import CpuMeter, descendants, resident_bytes
from integration.clusters import Cluster

BACKENDS: Final = ("kafka", "reference-processes")
IN_THIS_PROCESS: Final = "reference"
RECORD: Final = b"x" * 100
TOPIC_PARTITIONS: Final = 3
MANY_PARTITIONS: Final = 1_000
GROWTH: Final = (1, 100, 500, 2_000, 10_000)
GROWTH_RECORDS: Final = 200
LOOP_BLOCKED_MAX_MS: Final = 100.0
TRANSACTIONS: Final = 200
TRANSACTIONAL_IDS: Final = 10_000
TIMEOUT_S: Final = 120.0
IDLE_SETTLING_S: Final = 10.0
IDLE_MEASURED_S: Final = 20.0
OUTPUT: Final = Path(__file__).resolve().parents[2] / "build" / "cluster-benchmark.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The value of one measure for one cluster, with its unit."""

    measure: str
    backend: str
    brokers: int
    value: float
    unit: str


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare the reference cluster with Apache Kafka.")
    parser.add_argument("--records", type=int, default=200_000, help="records per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--partitions", type=int, default=GROWTH[-1], help="partitions in growth and event-loop"
    )
    parser.add_argument("--only", choices=sorted(MEASURES), action="append")
    parsed = parser.parse_args(arguments)
    figures: list[Figure] = []
    for name in parsed.only or MEASURES:
        for figure in MEASURES[name](parsed):
            sys.stderr.write(f"{figure.backend}: {figure.measure}: {_shown(figure.value)}\n")
            figures.append(figure)
    _print_table(figures)
    _write_json(figures, parsed)


def throughput(parsed: argparse.Namespace) -> Iterator[Figure]:
    """Measure records per second with one broker, and with three brokers and three replicas."""
    for brokers in (1, 3):
        with ExitStack() as opened:
            pair = _open_all(opened, BACKENDS, brokers=brokers)
            best: dict[tuple[str, str], float] = {}
            for round_number in range(parsed.rounds):
                for backend, cluster in pair.items():
                    topic = f"throughput-{round_number}"
                    cluster.create_topic(
                        topic, partitions=TOPIC_PARTITIONS, replication_factor=brokers
                    )
                    for measure, rate in (
                        ("produced", _produce(cluster, topic, parsed.records)),
                        ("fetched", _fetch(cluster, topic, parsed.records)),
                    ):
                        key = (measure, backend)
                        best[key] = max(best.get(key, 0.0), rate)
        for (measure, backend), rate in best.items():
            yield Figure(
                measure=measure, backend=backend, brokers=brokers, value=rate, unit="records/s"
            )


def failover(parsed: argparse.Namespace) -> Iterator[Figure]:
    """Measure the time in seconds from killing a leader to the next acknowledged record."""
    for backend in BACKENDS:
        times = []
        with clusters.open_cluster(backend, brokers=3, is_measured=True) as cluster:
            for round_number in range(parsed.rounds):
                victim = cluster.broker_ids[round_number % 3]
                times.append(_fail_over(cluster, f"failover-{round_number}", victim))
                cluster.start_broker(victim)
        yield Figure(
            measure="failover",
            backend=backend,
            brokers=3,
            value=statistics.median(times),
            unit="s",
        )


def idle(parsed: argparse.Namespace) -> Iterator[Figure]:  # noqa: ARG001
    """Measure the CPU usage of a cluster of three idle brokers, as a percentage of one core."""
    for backend in BACKENDS:
        with clusters.open_cluster(backend, brokers=3, is_measured=True):
            # Wait for a fixed time, because no condition shows when the startup load has ended.
            time.sleep(IDLE_SETTLING_S)
            since_s = time.monotonic()
            with CpuMeter() as meter:
                time.sleep(IDLE_MEASURED_S)
            percent = 100 * meter.seconds / (time.monotonic() - since_s)
        yield Figure(measure="idle", backend=backend, brokers=3, value=percent, unit="% of a core")


def memory(parsed: argparse.Namespace) -> Iterator[Figure]:  # noqa: ARG001
    """Measure the resident memory before and after creating a thousand partitions."""
    for backend in BACKENDS:
        with clusters.open_cluster(backend, brokers=1, is_measured=True) as cluster:
            before = _resident_bytes()
            cluster.create_topic("many", partitions=MANY_PARTITIONS, replication_factor=1)
            after = _resident_bytes()
        for measure, size in (("memory, empty", before), ("memory, 1000 partitions", after)):
            yield Figure(measure=measure, backend=backend, brokers=1, value=size / 2**20, unit="MB")


def transactions(parsed: argparse.Namespace) -> Iterator[Figure]:
    """Measure transactions per second, and the time from a commit until its records are consumed.

    Each cluster has 3 brokers. The reference cluster is measured twice: once with one process per
    node, and once with all nodes in the process of the benchmark.
    """
    with ExitStack() as opened:
        rates: dict[str, list[float]] = {}
        latencies: dict[str, list[float]] = {}
        opened_clusters = _open_all(opened, (*BACKENDS, IN_THIS_PROCESS), brokers=3)
        for round_number in range(parsed.rounds):
            for backend, cluster in opened_clusters.items():
                topic = f"transactions-{round_number}"
                cluster.create_topic(
                    topic, partitions=cluster_transactions.PARTITIONS, replication_factor=3
                )
                rates.setdefault(backend, []).append(
                    cluster_transactions.transactions_per_second(cluster, topic, TRANSACTIONS)
                )
                latencies.setdefault(backend, []).append(
                    cluster_transactions.commit_latency_ms(cluster, topic, TRANSACTIONS)
                )
    for measure, found, unit in (
        ("transactions", rates, "transactions/s"),
        ("commit to consumer", latencies, "ms"),
    ):
        for backend, values in found.items():
            yield Figure(
                measure=measure,
                backend=backend,
                brokers=3,
                value=statistics.median(values),
                unit=unit,
            )


def coordinator_failover(parsed: argparse.Namespace) -> Iterator[Figure]:
    """Kill a coordinator and measure how long its 10,000 transactional ids have no coordinator."""
    found: dict[str, list[cluster_transactions.Failover]] = {backend: [] for backend in BACKENDS}
    for _ in range(parsed.rounds):
        for backend, times in found.items():
            with clusters.open_cluster(
                backend,
                brokers=3,
                configs=cluster_transactions.STATE_TOPIC_SETTINGS,
                is_measured=True,
            ) as cluster:
                times.append(cluster_transactions.coordinator_failover(cluster, TRANSACTIONAL_IDS))
    for backend, times in found.items():
        for measure, values in (
            ("coordinator failover", [each.total_s for each in times]),
            ("coordinator loading", [each.loading_s for each in times]),
        ):
            yield Figure(
                measure=measure,
                backend=backend,
                brokers=3,
                value=statistics.median(values),
                unit="s",
            )


def stalls(parsed: argparse.Namespace) -> Iterator[Figure]:  # noqa: ARG001
    """Measure how long a Metadata request waits while many topics are created and deleted."""
    for backend in BACKENDS:
        with clusters.open_cluster(backend, brokers=3, is_measured=True) as cluster:
            found = cluster_partitions.creation_stalls(
                cluster,
                topics=cluster_event_loop.STALL_TOPICS,
                partitions=cluster_event_loop.STALL_PARTITIONS,
            )
        for measure, value, unit in (
            ("Metadata, topic creation", found.creation_s, "s"),
            ("Metadata, topic deletion", found.deletion_s, "s"),
            ("topics created and served", found.created_s, "s"),
            ("fewest unfenced brokers", found.fewest_brokers, "brokers"),
        ):
            yield Figure(measure=measure, backend=backend, brokers=3, value=value, unit=unit)


def growth(parsed: argparse.Namespace) -> Iterator[Figure]:
    """Measure latencies, durations and memory while the number of partitions grows."""
    counts = tuple(count for count in GROWTH if count <= parsed.partitions)
    for backend in BACKENDS:
        with clusters.open_cluster(backend, brokers=3, is_measured=True) as cluster:
            for step in cluster_partitions.growth(cluster, counts, records=GROWTH_RECORDS):
                for measure, value, unit in (
                    ("acks=all", step.acks_all_ms, "ms"),
                    ("acks=all, p99", step.acks_all_p99_ms, "ms"),
                    ("fetch session", step.session_ms, "ms"),
                    ("Metadata", step.metadata_ms, "ms"),
                    ("created", step.created_s, "s"),
                    ("memory", step.resident_bytes / 2**20, "MB"),
                    ("restart", step.restart_s, "s"),
                ):
                    if value is None:
                        continue
                    yield Figure(
                        measure=f"{step.partitions:6}: {measure}",
                        backend=backend,
                        brokers=3,
                        value=value,
                        unit=unit,
                    )


def event_loop(parsed: argparse.Namespace) -> Iterator[Figure]:
    """Measure the longest callback of the reference cluster's nodes during each operation.

    Callbacks that are too long are printed with their stacks.
    """
    topics = parsed.partitions // 5
    for phase in cluster_event_loop.phases(
        topics=topics, partitions=parsed.partitions - topics, ids=parsed.partitions
    ):
        for measure, values in (
            ("elapsed", [stall.blocked_ms for stall in phase.stalls]),
            ("CPU", [stall.cpu_ms for stall in phase.stalls]),
        ):
            yield Figure(
                measure=f"event loop: {phase.name}, {measure}",
                backend="reference-processes",
                brokers=3,
                value=max(values, default=0.0),
                unit="ms",
            )
        for stall in phase.stalls:
            if stall.blocked_ms > LOOP_BLOCKED_MAX_MS:
                sys.stdout.write(f"{phase.name}: {stall.text()}\n")


MEASURES: Final[Mapping[str, Callable[[argparse.Namespace], Iterator[Figure]]]] = {
    "throughput": throughput,
    "failover": failover,
    "idle": idle,
    "memory": memory,
    "transactions": transactions,
    "coordinator-failover": coordinator_failover,
    "stalls": stalls,
    "growth": growth,
    "event-loop": event_loop,
}


def _open_all(opened: ExitStack, backends: Sequence[str], *, brokers: int) -> dict[str, Cluster]:
    return {
        backend: opened.enter_context(
            clusters.open_cluster(backend, brokers=brokers, is_measured=True)
        )
        for backend in backends
    }


def _produce(cluster: Cluster, topic: str, count: int) -> float:
    failures: list[Any] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(error)

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}
    )
    started_s = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, RECORD, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(TIMEOUT_S)
    taken_s = time.perf_counter() - started_s
    if left or failures:
        raise SystemExit(
            f"{cluster.version}: {left} records were not sent, failures: {failures[:3]}"
        )
    return count / taken_s


def _fetch(cluster: Cluster, topic: str, count: int) -> float:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": "benchmark",
            "enable.auto.commit": False,
        }
    )
    offset = confluent_kafka.OFFSET_BEGINNING
    partitions = [
        confluent_kafka.TopicPartition(topic, number, offset) for number in range(TOPIC_PARTITIONS)
    ]
    try:
        started_s = time.perf_counter()
        consumer.assign(partitions)
        fetched = 0
        while fetched < count:
            messages = consumer.consume(10_000, timeout=1.0)
            fetched += sum(message.error() is None for message in messages)
            if time.perf_counter() - started_s > TIMEOUT_S:
                raise SystemExit(
                    f"{cluster.version}: only {fetched} of {count} records were fetched"
                )
        return count / (time.perf_counter() - started_s)
    finally:
        consumer.close()


def _fail_over(cluster: Cluster, topic: str, victim: int) -> float:
    """Kill the leader of a partition and return the seconds until a record is acknowledged."""
    others = [broker_id for broker_id in cluster.broker_ids if broker_id != victim]
    cluster.create_topic(
        topic, assignment=[[victim, *others]], configs={"min.insync.replicas": "2"}
    )
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "acks": "all",
            "linger.ms": 0,
        }
    )
    _acknowledged(producer, topic)
    killed_s = time.perf_counter()
    cluster.kill_broker(victim)
    _acknowledged(producer, topic)
    return time.perf_counter() - killed_s


def _acknowledged(producer: confluent_kafka.Producer, topic: str) -> None:
    outcome: list[Any] = []
    producer.produce(
        topic, RECORD, partition=0, on_delivery=lambda e, _: outcome.append(e and str(e))
    )
    if producer.flush(TIMEOUT_S) or outcome != [None]:
        raise SystemExit(f"a record was not acknowledged: {outcome}")


def _resident_bytes() -> int:
    return sum(resident_bytes(pid) or 0 for pid in descendants())


def _print_table(figures: Sequence[Figure]) -> None:
    rows = sorted({(figure.measure, figure.brokers, figure.unit) for figure in figures})
    backends = dict.fromkeys((*BACKENDS, *(figure.backend for figure in figures)))
    width = max(len(measure) for measure, _, _ in rows)
    lines = [f"{'':{width}}{'brokers':>9}" + "".join(f"{backend:>22}" for backend in backends)]
    for measure, brokers, unit in rows:
        values = {
            figure.backend: figure.value
            for figure in figures
            if (figure.measure, figure.brokers) == (measure, brokers)
        }
        line = f"{measure:{width}}{brokers:>9}"
        line += "".join(f"{_shown(values.get(backend)):>22}" for backend in backends)
        lines.append(f"{line}  {unit}")
    sys.stdout.write("\n".join(lines) + "\n")


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if value >= 100 else f"{value:,.2f}"


def _write_json(figures: Sequence[Figure], parsed: argparse.Namespace) -> None:
    OUTPUT.parent.mkdir(exist_ok=True)
    content = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.version(),
        "records": parsed.records,
        "rounds": parsed.rounds,
        "figures": [
            {name: getattr(figure, name) for name in Figure.__dataclass_fields__}
            for figure in figures
        ],
    }
    OUTPUT.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
