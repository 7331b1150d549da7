from __future__ import annotations

import pytest

from pyspark_kafka.records import Decode
from tests.pyspark_kafka.records.twins import TWINS, twin


@pytest.fixture(params=TWINS)
def decode(request: pytest.FixtureRequest) -> Decode:
    """Each twin that is built here."""
    return twin(request.param)
