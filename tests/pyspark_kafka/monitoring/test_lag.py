"""The lag, rows and bytes of progress reports that each Spark version has created.

`recorded_progress.json` contains the first report of a query that reads a topic with 20 and 10
records, and a file with 2 lines. Since Spark 4.2, the query reads 12 records per micro-batch.
"KafkaV2" is the report of Spark's own connector. "4.0.5 items" contains the items of
`query.lastProgress`, in which offsets are not JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafka
from pyspark_kafka.errors import UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import partition_lag
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.monitoring.progress import parse_progress

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded_progress.json").read_text(encoding="utf-8")
)
UNLIMITED = ["4.0.5", "4.0.5 items", "4.1.4"]
LIMITED = ["4.2.1", "4.3.0"]
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize("name", RECORDED)
def test_lag(name: str) -> None:
    lag = pyspark_kafka.lag(RECORDED[name])
    assert lag is not None
    assert lag.partitions == ({P0: 0, P1: 0} if name in UNLIMITED else {P0: 12, P1: 6})
    assert pyspark_kafka.lag(json.dumps(RECORDED[name])) == lag


def test_lag_is_that_of_spark_s_own_connector() -> None:
    report = RECORDED["KafkaV2"]
    lag = pyspark_kafka.lag(report)
    assert lag is not None
    expected = report["sources"][0]["metrics"]
    assert {f"{n}OffsetsBehindLatest": str(getattr(lag, n)) for n in ("min", "max", "avg")} == (
        expected
    )


@pytest.mark.parametrize("name", [*UNLIMITED, *LIMITED])
def test_rows_and_bytes(name: str) -> None:
    progress = parse_progress(RECORDED[name])
    rows, size = (30, 220) if name in UNLIMITED else (12, 84)
    assert (progress.rows_read, progress.bytes_read) == (rows, size)
    assert (progress.rows_written, progress.bytes_written) == (rows + 2, size + 2)


def test_rows_of_a_sink_that_reports_none() -> None:
    report = RECORDED["4.3.0"] | {"sink": {"description": "", "numOutputRows": -1}}
    assert parse_progress(report).rows_written == 14, "the observed rows are not used"
    report.pop("observedMetrics")
    assert parse_progress(report).rows_written is None


def test_lag_is_unknown() -> None:
    report = RECORDED["4.3.0"]
    kafka, file = report["sources"]
    assert pyspark_kafka.lag(None) is None, "before the first report"
    assert pyspark_kafka.lag(report | {"sources": [file]}) is None
    replayed = kafka | {"latestOffset": None}
    assert pyspark_kafka.lag(report | {"sources": [replayed]}) is None


def test_two_sources_with_the_same_partitions() -> None:
    report = RECORDED["4.3.0"]
    kafka = report["sources"][0]
    other = kafka | {"endOffset": {"orders": {"0": 20, "1": 3}}}
    for sources in ([kafka, other], [other, kafka]):
        lag = pyspark_kafka.lag(report | {"sources": sources})
        assert lag is not None
        assert lag.partitions == {P0: 12, P1: 7}


def test_added_and_deleted_partitions_and_a_stale_leader() -> None:
    position = {P0: 7, P1: 7}
    assert partition_lag(position, {P1: 6, TopicPartition("orders", 2): 5}) == {P1: 0}


def test_other_objects_are_rejected() -> None:
    for value in (RECORDED["4.3.0"]["sources"][0], [], object()):
        with pytest.raises(TypeError, match="lastProgress"):
            pyspark_kafka.lag(value)  # type: ignore[arg-type]


def test_a_topic_that_the_cluster_does_not_have(bootstrap: str) -> None:
    report = json.dumps(RECORDED["4.3.0"]).replace('"orders"', '"missing"')
    options = {"kafka.bootstrap.servers": bootstrap, "fetchOffset.numRetries": "1"}
    with pytest.raises(UnknownTopicOrPartitionError) as raised:
        pyspark_kafka.lag(report, options)
    assert raised.value.topic == "missing"
