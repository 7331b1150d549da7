"""Which engine a test of the port is for."""

from __future__ import annotations

import pytest

from tests.pyspark_kafka.client import records


@pytest.fixture(params=["librdkafka", "native"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have `records.reading` open a client of each engine in turn."""
    monkeypatch.setattr(records, "ENGINE", request.param)
    return str(request.param)
