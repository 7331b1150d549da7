from __future__ import annotations

import pytest

from pyspark_kafka.records import Decode, Encode
from tests.pyspark_kafka.records.encoded import encoding_implementation
from tests.pyspark_kafka.records.implementations import IMPLEMENTATIONS, implementation


@pytest.fixture(params=IMPLEMENTATIONS)
def decode(request: pytest.FixtureRequest) -> Decode:
    """Each implementation that is built here."""
    return implementation(request.param)


@pytest.fixture(params=IMPLEMENTATIONS)
def encode(request: pytest.FixtureRequest) -> Encode:
    """Each implementation that is built here."""
    return encoding_implementation(request.param)
