"""Tests of the splitting and rate limiting of offset ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.source.ranges import pack, rate_limit, split


def ranges(*sizes: int, start: int = 0) -> list[FetchRange]:
    return [
        FetchRange(
            topic_partition=TopicPartition("t", number), start_offset=start, end_offset=start + size
        )
        for number, size in enumerate(sizes)
    ]


def sizes(found: list[FetchRange]) -> list[tuple[int, int]]:
    return [(r.topic_partition.partition, r.size) for r in found]


@pytest.mark.parametrize(
    ("given_sizes", "min_partitions", "max_records", "expected"),
    [
        pytest.param((5, 0, 7), None, None, [(0, 5), (2, 7)], id="not-split"),
        pytest.param((10,), 4, None, [(0, 2), (0, 2), (0, 3), (0, 3)], id="one-in-four"),
        pytest.param((5, 5), 2, None, [(0, 5), (1, 5)], id="enough-ranges"),
        # The small range does not change the proportions of the large one.
        pytest.param((150, 1), 6, None, [*[(0, 30)] * 5, (1, 1)], id="skewed"),
        pytest.param((60, 40), 4, None, [(0, 30)] * 2 + [(1, 20)] * 2, id="rounded"),
        pytest.param(
            (100, 10, 10, 10, 10),
            8,
            None,
            [*[(0, 25)] * 4, (1, 10), (2, 10), (3, 10), (4, 10)],
            id="many-small",
        ),
        pytest.param((10, 3), None, 4, [(0, 3), (0, 3), (0, 4), (1, 3)], id="max-records"),
        pytest.param((8,), 4, 4, [(0, 2)] * 4, id="both"),
        # One range of partition 1 is too small to be split, so the other one is not split either.
        pytest.param(
            (10, 5, 1),
            9,
            4,
            [*[(0, 1), (0, 2)] * 2, *[(0, 2)] * 2, (1, 2), (1, 3), (2, 1)],
            id="both-skewed",
        ),
        pytest.param((2,), 5, None, [(0, 1), (0, 1)], id="fewer-offsets-than-tasks"),
    ],
)
def test_split(
    given_sizes: tuple[int, ...],
    min_partitions: int | None,
    max_records: int | None,
    expected: list[tuple[int, int]],
) -> None:
    found = split(ranges(*given_sizes), min_partitions=min_partitions, max_records=max_records)
    assert sizes(found) == expected


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=8),
    st.none() | st.integers(1, 50),
    st.integers(0, 10**15),
)
def test_split_keeps_every_offset_once(
    given_sizes: list[int], min_partitions: int | None, start: int
) -> None:
    whole = ranges(*given_sizes, start=start)
    found = split(whole, min_partitions=min_partitions, max_records=max(max(given_sizes) // 7, 1))
    for original in whole:
        parts = [r for r in found if r.topic_partition == original.topic_partition]
        position = original.start_offset
        for part in parts:
            assert part.start_offset == position
            assert 0 < part.size <= max(max(given_sizes) // 7, 1)
            position = part.end_offset
        assert position == original.end_offset


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(-10, 10**9)), min_size=1, max_size=8),
)
def test_rate_limit_gives_every_partition_at_least_one_offset(
    limit: int, partitions: list[tuple[int, int]]
) -> None:
    start = {TopicPartition("t", n): begin for n, (begin, _) in enumerate(partitions)}
    latest = {TopicPartition("t", n): begin + size for n, (begin, size) in enumerate(partitions)}
    ends = rate_limit(limit, start, latest)
    taken = {p: ends[p] - start[p] for p in latest}
    assert sum(max(count, 0) for count in taken.values()) <= limit + len(partitions)
    for partition, end in latest.items():
        assert ends[partition] <= end
        assert taken[partition] > 0 or end <= start[partition]


@given(st.lists(st.integers(1, 10**6), max_size=40), st.none() | st.integers(1, 8))
def test_pack_keeps_ranges_in_order_and_balances_tasks(
    given_sizes: list[int], max_partitions: int | None
) -> None:
    tasks = pack(ranges(*given_sizes), max_partitions, lambda each: each.size)
    assert len(tasks) == min(len(given_sizes), max_partitions or len(given_sizes))
    assert sorted((r for task in tasks for r in task), key=lambda r: r.topic_partition) == ranges(
        *given_sizes
    )
    totals = [sum(r.size for r in task) for task in tasks]
    for task, total in zip(tasks, totals, strict=True):
        assert list(task) == sorted(task, key=lambda r: r.topic_partition)
        assert len(task) == 1 or total - min(r.size for r in task) <= min(totals)
