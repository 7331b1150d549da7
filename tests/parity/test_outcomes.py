"""The comparison of two outcomes finds every difference from what a case expects."""

from __future__ import annotations

from typing import Any

import pytest

from integration.parity.case import (
    SAME,
    Case,
    Expected,
    Kind,
    both_refuse,
    different,
    spark_refuses,
    we_refuse,
)
from integration.parity.outcomes import Accepted, Outcome, Refused, Stage, compare


def accepted(**aspects: Any) -> Outcome:
    return Accepted(aspects={"rows": [1, 2], **aspects})


def refused(*, stage: Stage = Stage.DRIVER, run: int = 0, error: str = "OptionError") -> Outcome:
    return Refused(stage=stage, run=run, error=error, text="why")


def problems(expected: Expected, spark: Outcome, ours: Outcome) -> tuple[str, ...]:
    case = Case(about="o", title="t", kind=Kind.BATCH_READ, options={}, expected=expected)
    return compare(case, spark, ours).problems


REFUSED = both_refuse("OptionError")
TASKS = different("why", tasks=(3, [7]))


@pytest.mark.parametrize(
    ("expected", "spark", "ours"),
    [
        pytest.param(SAME, accepted(), accepted(), id="same"),
        pytest.param(REFUSED, refused(error="any"), refused(), id="both-refuse"),
        pytest.param(REFUSED, refused(stage=Stage.TASK), refused(), id="earlier"),
        pytest.param(we_refuse("OptionError", "why"), accepted(), refused(), id="we-refuse"),
        pytest.param(spark_refuses("why", rows=2), refused(), accepted(), id="spark-refuses"),
        pytest.param(TASKS, accepted(tasks=[1, 2, 3]), accepted(tasks=[7]), id="different"),
    ],
)
def test_expected_outcomes(expected: Expected, spark: Outcome, ours: Outcome) -> None:
    assert problems(expected, spark, ours) == ()


@pytest.mark.parametrize(
    ("expected", "spark", "ours"),
    [
        pytest.param(SAME, accepted(), accepted(rows=[1]), id="other-rows"),
        pytest.param(SAME, accepted(), refused(), id="only-we-refuse"),
        pytest.param(SAME, refused(), refused(), id="both-refuse"),
        pytest.param(REFUSED, accepted(), accepted(), id="both-accept"),
        pytest.param(REFUSED, refused(), refused(error="KafkaError"), id="other-error"),
        pytest.param(REFUSED, refused(), refused(stage=Stage.TASK), id="later"),
        pytest.param(REFUSED, refused(), refused(run=1), id="other-run"),
        pytest.param(spark_refuses("why", rows=3), refused(), accepted(), id="other-length"),
        pytest.param(TASKS, accepted(tasks=[1]), accepted(tasks=[7]), id="other-value-of-spark"),
        pytest.param(TASKS, accepted(tasks=[1, 2, 3]), accepted(tasks=[8]), id="other-value"),
        pytest.param(TASKS, accepted(tasks=[7]), accepted(tasks=[7]), id="no-difference"),
        pytest.param(
            TASKS,
            accepted(tasks=[1, 2, 3]),
            accepted(tasks=[7], rows=[]),
            id="one-more-difference",
        ),
    ],
)
def test_unexpected_outcomes(expected: Expected, spark: Outcome, ours: Outcome) -> None:
    assert problems(expected, spark, ours) != ()
