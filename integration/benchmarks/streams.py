"""Streaming reads of a large backlog and of frequent small micro-batches.

A backlog is read with `Trigger.AvailableNow` into Spark's no-op sink. Micro-batches of a few rows
are read and written with the same connector. Invariant: every query has its own checkpoint and is
stopped, and every read is checked for missing rows.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from integration.benchmarks.connectors import Connector
from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import WORK_TIMEOUT_S, Resources
from integration.benchmarks.synthetic import TRIVIAL
from integration.benchmarks.topics import BATCH_RECORDS, Contents

BATCH_SECONDS: Final = "seconds per micro-batch"
"""The median of `durationMs.triggerExecution` of a query's micro-batches, in seconds."""

BATCH_ROWS: Final = 10
_BATCHES_OF_WARM_UP: Final = 4
_PARTITIONS: Final = 2
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """One side of a comparison, which reads a backlog to its last record with a streaming query."""

    connector: Connector
    contents: Contents

    def run(self, resources: Resources, records: int) -> Sample:
        topic = resources.topic(self.contents, records)
        options = resources.options_of(self.connector)
        reader = resources.spark.readStream.format(self.connector.format).options(**options)
        rows = reader.options(subscribe=topic, startingOffsets="earliest").load()
        checkpoint = str(resources.new_directory())
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", checkpoint)

        def work() -> int:
            query = writer.start()
            try:
                if not query.awaitTermination(int(WORK_TIMEOUT_S)):
                    raise TimeoutError(f"the query did not end within {WORK_TIMEOUT_S:g} s")
                found = sum(progress.numInputRows for progress in query.recentProgress)
            finally:
                query.stop()
            if found != records:
                raise ValueError(f"{found} rows were read, expected {records}")
            return found

        return resources.measure(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """A benchmark workload that runs successive micro-batches with one connector.

    Each micro-batch contains `rows` rows in `tasks` tasks. If `connector` is None, the module
    `synthetic` provides the source and the sink. The argument `records` of `run` is the total
    number of rows, which determines the number of micro-batches. `exactly_once` sets the
    `transactionalId` option. Each partition of the input topic is read by one task, unless
    `max_partitions` sets the `maxPartitions` option.
    """

    connector: Connector | None
    exactly_once: bool = False
    rows: int = BATCH_ROWS
    tasks: int = _PARTITIONS
    max_partitions: int | None = None

    def run(self, resources: Resources, records: int) -> Sample:
        batches = max(records // self.rows, 1) + _BATCHES_OF_WARM_UP
        with ExitStack() as opened:
            if self.connector is None:
                reader = resources.spark.readStream.format(TRIVIAL).options(
                    rows=str(self.rows), partitions=str(self.tasks)
                )
                writer = reader.load().writeStream.format(TRIVIAL)
            else:
                reader = self._reader(resources, self.connector, batches)
                output = opened.enter_context(resources.empty_topic(_PARTITIONS))
                writer = self._writer(resources, self.connector, reader, output)
                if self.exactly_once:
                    writer = writer.option("transactionalId", output)
            query = writer.option("checkpointLocation", str(resources.new_directory())).start()
            opened.callback(query.stop)
            return {BATCH_SECONDS: _median_seconds(query, batches, self.rows)}

    def _reader(self, resources: Resources, connector: Connector, batches: int) -> DataStreamReader:
        # The topic has more rows than needed, because the query must have work until it is stopped.
        contents = Contents(value_bytes=100, partitions=self.tasks)
        # All partitions have the same size, because Spark divides a limit among partitions in
        # proportion to the remaining rows and rounds down.
        blocks = 1 + 2 * batches * self.rows // (self.tasks * BATCH_RECORDS)
        topic = resources.topic(contents, blocks * self.tasks * BATCH_RECORDS)
        options = resources.options_of(connector)
        if self.max_partitions is not None:
            options["maxPartitions"] = str(self.max_partitions)
        reader = resources.spark.readStream.format(connector.format).options(**options)
        return reader.options(
            subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(self.rows)
        )

    @staticmethod
    def _writer(
        resources: Resources, connector: Connector, reader: DataStreamReader, topic: str
    ) -> DataStreamWriter:
        options = resources.options_of(connector)
        writer = reader.load().select("value").writeStream.format(connector.format)
        return writer.options(**options).option("topic", topic)


def _median_seconds(query: StreamingQuery, batches: int, rows: int) -> float:
    """Wait for `batches` micro-batches and return their median duration, excluding the warm-up."""
    deadline_s = time.monotonic() + WORK_TIMEOUT_S
    while True:
        failure = query.exception()
        if failure is not None:
            raise failure
        last = query.lastProgress
        if last is not None and last.batchId + 1 >= batches:
            break
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{batches} micro-batches took more than {WORK_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)
    taken_ms = [
        progress.durationMs["triggerExecution"]
        for progress in query.recentProgress
        if _BATCHES_OF_WARM_UP <= progress.batchId < batches
    ]
    found = {p.numInputRows for p in query.recentProgress if p.batchId < batches}
    if found != {rows}:
        raise ValueError(
            f"each micro-batch must have {rows} rows, but the sizes were {sorted(found)}"
        )
    return statistics.median(taken_ms) / 1000
