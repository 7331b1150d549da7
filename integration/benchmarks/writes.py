"""Batch writes of rows that Spark generates.

Measures connectors that write a DataFrame, and sinks that drop its rows. Invariant: all connectors
and sinks receive the same DataFrame, and each topic that a connector writes to is checked for
missing rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812, as everyone calls it

from integration.benchmarks.connectors import Connector
from integration.benchmarks.measure import Sample
from integration.benchmarks.payload import DISTINCT, values
from integration.benchmarks.resources import Resources
from integration.benchmarks.topics import record_count

PARTITIONS: Final = 4
"""The number of partitions of the topic, and of the DataFrame unless a side specifies `tasks`."""


def generated_rows(
    resources: Resources, value_bytes: int, records: int, tasks: int = PARTITIONS
) -> DataFrame:
    """Return a DataFrame of `records` values in the `value` column, with minimal work per row."""
    ids = resources.spark.range(0, records, 1, tasks)
    lines = b"\n".join(values(value_bytes)).decode()
    # Spark folds this expression into a constant.
    pool = F.split(F.lit(lines), "\n").cast("array<binary>")
    return ids.select(pool[(F.col("id") % DISTINCT).cast("int")].alias("value"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWrite:
    """A benchmark workload that writes rows in `tasks` tasks to a new topic.

    The record batches are compressed with `codec`. `exactly_once` sets the `transactionalId`
    option, which only our connector supports.
    """

    connector: Connector
    value_bytes: int
    codec: str = "none"
    exactly_once: bool = False
    tasks: int = PARTITIONS

    def run(self, resources: Resources, records: int) -> Sample:
        rows = generated_rows(resources, self.value_bytes, records, self.tasks)
        servers = resources.cluster.bootstrap_servers
        options = resources.options_of(self.connector)
        if self.codec != "none":
            options["kafka.compression.type"] = self.codec
        with resources.empty_topic(PARTITIONS) as topic:
            writer = rows.write.format(self.connector.format).options(**options)
            writer = writer.option("topic", topic).mode("append")
            if self.exactly_once:
                writer = writer.option("transactionalId", topic)

            def work() -> int:
                writer.save()
                return records

            sample = resources.measure(work)
            found = record_count(servers, topic, PARTITIONS)
            # Each transaction has a control record in each partition that its task wrote to.
            markers = range(1, self.tasks * PARTITIONS + 1) if self.exactly_once else range(1)
            if found - records not in markers:
                raise ValueError(f"{found} records were written, expected {records}")
            return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardingWrite:
    """One side of a comparison, which discards rows with Spark's `noop` sink or a Python sink."""

    format: str
    value_bytes: int

    def run(self, resources: Resources, records: int) -> Sample:
        rows = generated_rows(resources, self.value_bytes, records)

        def work() -> int:
            rows.write.format(self.format).mode("append").save()
            return records

        return resources.measure(work)
