"""Tests of the tracebacks that Spark shows: they end at the method that Spark has called."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import pytest

from pyspark_kafka.errors import OptionError
from pyspark_kafka.tracebacks import short_traceback


def fail() -> None:
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise OptionError("The option is wrong.", option="x") from error


@short_traceback
def method() -> None:
    fail()


@short_traceback
def generator() -> Iterator[int]:
    yield 1
    fail()


@pytest.mark.parametrize("call", [method, lambda: list(generator())])
def test_inner_frames_and_causes_are_omitted(call: Callable[[], object]) -> None:
    with pytest.raises(OptionError) as caught:
        call()
    text = "".join(traceback.format_exception(caught.value))
    assert "fail" not in text
    assert "KeyError" not in text
    assert caught.value.option == "x"


def test_bugs_keep_their_traceback() -> None:
    @short_traceback
    def bug() -> None:
        fail_unexpectedly()

    def fail_unexpectedly() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        bug()
    assert "fail_unexpectedly" in "".join(traceback.format_exception(caught.value))
