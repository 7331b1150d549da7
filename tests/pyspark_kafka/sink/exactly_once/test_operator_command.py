"""Tests that the command line accepts the command that errors recommend."""

from __future__ import annotations

import shlex

import pytest

from pyspark_kafka.__main__ import _parser
from pyspark_kafka.sink.exactly_once.operator_command import operator_command


@pytest.mark.parametrize("sink_id", ["orders", "-orders"])
@pytest.mark.parametrize("flags", ["--forget", "--recover --accept-loss", "--forget --accept-loss"])
def test_it_can_be_run(sink_id: str, flags: str) -> None:
    words = shlex.split(operator_command(sink_id, flags).split("`")[1])
    assert words[:3] == ["python", "-m", "pyspark_kafka"]
    asked = _parser().parse_args(words[3:])
    assert (asked.id, asked.bootstrap_servers, asked.yes) == (sink_id, "HOST:PORT", False)
    assert _parser().parse_args([*words[3:], "--yes"]).yes
