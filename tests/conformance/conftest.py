"""A group with a coordinator; and `client`, whose tests run once with each of two clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from integration.raw import RawConnection
from tests.conformance.clients import Client, Confluent, KafkaPython
from tests.conformance.groups import await_coordinator


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A client of the run's cluster that we did not write."""
    made: Client = request.param(bootstrap)
    return made


@pytest.fixture
def group(raw: RawConnection, unique_name: Callable[[], str]) -> str:
    """A group id whose coordinator is ready."""
    name = unique_name()
    await_coordinator(raw, name)
    return name
