"""Reads the records of a small micro-batch on the driver.

Spark's `SimpleDataSourceStreamReader` returns records together with the plan, so Spark starts no
Python task. For a few records, starting a task would take longer than reading them on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import KafkaError
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.ranges import PlannedRange
from pyspark_kafka.source.task_reader import read_ranges

log = logging.getLogger(__name__)

OFFSETS_MAX: Final = 10_000
BYTES_MAX: Final = 512 * 1024


class Prefetcher:
    """Reads micro-batches of one query. The caller must close the client."""

    def __init__(
        self, client: KafkaReadClient, columns: tuple[str, ...], options: SourceOptions
    ) -> None:
        self._client = client
        self._columns = columns
        self._options = options
        self._bytes_per_offset = 0.0

    def read(self, task: Sequence[PlannedRange]) -> list[pa.RecordBatch] | None:
        """Return the records of a task, or None if the task must read them on an executor.

        The task must read the records if there are too many offsets or bytes, or if the read fails
        on the driver: Spark retries a failed task, but not a failed plan. Raises `DataLossError`.
        """
        offsets = sum(planned.fetch_range.size for planned in task)
        if offsets > OFFSETS_MAX or offsets * self._bytes_per_offset > BYTES_MAX:
            return None
        found: list[pa.RecordBatch] = []
        size = 0
        try:
            with closing(read_ranges(self._client, task, self._columns, self._options)) as batches:
                for batch in batches:
                    found.append(batch)
                    size += batch.nbytes
                    if size > BYTES_MAX:
                        break
        except KafkaError as error:
            log.warning(
                "The driver could not read a small micro-batch, so a task reads it. %s", error
            )
            return None
        self._bytes_per_offset = size / offsets
        return found if size <= BYTES_MAX else None
