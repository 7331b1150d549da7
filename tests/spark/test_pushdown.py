"""Filters that narrow a read: the same rows with them and without, and less is read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from pyspark_kafka.source.spark_features import FILTER_PUSHDOWN, FILTERS_PER_SCAN
from tests.conftest import TopicFactory
from tests.spark.conftest import Produce, Reader

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not FILTER_PUSHDOWN, reason="filters came with Spark 4.1"),
]

CONFIG = "spark.sql.python.filterPushdown.enabled"
T0_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
KEPT = {"retention.ms": "-1"}


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark's own switch, which is off by default."""
    spark.conf.set(CONFIG, "true")
    yield
    spark.conf.unset(CONFIG)


@pytest.fixture
def filled(topic: TopicFactory, produce: Produce) -> tuple[str, str]:
    """Two topics of two partitions with 40 records each, 10 ms apart but for stragglers."""
    names = topic(partitions=2, **KEPT), topic(partitions=2, **KEPT)
    for name in names:
        for partition in range(2):
            times = [T0_MS + 10 * n - (150 if n % 7 == 0 else 0) for n in range(40)]
            produce(name, [str(n) for n in range(40)], partition=partition, timestamps_ms=times)
    return names


def explained(frame: DataFrame) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue()


def rows_read(frame: DataFrame) -> int:
    """What came out of the source, before Spark's filters; the frame has been collected."""
    scan = frame._jdf.queryExecution().executedPlan()
    while scan.children().size():
        scan = scan.children().head()
    return int(scan.metrics().apply("numOutputRows").value())


def test_the_same_rows_and_fewer_read(
    read: Reader, pushdown: None, filled: tuple[str, str]
) -> None:
    one, other = filled
    later = "timestamp'2023-11-14 22:13:20.3'"
    predicates = {
        f"topic IN ('{one}', NULL) AND partition <> 0": 40,
        f"topic LIKE '{other[:-1]}%' AND topic NOT LIKE '%{one[-4:]}' AND offset < 3": 6,
        "(offset = 11 OR value = '7') AND offset BETWEEN 10.5 AND 12 AND partition IN (1, 7)": 4,
        "offset IN (3, 9)": 28,
        f"timestamp >= {later}": 40,
        f"timestamp = {later} AND offset <> 3": 40,
        f"timestamp < {later}": 160,
    }
    everything = read(subscribe=f"{one},{other}").localCheckpoint()
    for predicate, most in predicates.items():
        frame = read(subscribe=f"{one},{other}", filterPushdown="single-scan").where(predicate)
        assert sorted(frame.collect()) == sorted(everything.where(predicate).collect()), predicate
        assert rows_read(frame) <= most, predicate
    everything.unpersist()


def test_a_filtered_read_of_the_dataframe_api_and_its_plan(
    read: Reader, pushdown: None, filled: tuple[str, str]
) -> None:
    frame = read(subscribe=filled[0], filterPushdown="single-scan").filter(
        (functions.col("offset") >= 38)
        & functions.col("partition").isin(0, 1)
        & (functions.col("timestamp") > "2023-11-14 22:13:20")
    )
    plan = explained(frame)
    (pushed,) = re.findall(r"PushedFilters: \[(.*)\]", plan)
    assert "GreaterThanOrEqual(offset,38)" in pushed
    assert "In(partition, [0,1])" in pushed
    assert "timestamp" not in pushed
    (left,) = re.findall(r"Condition : (.*)", plan)
    assert "timestamp" in left
    assert "offset" not in left
    assert frame.count() == 4
    assert frame.rdd.getNumPartitions() == 2


def test_what_stands_in_the_way_is_named(
    read: Reader, spark: SparkSession, filled: tuple[str, str]
) -> None:
    frame = read(subscribe=filled[0], filterPushdown="single-scan").filter("offset >= 38")
    with pytest.raises(PySparkException, match=f"KafkaFilterPushdownReader .* '{CONFIG}'"):
        frame.collect()


def test_true_is_right_however_a_dataframe_is_used(
    read: Reader, pushdown: None, filled: tuple[str, str]
) -> None:
    """What Spark before 5.0 gets wrong: scans of one `load()` read by each other's filters."""
    frame = read(subscribe=filled[0], filterPushdown="true")
    late, early = frame.where("offset >= 38"), frame.where("offset < 3")
    assert late.count() == 4
    assert frame.count() == 80
    assert late.union(early).count() == 10
    assert early.join(frame, ["partition", "offset"]).count() == 6
    assert ("PushedFilters" in explained(late)) == FILTERS_PER_SCAN


@pytest.mark.skipif(FILTERS_PER_SCAN, reason="Spark keeps scans apart")
def test_single_scan_is_still_needed(read: Reader, pushdown: None, filled: tuple[str, str]) -> None:
    """The day this fails, Spark is right and `true` can do more than it does."""
    frame = read(subscribe=filled[0], filterPushdown="single-scan")
    assert frame.where("offset >= 38").count() == 4
    assert frame.count() == 4, "instead of 80"
