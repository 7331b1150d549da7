"""Implements the `failOnDataLoss` option: fail on data loss, or warn about it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark_kafka.errors import DataLossError
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLossPolicy:
    fail: bool

    def report(
        self,
        message: str,
        partition: TopicPartition | None = None,
        *,
        topic: str | None = None,
        offset: int | None = None,
        advice: str | None = None,
    ) -> None:
        """Raise `DataLossError`, or log a warning and return."""
        if self.fail:
            raise DataLossError(
                message,
                topic=topic if partition is None else partition.topic,
                partition=None if partition is None else partition.partition,
                offset=offset,
                advice=advice,
            )
        log.warning("%s The query continues, because 'failOnDataLoss' is 'false'.", message)

    def report_missing_offsets(
        self, requested: FetchRange, start_offset: int, end_offset: int, *, reason: str = ""
    ) -> None:
        """Report that only offsets from `start_offset` to `end_offset` (exclusive) exist."""
        partition = requested.topic_partition
        why = f" ({reason})" if reason else ""
        self.report(
            f"The query has to read offsets {requested.start_offset} to {requested.end_offset} of "
            f"{partition}, but only offsets {start_offset} to {end_offset} exist{why}.",
            partition,
            offset=requested.start_offset,
        )
