"""Every test that takes `client` runs once with each of the two clients."""

from __future__ import annotations

import pytest

from tests.conformance.clients import Client, Confluent, KafkaPython


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A client of the run's cluster that we did not write."""
    made: Client = request.param(bootstrap)
    return made
