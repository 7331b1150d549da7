"""What filters say about where to read: conditions in, a `Pruning` out.

Purpose: decide which partitions and offsets a batch read can leave out, and which conditions that
answers in full. Invariant: no row that satisfies all conditions is left out, and every row that is
not left out satisfies the conditions called exact. What it must not know: Spark, clients.

`topic`, `partition` and `offset` are never null in a row; a literal may be, and then SQL's logic of
three values holds. A lower bound on `timestamp` becomes an offset: Kafka tells the first record
with a timestamp or a later one, and all before it are older, in whatever order the timestamps are
(`LogSegment.findOffsetByTimestamp`). An upper bound never does: see docs/adr/0005.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.source.pushdown_offsets import (
    END,
    EVERY,
    NONE,
    Offsets,
    bridged,
    complement,
    contains,
    intersection,
    offsets_of,
)


class Operator(Enum):
    EQUAL = auto()
    EQUAL_NULL_SAFE = auto()
    GREATER = auto()
    GREATER_OR_EQUAL = auto()
    LESS = auto()
    LESS_OR_EQUAL = auto()
    IN = auto()
    IS_NULL = auto()
    IS_NOT_NULL = auto()
    STARTS_WITH = auto()
    ENDS_WITH = auto()
    CONTAINS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One of the conditions that a row must satisfy, all of them together.

    `value` is the literal, for `IN` a sequence of them. `timestamp` is compared with a datetime
    that knows its time zone.
    """

    column: str
    operator: Operator
    value: Any = None
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What is left to be read; the default is everything."""

    on_partitions: tuple[Condition, ...] = ()
    """On `topic` and `partition`; only partitions for which all are true are read."""
    offsets: Offsets = EVERY
    since_ms: int | None = None
    """Records before the first with this timestamp, epoch ms, or a later one are not wanted."""

    def reads(self, topic_partition: TopicPartition) -> bool:
        if self.offsets == NONE:
            return False
        of_column: dict[str, str | int] = {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
        }
        return all(holds(c, of_column[c.column]) is True for c in self.on_partitions)

    def parts(self, topic_partition: TopicPartition, start: int, end: int) -> list[FetchRange]:
        """What is left of a range of offsets, in order."""
        return [
            FetchRange(topic_partition=topic_partition, start_offset=first, end_offset=last)
            for first, last in intersection(self.offsets, offsets_of([(start, end)]))
        ]


EVERYTHING: Final = Pruning()

GAP_MIN: Final = 10_000
"""Offsets. A smaller gap between wanted offsets is read too: it costs less than a task more."""
RANGES_MAX: Final = 100
"""In one partition: `offset IN (...)` must not become a task for each of its values."""

_LITERALS: Final[Mapping[str, type]] = MappingProxyType(
    {"topic": str, "partition": int, "offset": int}
)
_TEXT: Final = frozenset({Operator.STARTS_WITH, Operator.ENDS_WITH, Operator.CONTAINS})

_TESTS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = MappingProxyType(
    {
        Operator.EQUAL: lambda value, literal: value == literal,
        Operator.GREATER: lambda value, literal: value > literal,
        Operator.GREATER_OR_EQUAL: lambda value, literal: value >= literal,
        Operator.LESS: lambda value, literal: value < literal,
        Operator.LESS_OR_EQUAL: lambda value, literal: value <= literal,
        Operator.STARTS_WITH: lambda value, literal: value.startswith(literal),
        Operator.ENDS_WITH: lambda value, literal: value.endswith(literal),
        Operator.CONTAINS: lambda value, literal: literal in value,
    }
)


def prune(conditions: Sequence[Condition]) -> tuple[Pruning, list[bool]]:
    """The pruning for rows that satisfy all of these, and for each whether it is exact.

    One that is not exact has to be evaluated on every row still.
    """
    understood = [_is_understood(condition) for condition in conditions]
    on_partitions = []
    wanted = EVERY
    since_ms = None
    for condition, is_understood in zip(conditions, understood, strict=True):
        if condition.column == "timestamp":
            bound_ms = _since_ms(condition)
            if bound_ms is not None:
                since_ms = max(bound_ms, since_ms or 0)
        elif is_understood and condition.column == "offset":
            wanted = intersection(wanted, offsets_where(condition))
        elif is_understood:
            on_partitions.append(condition)
    offsets = bridged(wanted, gap_min=GAP_MIN, ranges_max=RANGES_MAX)
    exact = [
        is_understood and (c.column != "offset" or contains(offsets_where(c), offsets))
        for c, is_understood in zip(conditions, understood, strict=True)
    ]
    # Zero and below is any time at all, or none: -1 is how Kafka says that a record has none.
    since_ms = since_ms if since_ms is not None and since_ms > 0 else None
    return Pruning(on_partitions=tuple(on_partitions), offsets=offsets, since_ms=since_ms), exact


def _is_understood(condition: Condition) -> bool:
    literal_type = _LITERALS.get(condition.column)
    if literal_type is None or (condition.operator in _TEXT and literal_type is not str):
        return False
    if condition.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return True
    literals = condition.value if condition.operator is Operator.IN else [condition.value]
    return isinstance(literals, Sequence) and all(
        # bool is an int to Python, and no number to SQL.
        literal is None or type(literal) is literal_type
        for literal in literals
    )


def holds(condition: Condition, value: str | int) -> bool | None:
    """Whether it is true of a value that is not null; None is SQL's NULL.

    Python orders text by code points, which is how Spark orders its UTF-8.
    """
    answer = _answer(condition.operator, condition.value, value)
    return answer if answer is None or not condition.negated else not answer


def _answer(operator: Operator, literal: Any, value: str | int) -> bool | None:
    match operator:
        case Operator.IS_NULL:
            return False
        case Operator.IS_NOT_NULL:
            return True
        case Operator.EQUAL_NULL_SAFE:
            return bool(value == literal)
        case Operator.IN:
            return True if value in literal else None if None in literal else False
    return None if literal is None else _TESTS[operator](value, literal)


def offsets_where(condition: Condition) -> Offsets:
    """The offsets for which it is true, neither false nor null."""
    literal = condition.value
    match condition.operator:
        case Operator.IS_NULL:
            found = NONE
        case Operator.IS_NOT_NULL:
            found = EVERY
        case Operator.EQUAL_NULL_SAFE if literal is None:
            found = NONE
        case Operator.IN:
            if condition.negated and None in literal:
                return NONE
            found = offsets_of((one, one + 1) for one in literal if one is not None)
        case _ if literal is None:
            return NONE  # null, and so is its negation
        case Operator.EQUAL | Operator.EQUAL_NULL_SAFE:
            found = offsets_of([(literal, literal + 1)])
        case Operator.GREATER:
            found = offsets_of([(literal + 1, END)])
        case Operator.GREATER_OR_EQUAL:
            found = offsets_of([(literal, END)])
        case Operator.LESS:
            found = offsets_of([(0, literal)])
        case Operator.LESS_OR_EQUAL:
            found = offsets_of([(0, literal + 1)])
        case _:
            raise AssertionError(condition)
    return complement(found) if condition.negated else found


def _since_ms(condition: Condition) -> int | None:
    """The earliest timestamp, in epoch ms, that can satisfy it; None where there is no saying.

    Literals have microseconds and records milliseconds: the first whole one that will do counts.
    """
    after = {Operator.GREATER, Operator.GREATER_OR_EQUAL, Operator.EQUAL, Operator.EQUAL_NULL_SAFE}
    if condition.negated:
        after = {Operator.LESS, Operator.LESS_OR_EQUAL}
    elif condition.operator is Operator.IN:
        return _earliest_ms(condition.value)
    if condition.operator not in after or not _is_instant(condition.value):
        return None
    literal_us = _epoch_us(condition.value)
    if condition.operator in (Operator.GREATER, Operator.LESS_OR_EQUAL):
        literal_us += 1
    return -(-literal_us // 1000)


def _earliest_ms(literals: object) -> int | None:
    if not isinstance(literals, Sequence):
        return None
    known = [literal for literal in literals if literal is not None]
    if not known or not all(map(_is_instant, known)):
        return None
    return -(-min(map(_epoch_us, known)) // 1000)


def _is_instant(literal: object) -> bool:
    return isinstance(literal, datetime) and literal.tzinfo is not None


def _epoch_us(literal: datetime) -> int:
    return (literal - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
