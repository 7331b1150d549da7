"""Tests of transactional ids: the sink recognizes its own ids, and has a limited number."""

from __future__ import annotations

import pytest

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, is_sink_id
from pyspark_kafka.sink.exactly_once.names import (
    ATTEMPTS,
    GENERATIONS,
    SLOTS,
    is_task_id_of,
    next_generation,
    parse_task_id,
    prefix,
    task_id,
)


def test_task_id_is_parsed() -> None:
    one = task_id("orders.v2", 31, partition=7, attempt=18, task_attempt_id=35)
    assert str(one) == "orders.v2/31/7/2-3"
    assert parse_task_id(str(one)) == one


@pytest.mark.parametrize(
    "other",
    [
        "X",
        "X/0/0/0",
        "X/0/0/0-4",
        "X/0/0/16-0",
        "X/0/00/0-0",
        "X/00/0/0-0",
        "X/0/0/0-01",
        "X/0/0/0-0/more",
        "X/0/0/0-0\n",
        "X/run/0/0-0",
        "X/Y/0/0/0-0",
        "/0/0/0-0",
        "X/0/-1/0-0",
        "X/0/٣/0-0",
    ],
)
def test_other_ids_are_not_task_ids(other: str) -> None:
    assert parse_task_id(other) is None
    assert not is_task_id_of(other, "X")


@pytest.mark.parametrize("other", ["X2", "X.", "Xx", "x", "", "a"])
def test_task_ids_of_other_sinks_do_not_match(other: str) -> None:
    assert not is_task_id_of(f"{other}/0/0/0-0", "X")
    assert not f"{other}/0/0/0-0".startswith(prefix("X"))


def test_generation_is_part_of_the_task_id() -> None:
    assert is_task_id_of("X/1/0/0-0", "X", generation=1)
    assert not is_task_id_of("X/12/0/0-0", "X", generation=1)
    assert not "X/12/0/0-0".startswith(prefix("X", generation=1))


def test_ids_of_a_sink_are_limited() -> None:
    """However many batches, runs and jobs write, and however often Spark tries a task again."""
    ids = {
        str(task_id("X", _generation(epoch), partition=7, attempt=n % 20, task_attempt_id=n))
        for epoch in range(500)
        for n in range(200)
    }
    assert len(ids) <= GENERATIONS * ATTEMPTS * SLOTS


def test_consecutive_batches_have_different_ids() -> None:
    """A number of tasks that is a multiple of the slots makes no difference."""
    for epochs in (1, 2):
        window = [_generation(epochs * batch) for batch in range(GENERATIONS // epochs)]
        assert len(set(window)) == len(window)


def test_generation_skips_unfinished_decisions() -> None:
    assert next_generation(_owner(5), ()) == 5
    assert next_generation(_owner(5), ["X/5/0/0-0", "X/6/9/0-1", "X/8/0/0-0"]) == 7
    assert next_generation(_owner(63), ["X/31/0/0-0"]) == 0
    everywhere = [f"X/{n}/0/0-0" for n in range(GENERATIONS + 1)]
    assert next_generation(_owner(5), everywhere) == GENERATIONS + 1


def _owner(epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id=1, producer_epoch=epoch)


def _generation(epoch: int) -> int:
    return next_generation(_owner(epoch), ())


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 200])
def test_legal_names(name: str) -> None:
    assert is_sink_id(name)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "x" * 201, "a\n", "a*"])
def test_illegal_names(name: str) -> None:
    assert not is_sink_id(name)
