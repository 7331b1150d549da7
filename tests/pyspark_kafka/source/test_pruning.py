"""Tests of pruning: no matching row is skipped, and exact conditions need no Spark filter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from pyspark_kafka.source.pruning import (
    EVERYTHING,
    Condition,
    Operator,
    Pruning,
    evaluate,
    offsets_where,
    prune,
)
from tests.pyspark_kafka.source.planning import tp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at_us(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def on(
    column: str, operator: Operator, value: object = None, *, negated: bool = False
) -> Condition:
    return Condition(column=column, operator=operator, value=value, negated=negated)


def pruned(*conditions: Condition) -> Pruning:
    return prune(conditions)[0]


def exact(*conditions: Condition) -> list[bool]:
    return prune(conditions)[1]


# Sets of offsets, compared with Python's sets.

SMALL = range(30)
spans = st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), max_size=6)


def members(offsets: Offsets) -> set[int]:
    return {n for n in SMALL if any(start <= n < end for start, end in offsets)}


def check_form(offsets: Offsets) -> None:
    bounds = [bound for offset_range in offsets for bound in offset_range]
    assert bounds == sorted(set(bounds)), "ranges must be sorted, not empty, and not adjacent"
    assert all(0 <= bound <= END for bound in bounds)


@given(left=spans, right=spans)
def test_sets_of_offsets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = offsets_of(left), offsets_of(right)
    assert members(a) == {n for n in SMALL if any(start <= n < end for start, end in left)}
    assert members(complement(a)) == set(SMALL) - members(a)
    assert members(intersection(a, b)) == members(a) & members(b)
    assert contains(a, b) == all(any(s <= start and end <= e for s, e in a) for start, end in b)
    for offsets in (a, complement(a), intersection(a, b)):
        check_form(offsets)


def test_first_and_last_offset() -> None:
    assert complement(NONE) == EVERY == ((0, 2**63),)
    assert complement(EVERY) == NONE
    assert offsets_of([(-7, 3), (2**63 - 1, 2**70)]) == ((0, 3), (2**63 - 1, 2**63))


@given(left=spans, gap_min=st.integers(0, 9), ranges_max=st.integers(1, 4))
def test_bridged_sets_of_offsets(
    left: list[tuple[int, int]], gap_min: int, ranges_max: int
) -> None:
    offsets = offsets_of(left)
    found = bridged(offsets, gap_min=gap_min, ranges_max=ranges_max)
    check_form(found)
    assert contains(found, offsets)
    assert len(found) <= ranges_max
    assert all(b[0] - a[1] >= gap_min for a, b in pairwise(found))
    if found:
        assert (found[0][0], found[-1][1]) == (offsets[0][0], offsets[-1][1])


def test_the_largest_gaps_remain() -> None:
    offsets = ((0, 1), (10, 11), (15, 16), (99, 100))
    assert bridged(offsets, gap_min=5, ranges_max=9) == ((0, 1), (10, 16), (99, 100))
    assert bridged(offsets, gap_min=4, ranges_max=9) == offsets
    assert bridged(offsets, gap_min=5, ranges_max=2) == ((0, 16), (99, 100))
    assert bridged(offsets, gap_min=5, ranges_max=1) == ((0, 100),)


# Single conditions.

NUMBERS = (
    Operator.EQUAL,
    Operator.EQUAL_NULL_SAFE,
    Operator.GREATER,
    Operator.GREATER_OR_EQUAL,
    Operator.LESS,
    Operator.LESS_OR_EQUAL,
)
TEXTS = (Operator.STARTS_WITH, Operator.ENDS_WITH, Operator.CONTAINS)
NULLS = (Operator.IS_NULL, Operator.IS_NOT_NULL)


def number_conditions(column: str, low: int, high: int) -> st.SearchStrategy[Condition]:
    literals = st.none() | st.integers(low, high)
    return st.one_of(
        st.builds(
            Condition,
            column=st.just(column),
            operator=st.sampled_from(NUMBERS),
            value=literals,
            negated=st.booleans(),
        ),
        st.builds(
            Condition,
            column=st.just(column),
            operator=st.just(Operator.IN),
            value=st.lists(literals, max_size=4),
            negated=st.booleans(),
        ),
        st.builds(
            Condition,
            column=st.just(column),
            operator=st.sampled_from(NULLS),
            negated=st.booleans(),
        ),
    )


@given(condition=number_conditions("offset", -2, 12), offset=st.integers(0, 12))
def test_offsets_where_matches_evaluate(condition: Condition, offset: int) -> None:
    where = offsets_where(condition)
    check_form(where)
    assert (offset in members(where)) == (evaluate(condition, offset) is True)


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        (on("offset", Operator.EQUAL, None), 1, None),
        (on("offset", Operator.EQUAL, None, negated=True), 1, None),
        (on("offset", Operator.EQUAL_NULL_SAFE, None), 1, False),
        (on("offset", Operator.EQUAL_NULL_SAFE, None, negated=True), 1, True),
        (on("offset", Operator.IN, [1, None]), 1, True),
        (on("offset", Operator.IN, [2, None]), 1, None),
        (on("offset", Operator.IN, [2, None], negated=True), 1, None),
        (on("offset", Operator.IN, [1, None], negated=True), 1, False),
        (on("offset", Operator.IN, []), 1, False),
        (on("offset", Operator.IS_NULL), 1, False),
        (on("offset", Operator.IS_NOT_NULL), 1, True),
        (on("offset", Operator.LESS, 1), 1, False),
        (on("offset", Operator.LESS_OR_EQUAL, 1), 1, True),
        (on("topic", Operator.STARTS_WITH, "ab"), "abc", True),
        (on("topic", Operator.STARTS_WITH, None, negated=True), "abc", None),
        (on("topic", Operator.ENDS_WITH, "bc"), "abc", True),
        (on("topic", Operator.CONTAINS, "c", negated=True), "abc", False),
        (on("topic", Operator.GREATER, "aB"), "ab", True),
        (on("topic", Operator.LESS, "\u00e4"), "zz", True),
    ],
)
def test_three_valued_logic(condition: Condition, value: str | int, expected: bool | None) -> None:
    assert evaluate(condition, value) is expected
    assert exact(condition) == [True]


def test_conditions_on_partitions() -> None:
    some = pruned(
        on("topic", Operator.IN, ["a", None]), on("partition", Operator.EQUAL, 1, negated=True)
    )
    read = [p for p in (tp("a"), tp("a", 1), tp("b"), tp("b", 1)) if some.reads(p)]
    assert read == [tp("a")]


def test_no_condition_reads_everything() -> None:
    assert prune([]) == (EVERYTHING, [])
    assert EVERYTHING.reads(tp("t"))
    assert [(r.start_offset, r.end_offset) for r in EVERYTHING.parts(tp("t"), 3, 9)] == [(3, 9)]
    assert EVERYTHING.parts(tp("t"), 9, 9) == []


def test_contradictory_conditions_read_nothing() -> None:
    none = pruned(on("offset", Operator.LESS, 3), on("offset", Operator.GREATER, 3))
    assert not none.reads(tp("t"))
    assert none.parts(tp("t"), 0, 9) == []
    both = pruned(on("topic", Operator.EQUAL, "a"), on("topic", Operator.EQUAL, "b"))
    assert not both.reads(tp("a"))


def test_distant_offsets_are_separate_ranges() -> None:
    far = on("offset", Operator.IN, [5, 1_000_000])
    near = on("offset", Operator.IN, [5, 7])
    but_one = on("offset", Operator.EQUAL, 5, negated=True)
    assert pruned(far).offsets == ((5, 6), (1_000_000, 1_000_001))
    assert exact(far) == [True]
    assert pruned(near).offsets == ((5, 8),)
    assert exact(near, on("offset", Operator.GREATER, 4)) == [False, True]
    assert pruned(but_one).offsets == EVERY
    assert exact(but_one) == [False]
    assert exact(but_one, on("offset", Operator.GREATER, 7)) == [True, True]


def test_the_number_of_ranges_is_limited() -> None:
    many = on("offset", Operator.IN, list(range(0, 10**9, 10**6)))
    assert len(pruned(many).offsets) == 100
    assert exact(many) == [False]


def test_parts_are_within_the_range() -> None:
    some = pruned(on("offset", Operator.IN, [5, 50_000, 99_999]))
    parts = [(r.start_offset, r.end_offset) for r in some.parts(tp("t"), 6, 99_999)]
    assert parts == [(50_000, 50_001)]


@pytest.mark.parametrize(
    "condition",
    [
        on("offset", Operator.GREATER, 1.5),
        on("offset", Operator.EQUAL, True),
        on("offset", Operator.EQUAL, "5"),
        on("offset", Operator.IN, [1, "2"]),
        on("offset", Operator.STARTS_WITH, "1"),
        on("partition", Operator.IN, None),
        on("topic", Operator.EQUAL, b"t"),
        on("key", Operator.EQUAL, b"k"),
        on("timestampType", Operator.EQUAL, 0),
        on("timestamp", Operator.GREATER, datetime(2024, 1, 1)),  # noqa: DTZ001
        on("timestamp", Operator.GREATER, 5),
        on("timestamp", Operator.LESS, at_us(5)),
        on("timestamp", Operator.IS_NOT_NULL),
        on("timestamp", Operator.EQUAL, None),
        on("timestamp", Operator.IN, [None]),
        on("timestamp", Operator.IN, [at_us(5000), 5]),
        on("timestamp", Operator.EQUAL, at_us(5000), negated=True),
        on("timestamp", Operator.IN, [at_us(5000)], negated=True),
    ],
    ids=str,
)
def test_unsupported_conditions_prune_nothing_and_are_not_exact(condition: Condition) -> None:
    assert prune([condition]) == (EVERYTHING, [False])


@pytest.mark.parametrize(
    ("condition", "since_ms"),
    [
        (on("timestamp", Operator.GREATER_OR_EQUAL, at_us(5_000)), 5),
        (on("timestamp", Operator.GREATER_OR_EQUAL, at_us(5_001)), 6),
        (on("timestamp", Operator.GREATER, at_us(5_000)), 6),
        (on("timestamp", Operator.GREATER, at_us(4_999)), 5),
        (on("timestamp", Operator.EQUAL, at_us(5_000)), 5),
        (on("timestamp", Operator.EQUAL_NULL_SAFE, at_us(5_000)), 5),
        (on("timestamp", Operator.IN, [at_us(9_000), None, at_us(7_001)]), 8),
        (on("timestamp", Operator.LESS, at_us(5_000), negated=True), 5),
        (on("timestamp", Operator.LESS_OR_EQUAL, at_us(5_000), negated=True), 6),
        (on("timestamp", Operator.GREATER, at_us(0)), 1),
        (on("timestamp", Operator.GREATER_OR_EQUAL, at_us(0)), None),
        (on("timestamp", Operator.GREATER, at_us(-1)), None),
        (on("timestamp", Operator.GREATER, at_us(-5_000_000)), None),
    ],
    ids=str,
)
def test_a_lower_bound_is_rounded_up_to_milliseconds(
    condition: Condition, since_ms: int | None
) -> None:
    assert prune([condition]) == (Pruning(since_ms=since_ms), [False])


def test_the_latest_lower_bound_is_used_in_any_time_zone() -> None:
    summer = timezone(timedelta(hours=2))
    found = pruned(
        on("timestamp", Operator.GREATER_OR_EQUAL, datetime(2024, 7, 1, 12, 0, tzinfo=summer)),
        on("timestamp", Operator.GREATER_OR_EQUAL, datetime(2024, 7, 1, 9, 0, tzinfo=UTC)),
    )
    assert found.since_ms == 1_719_828_000_000


# Pruning of a log in memory.

Row = dict[str, Any]

TOPICS = ("a", "ab", "b.c")
text_conditions = st.one_of(
    st.builds(
        Condition,
        column=st.just("topic"),
        operator=st.sampled_from(NUMBERS + TEXTS),
        value=st.none() | st.sampled_from([*TOPICS, "", "c", "zz"]),
        negated=st.booleans(),
    ),
    st.builds(
        Condition,
        column=st.just("topic"),
        operator=st.just(Operator.IN),
        value=st.lists(st.none() | st.sampled_from(TOPICS), max_size=3),
        negated=st.booleans(),
    ),
)
instants = st.none() | st.integers(-2_000, 22_000).map(at_us)
time_conditions = st.one_of(
    st.builds(
        Condition,
        column=st.just("timestamp"),
        operator=st.sampled_from(NUMBERS),
        value=instants,
        negated=st.booleans(),
    ),
    st.builds(
        Condition,
        column=st.just("timestamp"),
        operator=st.just(Operator.IN),
        value=st.lists(instants, max_size=3),
        negated=st.booleans(),
    ),
)
conditions = st.lists(
    st.one_of(
        text_conditions,
        number_conditions("partition", -1, 3),
        number_conditions("offset", -2, 25_000),
        time_conditions,
    ),
    max_size=4,
)
# Offsets with gaps below and above `GAP_MIN`; timestamps in no order.
logs = st.fixed_dictionaries(
    {
        TopicPartition(topic, number): st.dictionaries(
            st.one_of(st.integers(0, 12), st.integers(11_000, 25_000)),
            st.integers(-1, 20),
            max_size=8,
        )
        for topic, number in product(TOPICS, range(2))
    }
)


def is_true(condition: Condition, row: Row) -> bool:
    value = row[condition.column]
    return evaluate(condition, value) is True


def first_since(log: dict[int, int], since_ms: int | None) -> int:
    """Return the first offset with this timestamp or a later one, as ListOffsets does."""
    return next((o for o in sorted(log) if since_ms is None or log[o] >= since_ms), END)


@given(query=conditions, logs=logs)
def test_a_pruned_read_returns_the_same_rows(
    query: Sequence[Condition], logs: dict[TopicPartition, dict[int, int]]
) -> None:
    def rows_of(partition: TopicPartition) -> list[Row]:
        return [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": offset,
                "timestamp": at_us(timestamp_ms * 1000),
            }
            for offset, timestamp_ms in sorted(logs[partition].items())
        ]

    pruning, is_exact = prune(query)
    remaining = [c for c, done in zip(query, is_exact, strict=True) if not done]
    found: list[Row] = []
    for partition in filter(pruning.reads, logs):
        rows = rows_of(partition)
        since = first_since(logs[partition], pruning.since_ms)
        for part in pruning.parts(partition, 0, END):
            span = range(max(part.start_offset, since), max(part.end_offset, since))
            found += [row for row in rows if row["offset"] in span]
    assert [row for row in found if all(is_true(c, row) for c in remaining)] == [
        row
        for partition in logs
        for row in rows_of(partition)
        if all(is_true(c, row) for c in query)
    ]
