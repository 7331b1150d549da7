"""The log lines and Prometheus metrics of `KafkaMetricsListener`, without Spark."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from pyspark_kafka import KafkaMetricsListener, count_bytes
from pyspark_kafka.errors import OptionError, SchemaError
from tests.pyspark_kafka.monitoring.test_lag import RECORDED

REPORT = RECORDED["4.3.0"]
RUN, OTHER_RUN = REPORT["runId"], "00000000-0000-0000-0000-000000000001"


def completed(report: dict[str, Any]) -> QueryProgressEvent:
    return QueryProgressEvent(StreamingQueryProgress.fromJson(report))


def terminated(run_id: str) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(UUID(REPORT["id"]), UUID(run_id), None, None)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Return the values, without timestamps, by name and labels except for the query."""
    return {
        (sample.name, ",".join(v for k, v in sample.labels.items() if k != "query")): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith("timestamp_seconds")
    }


def test_a_log_line_has_the_same_keys_for_every_query(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyspark_kafka.metrics")
    listener = KafkaMetricsListener()
    listener.onQueryProgress(completed(REPORT))
    without_kafka = REPORT | {"name": None, "sources": REPORT["sources"][1:]}
    without_kafka |= {"observedMetrics": {}, "sink": REPORT["sink"] | {"numOutputRows": -1}}
    listener.onQueryProgress(completed(without_kafka))
    kafka, other = (json.loads(record.getMessage()) for record in caplog.records)
    assert kafka == {
        "event": "progress",
        "query": "copy",
        "id": REPORT["id"],
        "runId": RUN,
        "batchId": 0,
        "timestamp": REPORT["timestamp"],
        "batchDurationMs": REPORT["batchDuration"],
        "rowsRead": 12,
        "bytesRead": 84,
        "rowsWritten": 14,
        "bytesWritten": 86,
        "minOffsetsBehindLatest": 6,
        "maxOffsetsBehindLatest": 12,
        "avgOffsetsBehindLatest": 9.0,
        "offsetsBehindLatest": {"orders": {"0": 12, "1": 6}},
    }
    assert other.keys() == kafka.keys()
    assert other["query"] == REPORT["id"]
    assert other["rowsRead"] is other["rowsWritten"] is other["maxOffsetsBehindLatest"] is None


def test_metrics_until_the_query_terminates() -> None:
    registry = CollectorRegistry()
    listener = KafkaMetricsListener(registry=registry)
    assert samples(registry) == {}
    listener.onQueryProgress(completed(REPORT))
    listener.onQueryProgress(completed(REPORT))
    assert samples(registry) == {
        ("pyspark_kafka_lag_offsets", "orders,0"): 12,
        ("pyspark_kafka_lag_offsets", "orders,1"): 6,
        ("pyspark_kafka_read_rows_total", ""): 24,
        ("pyspark_kafka_read_bytes_total", ""): 168,
        ("pyspark_kafka_written_rows_total", ""): 28,
        ("pyspark_kafka_written_bytes_total", ""): 172,
    }
    listener.onQueryTerminated(terminated(OTHER_RUN))
    assert samples(registry) != {}
    listener.onQueryTerminated(terminated(RUN))
    assert samples(registry) == {}


def test_a_new_run_replaces_the_series_of_the_previous_run() -> None:
    registry = CollectorRegistry()
    listener = KafkaMetricsListener(registry=registry)
    listener.onQueryProgress(completed(REPORT))
    only_partition_1 = REPORT["sources"][0] | {"endOffset": {"orders": {"1": 10}}}
    restarted = REPORT | {"runId": OTHER_RUN, "sources": [only_partition_1]}
    listener.onQueryProgress(completed(restarted))
    listener.onQueryTerminated(terminated(RUN))  # Spark can report it after the restart.
    found = samples(registry)
    assert found["pyspark_kafka_read_rows_total", ""] == 12
    assert [key for key in found if key[0] == "pyspark_kafka_lag_offsets"] == [
        ("pyspark_kafka_lag_offsets", "orders,1")
    ]


def test_an_idle_query_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.time", lambda: now)
    registry = CollectorRegistry()
    listener = KafkaMetricsListener(registry=registry)
    listener.onQueryProgress(completed(REPORT))
    now = 130.0
    listener.onQueryIdle(QueryIdleEvent(UUID(REPORT["id"]), UUID(RUN), REPORT["timestamp"]))
    name = "pyspark_kafka_last_report_timestamp_seconds"
    assert registry.get_sample_value(name, {"query": "copy"}) == 130.0


def test_the_lag_is_missing_if_the_cluster_does_not_return_it(
    bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    options = {"kafka.bootstrap.servers": bootstrap, "fetchOffset.numRetries": "1"}
    listener = KafkaMetricsListener(options=options, registry=registry)
    missing = json.loads(json.dumps(REPORT).replace('"orders"', '"missing"'))
    listener.onQueryProgress(completed(missing))
    assert any(
        record.levelno == logging.WARNING and "'copy'" in record.getMessage()
        for record in caplog.records
    )
    found = samples(registry)
    assert found["pyspark_kafka_read_rows_total", ""] == 12
    assert not any(name == "pyspark_kafka_lag_offsets" for name, _ in found)


def test_invalid_options_are_rejected_at_once() -> None:
    with pytest.raises(OptionError) as raised:
        KafkaMetricsListener(options={"subscribe": "orders"})
    assert raised.value.option == "kafka.bootstrap.servers"


def test_bytes_that_would_never_be_reported() -> None:
    frame = cast("DataFrame", SimpleNamespace(columns=["text"]))
    with pytest.raises(SchemaError):
        count_bytes(frame, "read")
    with pytest.raises(ValueError, match="reads"):
        count_bytes(frame, "reads")  # type: ignore[arg-type]
