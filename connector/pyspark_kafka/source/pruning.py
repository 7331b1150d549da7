"""Uses the filters of a query to prune a batch read.

From the conditions of a query, this module determines which partitions and offsets a batch read can
skip, and which conditions are exact. Spark does not need to evaluate exact conditions again.
Invariant: no row that satisfies all conditions is skipped, and every row that is read satisfies the
exact conditions.

The `topic`, `partition` and `offset` columns are never null. Literals may be null, so conditions
are evaluated with SQL's three-valued logic. A lower bound on `timestamp` is converted to a start
offset: Kafka returns the first record with this timestamp or a later one, so all records before
that record are older, even if timestamps are not in order (`LogSegment.findOffsetByTimestamp`). An
upper bound cannot be converted (see docs/adr/0005).
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
from pyspark_kafka.source.offset_sets import (
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
    """One of the conditions that a row must satisfy.

    `value` is the literal, or for `IN` a sequence of literals. A literal for the `timestamp` column
    is a datetime with a time zone.
    """

    column: str
    operator: Operator
    value: Any = None
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """The partitions and offsets that must be read. By default, everything is read."""

    on_partitions: tuple[Condition, ...] = ()
    """Conditions on `topic` and `partition`. Only partitions that satisfy all of them are read."""
    offsets: Offsets = EVERY
    since_ms: int | None = None
    """Reads start at the first record with this timestamp (epoch milliseconds) or a later one."""

    def reads(self, topic_partition: TopicPartition) -> bool:
        if self.offsets == NONE:
            return False
        values: dict[str, str | int] = {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
        }
        return all(evaluate(c, values[c.column]) is True for c in self.on_partitions)

    def parts(self, topic_partition: TopicPartition, start: int, end: int) -> list[FetchRange]:
        """Return the ranges between `start` and `end` that must be read, in order."""
        return [
            FetchRange(topic_partition=topic_partition, start_offset=first, end_offset=last)
            for first, last in intersection(self.offsets, offsets_of([(start, end)]))
        ]


EVERYTHING: Final = Pruning()

GAP_MIN: Final = 10_000
"""The minimum size of a gap that is skipped. Reading a smaller gap costs less than another task."""
RANGES_MAX: Final = 100
"""The maximum number of ranges per partition, which limits the tasks for `offset IN (...)`."""

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
    """Return which partitions and offsets must be read, and whether each condition is exact.

    For every row that is read, Spark must re-evaluate the conditions that are not exact.
    """
    supported = [_is_supported(condition) for condition in conditions]
    on_partitions = []
    selected = EVERY
    since_ms = None
    for condition, is_supported in zip(conditions, supported, strict=True):
        if condition.column == "timestamp":
            bound_ms = _since_ms(condition)
            if bound_ms is not None:
                since_ms = max(bound_ms, since_ms or 0)
        elif is_supported and condition.column == "offset":
            selected = intersection(selected, offsets_where(condition))
        elif is_supported:
            on_partitions.append(condition)
    offsets = bridged(selected, gap_min=GAP_MIN, ranges_max=RANGES_MAX)
    exact = [
        is_supported and (c.column != "offset" or contains(offsets_where(c), offsets))
        for c, is_supported in zip(conditions, supported, strict=True)
    ]
    # Records without a timestamp have the timestamp -1. A bound of zero or less is ignored, so that
    # these records are read.
    since_ms = since_ms if since_ms is not None and since_ms > 0 else None
    return Pruning(on_partitions=tuple(on_partitions), offsets=offsets, since_ms=since_ms), exact


def _is_supported(condition: Condition) -> bool:
    literal_type = _LITERALS.get(condition.column)
    if literal_type is None or (condition.operator in _TEXT and literal_type is not str):
        return False
    if condition.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return True
    literals = condition.value if condition.operator is Operator.IN else [condition.value]
    return isinstance(literals, Sequence) and all(
        # In Python, bool is a subclass of int, but a SQL boolean is not a number.
        literal is None or type(literal) is literal_type
        for literal in literals
    )


def evaluate(condition: Condition, value: str | int) -> bool | None:
    """Evaluate a condition for a value that is not null. A result of None means SQL's NULL.

    Python compares strings by code points, which is also the order of Spark's UTF-8 strings.
    """
    result = _evaluate(condition.operator, condition.value, value)
    return result if result is None or not condition.negated else not result


def _evaluate(operator: Operator, literal: Any, value: str | int) -> bool | None:
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
    """Return the offsets for which a condition evaluates to true."""
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
            found = offsets_of((offset, offset + 1) for offset in literal if offset is not None)
        case _ if literal is None:
            return NONE  # The condition and its negation are null.
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
    """Return the earliest timestamp (epoch milliseconds) that can satisfy a condition, or None.

    The bound is rounded up, because literals are in microseconds and record timestamps are in
    milliseconds.
    """
    lower_bounds = {
        Operator.GREATER,
        Operator.GREATER_OR_EQUAL,
        Operator.EQUAL,
        Operator.EQUAL_NULL_SAFE,
    }
    if condition.negated:
        lower_bounds = {Operator.LESS, Operator.LESS_OR_EQUAL}
    elif condition.operator is Operator.IN:
        return _earliest_ms(condition.value)
    if condition.operator not in lower_bounds or not _is_instant(condition.value):
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
