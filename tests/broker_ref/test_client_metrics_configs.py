"""Tests of the patterns that a subscription to client metrics may contain."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.client_metrics_configs import MATCH_LENGTH_MAX, check_client_metrics_configs
from broker_ref.protocol.errors import ApiError

LONGEST = "client_id=".ljust(MATCH_LENGTH_MAX, "a")


@pytest.mark.parametrize(
    "match", [LONGEST, r"client_id=(?:a|\w+)-\d{2}", r"client_software_name=[^\x00-\xff]"]
)
def test_patterns_that_are_compiled_fast_are_valid(match: str) -> None:
    assert check_client_metrics_configs({"match": match}) == {"match": match}


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(LONGEST + ",", id="too long"),
        pytest.param("client_id=(?i)a", id="flag"),
        pytest.param("client_id=(?-i:a)", id="flag of a group"),
        pytest.param("client_id=[a-\uffff]", id="non-ASCII"),
        pytest.param(r"client_id=[a-\uffff]", id="escape"),
        pytest.param(r"client_id=[a-\U0010ffff]", id="long escape"),
        pytest.param(r"client_id=[a-\N{EM DASH}]", id="name"),
    ],
)
def test_patterns_that_could_block_the_controller_are_refused(pattern: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_client_metrics_configs({"match": pattern})
    assert refused.value.error_code is ErrorCode.invalid_config
