from __future__ import annotations

import pytest

from pyspark_kafka.records import Decode, Encode
from tests.pyspark_kafka.records.encoded import encoding_implementation
from tests.pyspark_kafka.records.implementations import IMPLEMENTATIONS, implementation


@pytest.fixture(params=IMPLEMENTATIONS)
def decode(request: pytest.FixtureRequest) -> Decode:
    """Return the decoder of each implementation that is built."""
    return implementation(request.param)


@pytest.fixture(params=IMPLEMENTATIONS)
def encode(request: pytest.FixtureRequest) -> Encode:
    """Return the encoder of each implementation that is built."""
    return encoding_implementation(request.param)
