"""A runner of streaming queries that start, stop and restart from one checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark import engines


@dataclass(kw_only=True)
class StreamRunner:
    """Runner of queries from one checkpoint. `batches` contains their rows by batch id."""

    spark: SparkSession
    bootstrap_servers: str
    directory: Path
    batches: dict[int, list[Row]] = field(default_factory=dict)
    queries: list[StreamingQuery] = field(default_factory=list)
    after_batch: Callable[[], None] = lambda: None

    def available_now(self, **options: str) -> StreamingQuery:
        """Read all available records and return the query after it has ended.

        Raises the query's error if the query fails.
        """
        query = self._writer(options).trigger(availableNow=True).start()
        self.queries.append(query)
        assert query.awaitTermination(90), "the query did not end"
        return query

    def start(self, **options: str) -> StreamingQuery:
        query = self._writer(options).start()
        self.queries.append(query)
        return query

    def _writer(self, options: dict[str, str]) -> DataStreamWriter:
        read = engines.kafka(self.spark.readStream).options(**options)
        frame = read.option("kafka.bootstrap.servers", self.bootstrap_servers).load()
        return frame.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(
            self._collect
        )

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = frame.collect()
        self.after_batch()

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def values(self) -> list[str]:
        """All values, ordered by batch, topic, partition and offset."""
        return [
            row.value.decode()
            for batch_id in sorted(self.batches)
            for row in sorted(
                self.batches[batch_id], key=lambda r: (r.topic, r.partition, r.offset)
            )
        ]

    @property
    def sizes(self) -> list[int]:
        """The number of rows in each micro-batch."""
        return [len(self.batches[batch_id]) for batch_id in sorted(self.batches)]

    def forget_commit(self, batch_id: int) -> None:
        """Remove the commit of the last micro-batch, as if the query had been killed before it.

        A query that is stopped during the micro-batch has no commit.
        """
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def offsets(self, batch_id: int) -> Any:
        """Return the end offsets of a micro-batch in the checkpoint."""
        return json.loads((self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2])

    def stop(self) -> None:
        for query in self.queries:
            query.stop()
