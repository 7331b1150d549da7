"""The requests of each step: a table that recorded runs are compared with.

Purpose: `REQUESTS` names what every recording of all scenarios reaches, `OCCASIONAL` what some
also reach. Invariant: nothing here is derived from the connector's code; a step or request that is
missing here, or that no scenario reaches, fails the test. What it must not know: scenarios.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark_kafka.sink.exactly_once.steps import Step

_ROLL_FORWARD: Final = frozenset(
    {"end_transactions", "describe_transactions", "list_offsets", "read_log"}
)
_READ: Final = frozenset({"list_offsets", "read_log"})
_SWEEP: Final = frozenset({"list_transactions", "describe_transactions"})
_WRITE: Final = frozenset({"produce", "flush"})

REQUESTS: Final[Mapping[Step, frozenset[str]]] = {
    Step.PLAN_CHECK: frozenset(
        {
            "broker_config",
            "broker_count",
            "create_topic",
            "describe_topics",
            "replication_of",
            "topic_config",
            "transaction_version",
        }
    ),
    Step.PLAN_FENCE: frozenset({"init_producer_id"}),
    Step.PLAN_READ: _READ,
    Step.PLAN_ROLL_FORWARD: _ROLL_FORWARD,
    Step.PLAN_MARK: _WRITE,
    Step.PLAN_SWEEP: _SWEEP | {"init_producer_id"},
    Step.TASK_CHECK: frozenset(),
    Step.TASK_COUNT: frozenset({"describe_topics"}),
    Step.TASK_INIT: frozenset({"init_producer_id"}),
    Step.TASK_PRODUCE: _WRITE | {"describe_topics", "describe_transactions"},
    Step.TASK_GIVE_UP: frozenset({"end_transactions"}),
    Step.COMMIT_VERIFY: frozenset({"describe_transactions"}),
    Step.COMMIT_COMPARE: _ROLL_FORWARD,
    Step.COMMIT_DECIDE: _WRITE | {"send_offsets", "end_transactions"},
    Step.COMMIT_ROLL_FORWARD: _ROLL_FORWARD,
    Step.COMMIT_MARK: _WRITE,
    Step.COMMIT_SWEEP: _SWEEP,
    Step.ABORT_LOOK: frozenset({"describe_transactions"}),
    Step.ABORT_FENCE: frozenset({"init_producer_id"}),
    Step.ABORT_READ: _READ,
    Step.ABORT_TASKS: frozenset({"end_transactions"}),
    Step.ABORT_SWEEP: _SWEEP,
}
"""The requests that each step makes in at least one scenario, by the names of their failpoints."""

OCCASIONAL: Final[Mapping[Step, frozenset[str]]] = {
    # A sweep fences a transaction whose end is not complete when the sweep lists it.
    Step.COMMIT_SWEEP: frozenset({"init_producer_id"}),
    Step.ABORT_SWEEP: frozenset({"init_producer_id"}),
}
"""Requests that depend on how fast brokers are: they are allowed, and need not be reached."""


def never_reached(failpoints: Iterable[str]) -> set[str]:
    """Return the declared failpoints of steps and requests that are not among these."""
    declared = {f"{step.title}.{when}" for step in Step for when in ("before", "after")}
    for step in Step:
        # A request that reads until it finds something has no `after`.
        declared |= {f"{step.title}.{request}.before" for request in REQUESTS[step]}
    return declared - set(failpoints)


def undeclared(failpoints: Iterable[str]) -> set[str]:
    """Return those of these failpoints that belong to no declared step or request."""
    names = {step.title for step in Step}
    for step in Step:
        requests = REQUESTS[step] | OCCASIONAL.get(step, frozenset())
        names |= {f"{step.title}.{request}" for request in requests}
    return {each for each in failpoints if each.rpartition(".")[0] not in names}
