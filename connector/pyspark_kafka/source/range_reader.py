"""Reads one planned range of offsets on an executor.

This module returns the records as Arrow batches, and distinguishes data loss from gaps. Gaps in the
offsets are normal: control records, aborted transactions and compaction cause them. If part of the
range is outside the broker's log, records are lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import (
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    reason_of,
)
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.ranges import PlannedRange

Sleep = Callable[[float], None]


def read_range(
    client: KafkaReadClient,
    plan: PlannedRange,
    columns: tuple[str, ...],
    options: SourceOptions,
    *,
    sleep: Sleep = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the given columns of the records in a range. Raises `DataLossError` and `KafkaError`.

    With `failOnDataLoss=false`, missing records are skipped with a warning. No record is returned
    twice.
    """
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    partition = plan.fetch_range.topic_partition
    missing = None if client.checks_topic_ids else _reason_missing(client, plan, options, sleep)
    if missing is not None:
        on_loss.report(f"{missing}.", partition)
        return
    # To continue after data loss, the read requires the offset of the last returned record.
    extra = () if on_loss.fail or "offset" in columns else ("offset",)
    remaining = plan.fetch_range
    while remaining.size > 0:
        attempted = remaining
        try:
            with closing(_fetch(client, plan, remaining, columns + extra, options)) as batches:
                for batch in batches:
                    if not on_loss.fail and batch.num_rows:
                        last = batch.column("offset")[-1].as_py()
                        remaining = replace(remaining, start_offset=last + 1)
                    yield batch.select(list(columns)) if extra else batch
            return
        except UnknownTopicOrPartitionError:
            missing = _reason_missing(client, plan, options, sleep)
            if missing is None:
                raise  # The partition exists again, and Spark may retry the task.
            on_loss.report(
                f"{missing}. Offsets {remaining.start_offset} to {remaining.end_offset} of "
                f"{partition} were not read.",
                partition,
                offset=remaining.start_offset,
            )
            return
        except OffsetOutOfRangeError as error:
            existing = _existing_range(client, partition)
            first, end = existing.start_offset, existing.end_offset
            on_loss.report_missing_offsets(remaining, first, end, reason=reason_of(error))
            start = max(min(first, remaining.end_offset), remaining.start_offset)
            end = max(min(remaining.end_offset, end), start)
            remaining = replace(remaining, start_offset=start, end_offset=end)
            if remaining == attempted:
                return  # Another attempt would fail in the same way.


def _fetch(
    client: KafkaReadClient,
    plan: PlannedRange,
    remaining: FetchRange,
    columns: tuple[str, ...],
    options: SourceOptions,
) -> Generator[pa.RecordBatch, None, None]:
    # `KafkaReadClient.fetch` returns an iterator without `close`. A generator has this method.
    yield from client.fetch(remaining, columns, options.isolation_level, topic_id=plan.topic_id)


def _reason_missing(
    client: KafkaReadClient, plan: PlannedRange, options: SourceOptions, sleep: Sleep
) -> str | None:
    """Return a clause that explains why a planned partition is missing, or None if it exists.

    If the partition is missing, the metadata is requested up to `fetchOffset.numRetries` times,
    because a broker may not have the latest metadata.
    """
    reason = None
    for attempt in range(options.client.fetch_offset_num_retries):
        if attempt:
            sleep(options.client.fetch_offset_retry_interval_ms / 1000)
        reason = _look_up_missing(client, plan)
        if reason is None:
            return None
    return reason


def _look_up_missing(client: KafkaReadClient, plan: PlannedRange) -> str | None:
    partition = plan.fetch_range.topic_partition
    topic = partition.topic
    described = client.describe_topics([topic]).get(topic)
    if described is None:
        return f"Topic '{topic}' was deleted after this read was planned"
    if plan.topic_id is not None and described.topic_id not in (None, plan.topic_id):
        return (
            f"Topic '{topic}' was deleted and recreated after this read was planned (its topic id "
            f"changed from {plan.topic_id} to {described.topic_id})"
        )
    if partition.partition not in described.partitions:
        return f"Partition {partition.partition} of topic '{topic}' no longer exists"
    return None


def _existing_range(client: KafkaReadClient, partition: TopicPartition) -> FetchRange:
    level = IsolationLevel.READ_UNCOMMITTED
    first = client.list_offsets({partition: EARLIEST}, level)[partition]
    end = client.list_offsets({partition: LATEST}, level)[partition]
    assert first is not None
    assert end is not None
    return FetchRange(topic_partition=partition, start_offset=first, end_offset=end)
