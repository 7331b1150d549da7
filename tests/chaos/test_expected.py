"""The comparison of the written values with the expected ones, for each kind of query."""

from __future__ import annotations

from collections import Counter

from integration.chaos.expected import copied_values, counted_values, difference, wrong_offsets
from integration.chaos.kinds import COUNTED_KEYS

ENDS = [2 * COUNTED_KEYS, 1]
BATCHES = [[1, 0], [COUNTED_KEYS, 1], ENDS]
"""After these micro-batches key 0 has the counts 1, 2 and 3, and all others 1 and 2."""


def counts_of(expected: Counter[bytes], found: Counter[bytes]) -> tuple[int, int]:
    """Return the numbers of lost and duplicate values."""
    result = difference(expected, found)
    return result.lost, result.duplicates


def test_a_copy_contains_each_position_once() -> None:
    expected = copied_values([2, 0, 1])
    assert expected == Counter([b"0:0", b"0:1", b"2:0"])
    assert counts_of(expected, expected) == (0, 0)
    assert counts_of(expected, Counter([b"0:0", b"0:0", b"2:0"])) == (1, 1)
    assert counts_of(expected, expected + Counter([b"1:0"])) == (0, 1)


def test_the_aggregation_contains_the_counts_after_each_micro_batch() -> None:
    values = counted_values(BATCHES, ENDS)
    assert values[b"0=1"] == values[b"0=2"] == values[b"0=3"] == 1
    assert (values[b"1=1"], values[b"1=2"]) == (1, 1)
    assert values.total() == 1 + 2 * COUNTED_KEYS


def test_an_intermediate_count_that_is_lost_duplicate_or_wrong_is_found() -> None:
    expected = counted_values(BATCHES, ENDS)
    assert counts_of(expected, expected - Counter([b"0=2"])) == (1, 0)
    assert counts_of(expected, expected + Counter([b"0=2"])) == (0, 1)
    wrong = expected - Counter([b"1=2"]) + Counter([b"1=3"])
    assert counts_of(expected, wrong) == (1, 1)
    assert difference(expected, wrong).examples == ("lost: 1=2", "duplicate or wrong: 1=3")


def test_records_after_the_last_micro_batch_are_lost() -> None:
    found = counted_values(BATCHES[:-1], BATCHES[-2])
    assert counts_of(counted_values(BATCHES[:-1], ENDS), found) == (COUNTED_KEYS, 0)


def test_a_micro_batch_without_new_records_writes_all_counts_again() -> None:
    repeated = [*BATCHES[:-1], BATCHES[-2], ENDS]
    assert counts_of(counted_values(repeated, ENDS), counted_values(BATCHES, ENDS)) == (
        COUNTED_KEYS,
        0,
    )


def test_committed_offsets_must_be_the_ends_of_the_source() -> None:
    assert wrong_offsets("g", [5, 7], [5, 7]) == ()
    too_low, too_high, missing = wrong_offsets("g", [4, 8, -1], [5, 7, 2])
    assert "offset 4 of partition 0" in too_low
    assert "offset 8 of partition 1" in too_high
    assert "offset -1 of partition 2" in missing
