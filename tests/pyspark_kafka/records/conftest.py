from __future__ import annotations

import pytest

from pyspark_kafka.records import Decode, Encode
from tests.pyspark_kafka.records.encoded import encoding_twin
from tests.pyspark_kafka.records.twins import TWINS, twin


@pytest.fixture(params=TWINS)
def decode(request: pytest.FixtureRequest) -> Decode:
    """Each twin that is built here."""
    return twin(request.param)


@pytest.fixture(params=TWINS)
def encode(request: pytest.FixtureRequest) -> Encode:
    """Each twin that is built here."""
    return encoding_twin(request.param)
