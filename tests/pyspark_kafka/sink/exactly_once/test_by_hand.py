"""The command that errors name is one that the command line takes."""

from __future__ import annotations

import shlex

import pytest

from pyspark_kafka.__main__ import _parser
from pyspark_kafka.sink.exactly_once.by_hand import command


@pytest.mark.parametrize("x", ["orders", "-orders"])
@pytest.mark.parametrize("flags", ["--forget", "--recover --accept-loss", "--forget --accept-loss"])
def test_it_can_be_run(x: str, flags: str) -> None:
    words = shlex.split(command(x, flags).split("`")[1])
    assert words[:3] == ["python", "-m", "pyspark_kafka"]
    asked = _parser().parse_args(words[3:])
    assert (asked.id, asked.bootstrap_servers, asked.yes) == (x, "HOST:PORT", False)
    assert _parser().parse_args([*words[3:], "--yes"]).yes
