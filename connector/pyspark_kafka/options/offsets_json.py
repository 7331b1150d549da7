"""Offsets per partition: their JSON, which is that of Spark's own connector, and their checks.

Purpose: one reading and one writing of `{"topic":{"0":123}}`, used by options and checkpoints
alike, so that a checkpoint of Spark's connector can be continued by ours and back (JsonUtils
there). Invariant: what comes out of `parse_*` has sane topics, partitions and numbers. What it
must not know: which option or checkpoint the text is from; callers put that into their errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from pyspark_kafka.kafka.offsets import EARLIEST, INT_MAX, LONG_MAX, PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition

OffsetJson = dict[str, dict[str, int]]

OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-2}}'
TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":1700000000000}}'
PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1]}'


class OffsetFormatError(ValueError):
    """Not the shape it should be; the message says what and where."""


def parse_partitions(text: str) -> frozenset[TopicPartition]:
    """`{"topic":[0,1]}`; raises `OffsetFormatError`."""
    found: set[TopicPartition] = set()
    for topic, partitions in _topics(_load(text, PARTITIONS_EXAMPLE), PARTITIONS_EXAMPLE):
        if not isinstance(partitions, list) or not partitions:
            raise OffsetFormatError(
                f"topic '{topic}' must have a list of partitions, as in {PARTITIONS_EXAMPLE}"
            )
        found.update(TopicPartition(topic, _partition(topic, number)) for number in partitions)
    return frozenset(found)


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """`{"topic":{"0":23,"1":-2}}`, -2 and -1 included; raises `OffsetFormatError`."""
    return _numbers(_load(text, OFFSETS_EXAMPLE), EARLIEST, OFFSETS_EXAMPLE)


def parse_timestamps(text: str) -> dict[TopicPartition, int]:
    """`{"topic":{"0":1700000000000}}`, epoch milliseconds; raises `OffsetFormatError`."""
    return _numbers(_load(text, TIMESTAMPS_EXAMPLE), 0, TIMESTAMPS_EXAMPLE)


def from_json_object(value: object) -> dict[TopicPartition, int]:
    """Offsets of a checkpoint, already out of JSON: none is negative. Raises `OffsetFormatError`.

    `{}` is what a query writes whose pattern has matched no topic yet.
    """
    return {} if value == {} else _numbers(value, 0, '{"topicA":{"0":23}}')


def to_json_object(offsets: PartitionOffsets) -> OffsetJson:
    """What Spark writes into the checkpoint; in order, so that equal offsets have equal text."""
    result: OffsetJson = {}
    for topic_partition in sorted(offsets):
        partitions = result.setdefault(topic_partition.topic, {})
        partitions[str(topic_partition.partition)] = offsets[topic_partition]
    return result


def _load(text: str, example: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise OffsetFormatError(
            f"it is not JSON ({error.msg} at character {error.pos + 1}); expected e.g. {example}"
        ) from None
    except RecursionError:
        raise OffsetFormatError(f"it is nested too deep; expected e.g. {example}") from None


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise OffsetFormatError(f"it names '{key}' twice")
        result[key] = value
    return result


def _topics(value: object, example: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict) or not value:
        raise OffsetFormatError(f"expected e.g. {example}")
    for topic, content in value.items():
        if not isinstance(topic, str) or not topic:
            raise OffsetFormatError(f"a topic must have a name; expected e.g. {example}")
        yield topic, content


def _numbers(value: object, minimum: int, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _topics(value, example):
        if not isinstance(partitions, dict) or not partitions:
            raise OffsetFormatError(
                f"topic '{topic}' must have its partitions in an object, as in {example}"
            )
        for key, number in partitions.items():
            topic_partition = TopicPartition(topic, _partition(topic, key))
            if isinstance(number, bool) or not isinstance(number, int):
                raise OffsetFormatError(f"{topic_partition} has {number!r}, which is no number")
            if not minimum <= number <= LONG_MAX:
                raise OffsetFormatError(
                    f"{topic_partition} has {number}, which is not from {minimum} to {LONG_MAX}"
                )
            if topic_partition in found:
                raise OffsetFormatError(f"it names {topic_partition} twice")
            found[topic_partition] = number
    return found


def _partition(topic: str, value: object) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value, re.ASCII)):
        number = int(str(value))
        if 0 <= number <= INT_MAX:
            return number
    raise OffsetFormatError(
        f"topic '{topic}' has the partition {value!r}, which is not a number from 0 to {INT_MAX}"
    )
