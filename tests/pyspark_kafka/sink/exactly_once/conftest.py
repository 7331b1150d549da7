"""A fake cluster of each transaction version, and a client of it."""

from __future__ import annotations

from typing import Literal, cast

import pytest

from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def fake(request: pytest.FixtureRequest) -> FakeCluster:
    """Three brokers whose `transaction.version` is each in turn."""
    return FakeCluster(cast("Literal[1, 2]", request.param))


@pytest.fixture
def driver(fake: FakeCluster) -> FakeClient:
    """A client of the fake cluster."""
    return fake.client("driver")
