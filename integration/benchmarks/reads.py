"""Batch reads into Spark's no-op sink.

Purpose: a connector's read of a topic, and the fabricated rows that are its upper limit. Invariant:
each side returns the same columns of the same number of rows; each connector is checked once before
it is measured. What it must not know: the comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from integration.benchmarks.connectors import OURS, Connector
from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import Resources
from integration.benchmarks.synthetic import FABRICATING
from integration.benchmarks.topics import Contents


def to_nowhere(rows: DataFrame) -> None:
    """Run a query that needs every column."""
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    """A connector reads a topic to its end; `column` is the only column, None means all 7."""

    connector: Connector
    contents: Contents
    column: str | None = None

    def run(self, resources: Resources, records: int) -> Sample:
        rows = self.rows(resources, records)

        def work() -> int:
            to_nowhere(rows)
            return records

        return resources.measure(work)

    def prove(self, resources: Resources, records: int) -> None:
        found = self.rows(resources, records).count()
        if found != records:
            raise ValueError(f"only {found} of {records} rows were read")

    def rows(self, resources: Resources, records: int, **more_options: str) -> DataFrame:
        """Return the DataFrame."""
        topic = resources.topic(self.contents, records)
        options = self.connector.options_with(
            bootstrap_servers=resources.cluster.bootstrap_servers, engine=resources.engine
        )
        reader = resources.spark.read.format(self.connector.format).options(**options)
        reader = reader.options(subscribe=topic, **more_options)
        if self.column is None:
            return reader.load()
        # Spark passes required columns to a Python data source only by its schema.
        if self.connector.format == OURS:
            return reader.schema(f"{self.column} binary").load()
        return reader.load().select(self.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabricated:
    """A Python data source fabricates the rows of such a topic."""

    contents: Contents
    column: str | None = None

    def run(self, resources: Resources, records: int) -> Sample:
        rows = self._rows(resources, records)

        def work() -> int:
            to_nowhere(rows)
            return records

        return resources.measure(work)

    def prove(self, resources: Resources, records: int) -> None:
        found = self._rows(resources, records).count()
        if found != records:
            raise ValueError(f"only {found} of {records} rows were fabricated")

    def _rows(self, resources: Resources, records: int) -> DataFrame:
        reader = resources.spark.read.format(FABRICATING).options(
            rows=str(records),
            partitions=str(self.contents.partitions),
            valueBytes=str(self.contents.value_bytes),
        )
        return (reader.schema(f"{self.column} binary") if self.column else reader).load()
