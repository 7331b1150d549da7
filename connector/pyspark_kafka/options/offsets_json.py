"""The JSON of partitions and offsets, in the format of Spark's connector (`JsonUtils`).

Purpose: read and write `{"topic":{"0":123}}` for options and checkpoints. Either connector can
continue a checkpoint of the other. Invariant: parsed topics, partitions and numbers are valid.
Must not know: which option or checkpoint contains the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from pyspark_kafka.kafka.offsets import EARLIEST, INT_MAX, LONG_MAX, PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition

OffsetJson = dict[str, dict[str, int]]

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-2}}'
_TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":1700000000000}}'
_PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1]}'
_CHECKPOINT_EXAMPLE: Final = '{"topicA":{"0":23}}'


class OffsetFormatError(ValueError):
    """A text or object has the wrong format; callers raise an error of the tree instead.

    `problem` is a clause without capital letter and full stop. `example` is a valid text. `topic`
    and `partition` are set where the problem is one of them.
    """

    def __init__(
        self,
        problem: str,
        *,
        example: str = _CHECKPOINT_EXAMPLE,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.example = example
        self.topic = topic
        self.partition = partition


def parse_partitions(text: str) -> frozenset[TopicPartition]:
    """Parse `{"topic":[0,1]}`; raises `OffsetFormatError`."""
    found: set[TopicPartition] = set()
    example = _PARTITIONS_EXAMPLE
    for topic, partitions in _topics(_load(text, example), example):
        if not isinstance(partitions, list) or not partitions:
            raise OffsetFormatError(
                f"topic '{topic}' has no list of partitions", example=example, topic=topic
            )
        for number in partitions:
            found.add(TopicPartition(topic, _partition(topic, number, example)))
    return frozenset(found)


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":23,"1":-2}}`, including -2 and -1; raises `OffsetFormatError`."""
    return _numbers(_load(text, _OFFSETS_EXAMPLE), EARLIEST, _OFFSETS_EXAMPLE)


def parse_timestamps(text: str) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":1700000000000}}` (epoch milliseconds); raises `OffsetFormatError`."""
    return _numbers(_load(text, _TIMESTAMPS_EXAMPLE), 0, _TIMESTAMPS_EXAMPLE)


def from_json_object(value: object) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint from decoded JSON; raises `OffsetFormatError`.

    Offsets are not negative. A query whose pattern matches no topic yet writes `{}`.
    """
    return {} if value == {} else _numbers(value, 0, _CHECKPOINT_EXAMPLE)


def to_json_object(offsets: PartitionOffsets) -> OffsetJson:
    """Return the object that Spark writes into the checkpoint, in the order of partitions."""
    result: OffsetJson = {}
    for topic_partition in sorted(offsets):
        partitions = result.setdefault(topic_partition.topic, {})
        partitions[str(topic_partition.partition)] = offsets[topic_partition]
    return result


def _load(text: str, example: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=partial(_without_duplicates, example))
    except json.JSONDecodeError as error:
        raise OffsetFormatError(
            f"it is not JSON ({error.msg} at character {error.pos + 1})", example=example
        ) from None
    except RecursionError:
        raise OffsetFormatError("it is nested too deep", example=example) from None


def _without_duplicates(example: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise OffsetFormatError(f"it contains '{key}' twice", example=example)
        result[key] = value
    return result


def _topics(value: object, example: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict) or not value:
        raise OffsetFormatError("it is not an object whose keys are topics", example=example)
    for topic, content in value.items():
        if not isinstance(topic, str) or not topic:
            raise OffsetFormatError("a topic has no name", example=example)
        yield topic, content


def _numbers(value: object, minimum: int, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _topics(value, example):
        if not isinstance(partitions, dict) or not partitions:
            raise OffsetFormatError(
                f"topic '{topic}' has no object with partitions", example=example, topic=topic
            )
        for key, number in partitions.items():
            partition = _partition(topic, key, example)
            topic_partition = TopicPartition(topic, partition)
            problem = None
            if isinstance(number, bool) or not isinstance(number, int):
                problem = f"the value of {topic_partition} is {number!r}, which is not an integer"
            elif not minimum <= number <= LONG_MAX:
                problem = (
                    f"the value of {topic_partition} is {number}, which is not from {minimum} to "
                    f"{LONG_MAX}"
                )
            elif topic_partition in found:
                problem = f"it contains {topic_partition} twice"
            if problem is not None:
                raise OffsetFormatError(problem, example=example, topic=topic, partition=partition)
            found[topic_partition] = number
    return found


def _partition(topic: str, value: object, example: str) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value, re.ASCII)):
        number = int(str(value))
        if 0 <= number <= INT_MAX:
            return number
    raise OffsetFormatError(
        f"topic '{topic}' has the partition {value!r}, which is not a number from 0 to {INT_MAX}",
        example=example,
        topic=topic,
    )
