"""JSON for partitions and offsets, in the format of Spark's Kafka connector (`JsonUtils`).

Options and checkpoints contain JSON such as `{"topic":{"0":123}}`. Because the format is the same,
this connector can continue from a checkpoint of Spark's connector, and vice versa. Parsing rejects
invalid topics, partitions and offsets.
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

_OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":42}}'
_TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":1700000000000}}'
_PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1]}'
_CHECKPOINT_EXAMPLE: Final = '{"topicA":{"0":23}}'


class OffsetFormatError(ValueError):
    """The JSON has the wrong format. Callers convert this error to a `PysparkKafkaError`.

    `problem` is a clause without a capital letter or a period. `example` is valid JSON. `topic` and
    `partition` are set if the problem concerns them.
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
    """Parse partitions such as `{"topic":[0,1]}`. Raises `OffsetFormatError`."""
    found: set[TopicPartition] = set()
    example = _PARTITIONS_EXAMPLE
    for topic, partitions in _topics(_load(text, example), example):
        if not isinstance(partitions, list) or not partitions:
            raise OffsetFormatError(
                f"the value of topic '{topic}' is not a list of partitions",
                example=example,
                topic=topic,
            )
        for number in partitions:
            found.add(TopicPartition(topic, _partition(topic, number, example)))
    return frozenset(found)


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse offsets such as `{"topic":{"0":23,"1":-2}}`. Raises `OffsetFormatError`.

    The offsets -2 (earliest) and -1 (latest) are valid.
    """
    return _numbers(_load(text, _OFFSETS_EXAMPLE), EARLIEST, _OFFSETS_EXAMPLE)


def parse_timestamps(text: str) -> dict[TopicPartition, int]:
    """Parse timestamps such as `{"topic":{"0":1700000000000}}`. Raises `OffsetFormatError`.

    Timestamps are in milliseconds since the epoch.
    """
    return _numbers(_load(text, _TIMESTAMPS_EXAMPLE), 0, _TIMESTAMPS_EXAMPLE)


def from_json_object(value: object) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint from decoded JSON. Raises `OffsetFormatError`.

    Negative offsets are invalid. `{}` is valid: a query whose pattern matches no topic writes `{}`
    to its checkpoint.
    """
    return {} if value == {} else _numbers(value, 0, _CHECKPOINT_EXAMPLE)


def to_json_object(offsets: PartitionOffsets) -> OffsetJson:
    """Return the object that Spark writes to the checkpoint, sorted by partition."""
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
            f"the text is not valid JSON ({error.msg} at character {error.pos + 1})",
            example=example,
        ) from None
    except OffsetFormatError:
        raise
    except ValueError:  # Python limits the number of digits.
        raise OffsetFormatError("a number has too many digits", example=example) from None
    except RecursionError:
        raise OffsetFormatError("the JSON is nested too deeply", example=example) from None


def _without_duplicates(example: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise OffsetFormatError(f"the JSON contains '{key}' twice", example=example)
        result[key] = value
    return result


def _topics(value: object, example: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict) or not value:
        raise OffsetFormatError("the JSON is not an object with topics as keys", example=example)
    for topic, content in value.items():
        if not isinstance(topic, str) or not topic:
            raise OffsetFormatError("the JSON contains an empty topic name", example=example)
        yield topic, content


def _numbers(value: object, minimum: int, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _topics(value, example):
        if not isinstance(partitions, dict) or not partitions:
            raise OffsetFormatError(
                f"the value of topic '{topic}' is not an object with partitions as keys",
                example=example,
                topic=topic,
            )
        for key, number in partitions.items():
            partition = _partition(topic, key, example)
            topic_partition = TopicPartition(topic, partition)
            problem = None
            if isinstance(number, bool) or not isinstance(number, int):
                problem = f"the value of {topic_partition} is {number!r}, which is not an integer"
            elif not minimum <= number <= LONG_MAX:
                problem = (
                    f"the value of {topic_partition} is {number}, which is not in the range from "
                    f"{minimum} to {LONG_MAX}"
                )
            elif topic_partition in found:
                problem = f"the JSON contains {topic_partition} twice"
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
        f"partition {value!r} of topic '{topic}' is not an integer from 0 to {INT_MAX}",
        example=example,
        topic=topic,
    )
