"""Converts Spark's Arrow batches to batches that a producer accepts.

The rows of a batch are checked before the batch is sent, and converted to the types of
`columns.PRODUCE_SCHEMA`. Invariant: in every converted row the topic is set, the partition exists
or is null, and every header has a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka.columns import PRODUCE_SCHEMA, repeated
from pyspark_kafka.errors import RowError, counted

PartitionCount = Callable[[str], int | None]
"""Returns the current number of partitions of a topic, or None if the topic does not exist."""

_BINARY_OF = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


@dataclass(slots=True, kw_only=True)
class RowPreparation:
    """Converts and checks the batches of one task.

    `topic` is None if the `topic` column contains the topic of each row. `rows_by_topic` counts the
    converted rows.
    """

    topic: str | None
    partition_count: PartitionCount
    rows_by_topic: Counter[str] = field(default_factory=Counter)
    _known_counts: dict[str, int | None] = field(default_factory=dict)

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the converted batch, or raise `RowError` if a row cannot be written."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        topics = self._topics(columns.get("topic"), batch.num_rows)
        prepared: dict[str, Any] = {"topic": topics}
        for name in ("value", "key"):
            if name in columns:
                prepared[name] = _as_binary(columns[name])
        if "partition" in columns:
            prepared["partition"] = columns["partition"]
            for topic, lowest, highest in self._bounds(topics, columns["partition"]):
                self._check_partitions(topic, lowest, highest)
        if "timestamp" in columns:
            prepared["timestamp"] = _milliseconds(columns["timestamp"])
        if "headers" in columns:
            _check_headers(columns["headers"])
            prepared["headers"] = columns["headers"]
        if self.topic is not None:
            self.rows_by_topic[self.topic] += batch.num_rows
        else:
            for counted in topics.value_counts():
                self.rows_by_topic[counted["values"].as_py()] += counted["counts"].as_py()
        return pa.RecordBatch.from_pydict(prepared)

    def _topics(self, column: Any, row_count: int) -> Any:
        """Return each row's topic in a dictionary array, because most batches have one topic."""
        if self.topic is not None:
            return pa.DictionaryArray.from_arrays(repeated(0, row_count), repeated(self.topic, 1))
        if column.null_count:
            raise RowError(
                f"Column 'topic' is null in {column.null_count} of {counted(row_count, 'row')}.",
                advice="Replace the nulls, drop these rows, or set the option 'topic'.",
                column="topic",
            )
        return column.dictionary_encode()

    def _bounds(self, topics: Any, partitions: Any) -> Iterable[tuple[str, int, int]]:
        """Return each topic with the lowest and the highest partition that its rows specify."""
        if self.topic is not None:  # `group_by` would import pandas.
            found = [(self.topic, *pc.min_max(partitions).as_py().values())]
        else:
            table = pa.table({"topic": topics, "partition": partitions}).group_by("topic")
            bounds = table.aggregate([("partition", "min"), ("partition", "max")])
            found = [*zip(*bounds.to_pydict().values(), strict=True)]
        return [bounds for bounds in found if bounds[1] is not None]

    def _check_partitions(self, topic: str, lowest: int, highest: int) -> None:
        if lowest < 0:
            raise _no_such_partition(topic, lowest, self._count(topic))
        count = self._count(topic)
        if count is not None and highest >= count:
            count = self._count(topic, again=True)
        if count is not None and highest >= count:
            raise _no_such_partition(topic, highest, count)

    def _count(self, topic: str, *, again: bool = False) -> int | None:
        """Return the number of partitions, or None if the topic is unknown.

        An unknown topic is not an error here: the producer reports it, or the broker creates the
        topic.
        """
        if again or topic not in self._known_counts:
            self._known_counts[topic] = self.partition_count(topic)
        return self._known_counts[topic]


def _no_such_partition(topic: str, partition: int, count: int | None) -> RowError:
    has = "does not exist yet"
    if count is not None:
        has = f"has {counted(count, 'partition')} (0 to {count - 1})"
    return RowError(
        f"A row specifies partition {partition} in column 'partition', but topic '{topic}' {has}.",
        advice="Correct the value, or set it to null to let the partitioner choose a partition.",
        column="partition",
        topic=topic,
        partition=partition,
    )


def _as_binary(column: Any) -> Any:
    """Cast a string column to binary (UTF-8) without copying the data."""
    target = _BINARY_OF.get(column.type)
    return column if target is None else column.cast(target)


def _milliseconds(column: Any) -> Any:
    times = column.cast(PRODUCE_SCHEMA.field("timestamp").type, safe=False)
    earliest = pc.min(times.cast(pa.int64())).as_py()
    if earliest is not None and earliest < 0:
        # `datetime` cannot represent years before 1. Without a time zone, Arrow does not need the
        # time zone database.
        text = pc.min(times).cast(pa.timestamp("ms")).cast(pa.string())
        raise RowError(
            f"A row has the timestamp {text}, but Kafka timestamps cannot be before 1970.",
            advice="Correct the value in column 'timestamp', or set it to null to use the time at "
            "which the row is sent.",
            column="timestamp",
        )
    return times


def _check_headers(column: Any) -> None:
    headers = pc.list_flatten(column)
    if headers.null_count or headers.field("key").null_count:
        raise RowError(
            "A row has a null header, or a header with a null key. Kafka allows neither.",
            advice="Remove null headers and headers with a null key. The value of a header may be "
            "null.",
            column="headers",
        )
