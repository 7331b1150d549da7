"""Tests of transactional ids: the sink recognizes its own ids and no others."""

from __future__ import annotations

import pytest

from pyspark_kafka.kafka.transactions import is_sink_id
from pyspark_kafka.sink.exactly_once.names import (
    is_run,
    is_task_id_of,
    parse_task_id,
    prefix,
    task_id,
)


def test_task_id_is_parsed() -> None:
    one = task_id("orders.v2", "0a-1B", partition=7, attempt=2, task_attempt_id=35)
    assert str(one) == "orders.v2/0a-1B/7/2-3"
    assert parse_task_id(str(one)) == one


@pytest.mark.parametrize(
    "other",
    [
        "X",
        "X/run/0/0",
        "X/run/0/0-16",
        "X/run/00/0-0",
        "X/run/0/0-01",
        "X/run/0/0-0/more",
        "X/run/0/0-0\n",
        "X/ru n/0/0-0",
        "X/Y/run/0/0-0",
        "/run/0/0-0",
        "X/run/-1/0-0",
        "X/run/٣/0-0",
    ],
)
def test_other_ids_are_not_task_ids(other: str) -> None:
    assert parse_task_id(other) is None
    assert not is_task_id_of(other, "X")


@pytest.mark.parametrize("other", ["X2", "X.", "Xx", "x", "", "a"])
def test_task_ids_of_other_sinks_do_not_match(other: str) -> None:
    assert not is_task_id_of(f"{other}/run/0/0-0", "X")
    assert not f"{other}/run/0/0-0".startswith(prefix("X"))


def test_run_is_part_of_the_task_id() -> None:
    assert is_task_id_of("X/run-1/0/0-0", "X", run="run-1")
    assert not is_task_id_of("X/run-12/0/0-0", "X", run="run-1")
    assert not "X/run-12/0/0-0".startswith(prefix("X", run="run-1"))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 200])
def test_legal_names(name: str) -> None:
    assert is_sink_id(name)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "x" * 201, "a\n", "a*"])
def test_illegal_names(name: str) -> None:
    assert not is_sink_id(name)


def test_runs() -> None:
    assert is_run("0c9f2a6e-64c3-4d0e-9d38-6a3a83f9f4f6")
    assert not is_run("a/b")
    assert not is_run("")
