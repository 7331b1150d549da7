"""Exports the values of `QueryProgress` and `Lag` as Prometheus metrics.

Invariant: only running queries have time series, and each query has time series for only one run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.monitoring.lag import Lag
from pyspark_kafka.monitoring.progress import QueryProgress

_COUNTERS: Final = {
    "rows_read": ("pyspark_kafka_read_rows", "Rows read from Kafka."),
    "bytes_read": ("pyspark_kafka_read_bytes", "Bytes of the keys and values read from Kafka."),
    "rows_written": ("pyspark_kafka_written_rows", "Rows written to the sink."),
    "bytes_written": (
        "pyspark_kafka_written_bytes",
        "Bytes of the keys and values written to the sink.",
    ),
}
"""Fields of `QueryProgress`, each with the name and description of the counter for its sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The values of the current run of a query. Counters with unknown values are omitted."""

    run_id: str
    reported_s: float
    lag: Mapping[TopicPartition, int]
    counters: Mapping[str, int]


class QueryCollector(Collector):
    """Collects the metrics of running queries. The methods can be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def update(self, progress: QueryProgress, lag: Lag | None, *, now_s: float) -> None:
        """Add the progress of a micro-batch. The counters start at 0 for each run of a query.

        `now_s` is the time in seconds since the epoch.
        """
        with self._lock:
            run = self._runs.get(progress.query)
            counters = dict(run.counters) if run and run.run_id == progress.run_id else {}
            for field in _COUNTERS:
                count = getattr(progress, field)
                if count is not None:
                    counters[field] = counters.get(field, 0) + count
            self._runs[progress.query] = _Run(
                run_id=progress.run_id,
                reported_s=now_s,
                lag={} if lag is None else lag.partitions,
                counters=counters,
            )

    def touch(self, run_id: str, *, now_s: float) -> None:
        """Update the time of the last report from an idle run."""
        with self._lock:
            for query, run in self._runs.items():
                if run.run_id == run_id:
                    self._runs[query] = replace(run, reported_s=now_s)

    def remove(self, run_id: str) -> None:
        """Remove the time series of a run that has terminated."""
        with self._lock:
            self._runs = {q: run for q, run in self._runs.items() if run.run_id != run_id}

    def describe(self) -> Iterator[Metric]:
        return self._collect({})

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            runs = dict(self._runs)
        return self._collect(runs)

    def _collect(self, runs: Mapping[str, _Run]) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "pyspark_kafka_lag_offsets",
            "Offsets between the end of the last micro-batch and the latest offset.",
            labels=("query", "topic", "partition"),
        )
        reported = GaugeMetricFamily(
            "pyspark_kafka_last_report_timestamp_seconds",
            "Time at which Spark last reported a completed micro-batch or an idle query.",
            labels=("query",),
        )
        for query, run in runs.items():
            reported.add_metric((query,), run.reported_s)
            for partition, behind in run.lag.items():
                lag.add_metric((query, partition.topic, str(partition.partition)), behind)
        yield lag
        yield reported
        for field, (name, description) in _COUNTERS.items():
            counter = CounterMetricFamily(name, description, labels=("query",))
            for query, run in runs.items():
                if field in run.counters:
                    counter.add_metric((query,), run.counters[field])
            yield counter
