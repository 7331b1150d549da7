"""The executor's half of a read: one planned range in, Arrow batches out.

Purpose: read a range and tell loss from gaps. Gaps left by control records, aborted transactions
and compaction are nothing to tell; a range that the broker no longer has is. What it must not
know: Spark, how clients are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from pyspark_kafka.client.port import KafkaReads
from pyspark_kafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import SourceOptions
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.ranges import PlannedRange

Sleep = Callable[[float], None]


def read_range(
    client: KafkaReads,
    plan: PlannedRange,
    columns: tuple[str, ...],
    options: SourceOptions,
    *,
    sleep: Sleep = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range with these columns; raises `DataLossError`, `KafkaError`.

    With `failOnDataLoss=false` what is gone is skipped with a warning, and no record is
    delivered twice.
    """
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    partition = plan.fetch_range.topic_partition
    gone = None if client.pins_topic_ids else _gone(client, plan, options, sleep)
    if gone is not None:
        on_loss.report(gone)
        return
    # After a loss the read goes on behind what was delivered, which only the offsets tell.
    extra = () if on_loss.fail or "offset" in columns else ("offset",)
    left = plan.fetch_range
    while left.size > 0:
        tried = left
        try:
            with closing(_fetch(client, plan, left, columns + extra, options)) as batches:
                for batch in batches:
                    if not on_loss.fail and batch.num_rows:
                        last = batch.column("offset")[-1].as_py()
                        left = replace(left, start_offset=last + 1)
                    yield batch.select(list(columns)) if extra else batch
            return
        except UnknownTopicOrPartitionError:
            gone = _gone(client, plan, options, sleep)
            if gone is None:
                raise  # it is there again: Spark may run the task again
            on_loss.report(f"{partition}: offsets {_span(left)} were to be read, and {gone}")
            return
        except OffsetOutOfRangeError as error:
            existing = _existing(client, partition)
            on_loss.report(
                f"{partition}: offsets {_span(left)} were to be read, and {existing.start_offset} "
                f"to {existing.end_offset} exist ({error})"
            )
            start = max(min(existing.start_offset, left.end_offset), left.start_offset)
            end = max(min(left.end_offset, existing.end_offset), start)
            left = replace(left, start_offset=start, end_offset=end)
            if left == tried:
                return  # else for ever


def _fetch(
    client: KafkaReads,
    plan: PlannedRange,
    left: FetchRange,
    columns: tuple[str, ...],
    options: SourceOptions,
) -> Generator[pa.RecordBatch, None, None]:
    # A generator of our own, since the port promises an iterator, and only generators close.
    yield from client.fetch(left, columns, options.isolation_level, topic_id=plan.topic_id)


def _gone(
    client: KafkaReads, plan: PlannedRange, options: SourceOptions, sleep: Sleep
) -> str | None:
    """What has become of the topic partition that was planned, or None if it is there.

    The broker asked may not have heard yet of what is new, so one that says so is asked again,
    `fetchOffset.numRetries` times in all.
    """
    gone = None
    for attempt in range(options.client.fetch_offset_num_retries):
        if attempt:
            sleep(options.client.fetch_offset_retry_interval_ms / 1000)
        gone = _missing(client, plan)
        if gone is None:
            return None
    return gone


def _missing(client: KafkaReads, plan: PlannedRange) -> str | None:
    partition = plan.fetch_range.topic_partition
    topic = partition.topic
    described = client.describe_topics([topic]).get(topic)
    if described is None:
        return f"topic '{topic}' was deleted after this read was planned"
    if plan.topic_id is not None and described.topic_id not in (None, plan.topic_id):
        return (
            f"topic '{topic}' was deleted and created again after this read was planned (its id "
            f"was {plan.topic_id} and is {described.topic_id})"
        )
    if partition.partition not in described.partitions:
        return f"topic '{topic}' has no partition {partition.partition} any more"
    return None


def _existing(client: KafkaReads, partition: TopicPartition) -> FetchRange:
    level = IsolationLevel.READ_UNCOMMITTED
    first = client.list_offsets({partition: EARLIEST}, level)[partition]
    last = client.list_offsets({partition: LATEST}, level)[partition]
    assert first is not None
    assert last is not None
    return FetchRange(topic_partition=partition, start_offset=first, end_offset=last)


def _span(fetch_range: FetchRange) -> str:
    return f"{fetch_range.start_offset} to {fetch_range.end_offset}"
