"""The outcome of a test case with one connector, and the comparison of two such outcomes.

Invariant: an outcome consists of JSON values, and contains nothing that differs between two runs of
the same connector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from integration.parity.case import Case, Expected, Relation


class Stage(IntEnum):
    """The stages in which a query can be rejected, in chronological order."""

    DRIVER = 1
    """In `load()`, or on the driver before the first task of the run."""

    TASK = 2
    """After a task has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The query ran to its end. `aspects` maps the name of each aspect to the observed value."""

    aspects: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The query failed in run `run`, counted from 0. `error` is the class of the error."""

    stage: Stage
    run: int
    error: str
    text: str


Outcome = Accepted | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both outcomes of a case, and the problems: the differences from what the case expects."""

    case: Case
    spark: Outcome
    ours: Outcome
    problems: tuple[str, ...]


def compare(case: Case, spark: Outcome, ours: Outcome) -> Comparison:
    """Compare the outcomes of both connectors with what the case expects."""
    problems = tuple(_problems(case.expected, spark, ours))
    return Comparison(case=case, spark=spark, ours=ours, problems=problems)


def _problems(expected: Expected, spark: Outcome, ours: Outcome) -> list[str]:
    if isinstance(ours, Refused):
        if isinstance(spark, Accepted):
            return _of_refusal(expected, ours, Relation.WE_REFUSE)
        found = _of_refusal(expected, ours, Relation.BOTH_REFUSE)
        return found + _of_later_refusal(spark, ours)
    if isinstance(spark, Refused):
        return _of_refusal_by_spark(expected, spark, ours)
    return _of_both_accepted(expected, spark, ours)


def _of_both_accepted(expected: Expected, spark: Accepted, ours: Accepted) -> list[str]:
    names = spark.aspects.keys() | ours.aspects.keys()
    both = {name: (spark.aspects.get(name), ours.aspects.get(name)) for name in sorted(names)}
    found = {name: values for name, values in both.items() if values[0] != values[1]}
    relation = Relation.DIFFERENT if found else Relation.SAME
    problems = _of_relation(expected, relation)
    wanted = expected.aspects if expected.relation is Relation.DIFFERENT else {}
    problems += [f"'{name}' does not differ" for name in wanted if name not in found]
    return problems + [
        f"'{name}' is {values[0]!r} with Spark's connector, and {values[1]!r} with ours"
        for name, values in found.items()
        if name not in wanted or not all(map(_matches, values, wanted[name]))
    ]


def _of_refusal(expected: Expected, ours: Refused, relation: Relation) -> list[str]:
    problems = _of_relation(expected, relation)
    if problems or ours.error != expected.error:
        problems.append(f"our error is {ours.error} in run {ours.run}: {ours.text}")
    return problems


def _of_later_refusal(spark: Refused, ours: Refused) -> list[str]:
    if ours.run != spark.run:
        return [f"we refuse run {ours.run}, and Spark's connector refuses run {spark.run}"]
    if ours.stage > spark.stage:
        return [f"we refuse in a {ours.stage.name}, and Spark's connector on the driver"]
    return []


def _of_refusal_by_spark(expected: Expected, spark: Refused, ours: Accepted) -> list[str]:
    problems = _of_relation(expected, Relation.SPARK_REFUSES)
    if problems:
        return [*problems, f"Spark's error is {spark.error} in run {spark.run}: {spark.text}"]
    return [
        f"'{name}' is {ours.aspects[name]!r} with ours, not {value!r}"
        for name, value in expected.aspects.items()
        if not _matches(ours.aspects[name], value)
    ]


def _of_relation(expected: Expected, found: Relation) -> list[str]:
    if found is expected.relation:
        return []
    return [f"the relation is '{found.value}', not '{expected.relation.value}'"]


def _matches(value: Any, expected: Any) -> bool:
    if isinstance(value, list) and isinstance(expected, int):
        return len(value) == expected
    return bool(value == expected)


_OUR_ERROR: Final = re.compile(r"pyspark_kafka\.errors\.(\w+): ")
_INTRODUCTIONS: Final = ("terminated with exception:", "executor driver):")
"""The text that Spark adds before an error message from a streaming query or a task."""

_TEXT_MAX: Final = 300


def refused(
    error: PySparkException | Py4JJavaError | TimeoutError, stage: Stage, run: int
) -> Refused:
    """Return the outcome of a query that failed or timed out.

    If our connector raised the error, the outcome contains the class of this error. Otherwise, it
    contains Spark's error condition or, if there is none, the class of Spark's error.
    """
    if isinstance(error, Py4JJavaError):
        found = error.java_exception
        name, text = found.getClass().getSimpleName(), str(found.toString())
    else:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        name, text = condition or type(error).__name__, str(error)
    for introduction in _INTRODUCTIONS:
        text = text.rpartition(introduction)[2]
    text = " ".join(text.split())
    match = _OUR_ERROR.search(text)
    if match is not None:
        name, text = match[1], text[match.start() :]
    return Refused(stage=stage, run=run, error=name, text=text[:_TEXT_MAX])
