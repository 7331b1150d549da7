"""Tests that every rule of the protocol is needed: without it, a named scenario fails."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NoReturn, cast

import pytest

from pyspark_kafka.errors import PysparkKafkaError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionVersion
from tests.pyspark_kafka.sink.exactly_once import (
    failure_scenarios,
    scenarios,
    test_protocol,
    test_zombies,
)
from tests.pyspark_kafka.sink.exactly_once.mutations import MUTATIONS, Finding, Mutation
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

CASES = [
    pytest.param(
        mutation,
        version,
        id=f"{mutation.breaks.__name__}-{mutation.found_by.__name__}-version-{version}",
    )
    for mutation in MUTATIONS
    for version in mutation.versions
]


class WrongResultError(AssertionError):
    """A scenario compared a result of the cluster with another expected result."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.value)
        self.finding = finding


class Rows(list[bytes]):
    """Rows that raise `WrongResultError` when they are compared with other rows."""

    def __init__(self, rows: list[bytes], *, is_stable: bool) -> None:
        super().__init__(rows)
        self._is_stable = is_stable

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, list)
        read, expected = Counter(self), Counter(other)
        if read - expected:
            raise WrongResultError(Finding.DUPLICATE_ROWS)
        if expected - read:
            raise WrongResultError(
                Finding.LOST_ROWS if self._is_stable else Finding.OPEN_TRANSACTION
            )
        return True

    __hash__ = None


class Offset(int):
    """An offset, or -1, that raises `WrongResultError` when it is compared with another offset."""

    def __eq__(self, other: object) -> bool:
        if int(self) != other:
            raise WrongResultError(Finding.OFFSET)
        return True

    __hash__ = None  # type: ignore[assignment]


class CheckedWorld(FakeWorld):
    """A fake cluster whose results identify the check that fails."""

    def fresh(self) -> CheckedWorld:
        return CheckedWorld(self.cluster.transaction_version)

    def committed(self, topic: str) -> list[bytes]:
        return Rows(super().committed(topic), is_stable=super().is_stable(topic))

    def is_stable(self, topic: str) -> bool:
        if not super().is_stable(topic):
            raise WrongResultError(Finding.OPEN_TRANSACTION)
        return True

    def group_offset(self, group_id: str, partition: TopicPartition) -> int:
        offset = super().group_offset(group_id, partition)
        return Offset(-1 if offset is None else offset)


def found(mutation: Mutation, version: TransactionVersion) -> Finding | type[PysparkKafkaError]:
    """Run the scenario, and return what it has found.

    Raises any error that is neither an error of the sink nor raised by a check of a scenario.
    """
    try:
        mutation.found_by(CheckedWorld(version))
    except WrongResultError as error:
        return error.finding
    except PysparkKafkaError as error:
        return type(error)
    except pytest.fail.Exception:
        return Finding.NO_ERROR
    except AssertionError as error:
        if is_raised_by_scenario(error):
            return Finding.STATE
        raise
    return not_found(mutation)


def is_raised_by_scenario(error: AssertionError) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    modules = (scenarios.__name__, failure_scenarios.__name__)
    return trace is not None and trace.tb_frame.f_globals["__name__"] in modules


def not_found(mutation: Mutation) -> NoReturn:
    raise LookupError(f"{mutation.found_by.__name__} does not detect the mutation")


@pytest.mark.slow
@pytest.mark.parametrize(("mutation", "version"), CASES)
def test_mutation_is_detected(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation, version: int
) -> None:
    mutation.breaks(monkeypatch)
    assert found(mutation, cast("Literal[1, 2]", version)) is mutation.finding


def test_detecting_scenarios_pass_without_mutation() -> None:
    played = {*test_protocol.SCENARIOS, *test_zombies.SCENARIOS}
    assert {mutation.found_by for mutation in MUTATIONS} <= played
