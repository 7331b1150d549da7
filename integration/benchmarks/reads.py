"""Batch reads into Spark's no-op sink.

Measures connectors that read a topic. Also measures a source that generates the rows without Kafka,
because its throughput is the upper bound for Python data sources. Invariant: all sources return the
same columns and the same number of rows, and each connector is checked once before it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from integration.benchmarks.connectors import OURS, Connector
from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import Resources
from integration.benchmarks.synthetic import FABRICATING
from integration.benchmarks.topics import Contents


def discard_rows(rows: DataFrame) -> None:
    """Run a query that computes every column and discards the rows."""
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    """One side of a comparison, which reads a topic to its end.

    `column` is the only column to read; None means all 7 columns.
    """

    connector: Connector
    contents: Contents
    column: str | None = None

    def run(self, resources: Resources, records: int) -> Sample:
        rows = self.rows(resources, records)

        def work() -> int:
            discard_rows(rows)
            return records

        return resources.measure(work)

    def verify(self, resources: Resources, records: int) -> None:
        found = self.rows(resources, records).count()
        if found != records:
            raise ValueError(f"{found} rows were read, expected {records}")

    def rows(self, resources: Resources, records: int, **more_options: str) -> DataFrame:
        """Return a DataFrame that reads the topic."""
        topic = resources.topic(self.contents, records)
        options = resources.options_of(self.connector)
        reader = resources.spark.read.format(self.connector.format).options(**options)
        reader = reader.options(subscribe=topic, **more_options)
        if self.column is None:
            return reader.load()
        # Spark passes the required columns to a Python data source only in a user-specified schema.
        if self.connector.format == OURS:
            return reader.schema(f"{self.column} binary").load()
        return reader.load().select(self.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricatedRead:
    """One side of a comparison, which reads from a Python data source instead of Kafka.

    The data source generates the same rows as a topic with `contents`.
    """

    contents: Contents
    column: str | None = None

    def run(self, resources: Resources, records: int) -> Sample:
        rows = self._rows(resources, records)

        def work() -> int:
            discard_rows(rows)
            return records

        return resources.measure(work)

    def verify(self, resources: Resources, records: int) -> None:
        found = self._rows(resources, records).count()
        if found != records:
            raise ValueError(f"{found} rows were fabricated, expected {records}")

    def _rows(self, resources: Resources, records: int) -> DataFrame:
        reader = resources.spark.read.format(FABRICATING).options(
            rows=str(records),
            partitions=str(self.contents.partitions),
            valueBytes=str(self.contents.value_bytes),
        )
        return (reader.schema(f"{self.column} binary") if self.column else reader).load()
