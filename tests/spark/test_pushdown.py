"""Filter pushdown through Spark returns the same rows and reads fewer records."""

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
    pytest.mark.spark_version,
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not FILTER_PUSHDOWN, reason="filter pushdown requires Spark 4.1"),
]

CONFIG = "spark.sql.python.filterPushdown.enabled"
T0_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
KEPT = {"retention.ms": "-1"}


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Enable filter pushdown in Spark, which is disabled by default."""
    spark.conf.set(CONFIG, "true")
    yield
    spark.conf.unset(CONFIG)


@pytest.fixture
def filled(topic: TopicFactory, produce: Produce) -> tuple[str, str]:
    """Return two topics with two partitions of 40 records.

    Timestamps increase by 10 ms per record, except that every seventh record is 150 ms late.
    """
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
    """Return the number of rows that the source returned. The DataFrame must be collected first."""
    scan = frame._jdf.queryExecution().executedPlan()
    while scan.children().size():
        scan = scan.children().head()
    return int(scan.metrics().apply("numOutputRows").value())


def test_pushdown_returns_the_same_rows_and_reads_fewer_records(
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
    for predicate, rows_max in predicates.items():
        frame = read(subscribe=f"{one},{other}", filterPushdown="single-scan").where(predicate)
        assert sorted(frame.collect()) == sorted(everything.where(predicate).collect()), predicate
        assert rows_read(frame) <= rows_max, predicate
    everything.unpersist()


def test_pushed_filters_in_the_query_plan(
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
    (evaluated,) = re.findall(r"Condition : (.*)", plan)
    assert "timestamp" in evaluated
    assert "offset" not in evaluated
    assert frame.count() == 4
    assert frame.rdd.getNumPartitions() == 2


def test_pushdown_that_is_disabled_in_spark_is_an_error(
    read: Reader, spark: SparkSession, filled: tuple[str, str]
) -> None:
    frame = read(subscribe=filled[0], filterPushdown="single-scan").filter("offset >= 38")
    with pytest.raises(PySparkException, match=f"KafkaFilterPushdownReader .* '{CONFIG}'"):
        frame.collect()


def test_pushdown_with_several_scans_of_a_dataframe(
    read: Reader, pushdown: None, filled: tuple[str, str]
) -> None:
    """Before Spark 5.0, several scans of one `load()` share their filters."""
    frame = read(subscribe=filled[0], filterPushdown="true")
    late, early = frame.where("offset >= 38"), frame.where("offset < 3")
    assert late.count() == 4
    assert frame.count() == 80
    assert late.union(early).count() == 10
    assert early.join(frame, ["partition", "offset"]).count() == 6
    assert ("PushedFilters" in explained(late)) == FILTERS_PER_SCAN


@pytest.mark.skipif(
    FILTERS_PER_SCAN, reason="this Spark version does not share filters between scans"
)
def test_single_scan_is_necessary(read: Reader, pushdown: None, filled: tuple[str, str]) -> None:
    """If this test fails, Spark has fixed the bug, and `true` can push filters down as well."""
    frame = read(subscribe=filled[0], filterPushdown="single-scan")
    assert frame.where("offset >= 38").count() == 4
    assert frame.count() == 4, "Spark returned all 80 rows"
