"""A fixture that selects the client engine of a test."""

from __future__ import annotations

import pytest

from tests.pyspark_kafka.client import records


@pytest.fixture(params=[pytest.param("librdkafka", marks=pytest.mark.slow), "native"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `records.reading` and `records.writing` open a client of each engine in turn."""
    monkeypatch.setattr(records, "ENGINE", request.param)
    return str(request.param)
