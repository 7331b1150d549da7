"""Tests that every rule of the protocol is needed: without it, a named scenario fails."""

from __future__ import annotations

from typing import Literal, cast

import pytest

from pyspark_kafka.errors import PysparkKafkaError
from tests.pyspark_kafka.sink.exactly_once import test_protocol, test_zombies
from tests.pyspark_kafka.sink.exactly_once.mutations import MUTATIONS, Mutation
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


@pytest.mark.parametrize(("mutation", "version"), CASES)
def test_mutation_is_detected(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation, version: int
) -> None:
    mutation.breaks(monkeypatch)
    world = FakeWorld(cast("Literal[1, 2]", version))
    with pytest.raises((AssertionError, PysparkKafkaError, pytest.fail.Exception)):
        mutation.found_by(world)


def test_detecting_scenarios_pass_without_mutation() -> None:
    played = {*test_protocol.SCENARIOS, *test_zombies.SCENARIOS}
    assert {mutation.found_by for mutation in MUTATIONS} <= played
