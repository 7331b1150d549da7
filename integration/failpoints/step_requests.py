"""The requests that each step of the sink sends. A test compares them with recorded runs.

`REQUESTS` contains the requests that must occur in the recording of at least one scenario.
`OCCASIONAL` contains requests that may occur. Invariant: these declarations are not derived from
the connector's code. The test fails if a scenario reaches a step or request that this module does
not declare, or if no scenario reaches a declared step or request.
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
_FENCE: Final = frozenset({"end_transactions"})
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
    Step.PLAN_REGISTER: _READ | _WRITE | {"describe_transactions"},
    Step.PLAN_FENCE: frozenset({"init_producer_id"}),
    Step.PLAN_READ: _WRITE | _READ,
    Step.PLAN_ROLL_FORWARD: _ROLL_FORWARD,
    Step.PLAN_MARK: _WRITE,
    Step.PLAN_SWEEP: _SWEEP | _FENCE,
    Step.TASK_CHECK: frozenset(),
    Step.TASK_COUNT: frozenset({"describe_topics"}),
    Step.TASK_INIT: frozenset({"init_producer_id"}),
    Step.TASK_LOOK: frozenset({"describe_transactions"}),
    Step.TASK_PRODUCE: _WRITE | {"describe_topics"},
    Step.TASK_GIVE_UP: frozenset({"end_transactions"}),
    Step.COMMIT_VERIFY: frozenset({"describe_transactions"}),
    Step.COMMIT_COMPARE: _WRITE | _ROLL_FORWARD,
    Step.COMMIT_DECIDE: _WRITE | {"send_offsets", "end_transactions"},
    Step.COMMIT_ROLL_FORWARD: _ROLL_FORWARD,
    Step.COMMIT_MARK: _WRITE,
    Step.COMMIT_SWEEP: _SWEEP,
    Step.ABORT_LOOK: frozenset({"describe_transactions"}),
    Step.ABORT_FENCE: frozenset({"init_producer_id"}),
    Step.ABORT_READ: _WRITE | _READ,
    Step.ABORT_SWEEP: _SWEEP | _FENCE,
}
"""The requests that each step sends in at least one scenario, with the names of their failpoints.
"""

OCCASIONAL: Final[Mapping[Step, frozenset[str]]] = {
    # Sent only if the brokers reject the decision because of its producer epoch.
    Step.COMMIT_DECIDE: frozenset({"describe_transactions"}),
    # The sweep fences only an attempt whose result Spark did not use.
    Step.COMMIT_SWEEP: _FENCE | {"init_producer_ids"},
    # Sent only with transaction version 1.
    Step.PLAN_SWEEP: frozenset({"init_producer_ids"}),
    Step.ABORT_SWEEP: frozenset({"init_producer_ids"}),
    Step.ABORT_LOOK: _FENCE,
}
"""Requests that depend on timing or on the transaction version: allowed, but not required."""

READ_ONLY: Final = frozenset(
    {
        "broker_config",
        "broker_count",
        "describe_topics",
        "describe_transactions",
        "list_offsets",
        "list_transactions",
        "read_log",
        "replication_of",
        "topic_config",
        "transaction_version",
    }
)
"""The requests that change neither the cluster nor the state of another process."""


def never_reached(failpoints: Iterable[str]) -> set[str]:
    """Return the declared failpoints that `failpoints` does not contain."""
    declared = {f"{step.title}.{when}" for step in Step for when in ("before", "after")}
    for step in Step:
        # A generator reaches its `after` failpoint only if its caller exhausts the generator.
        declared |= {f"{step.title}.{request}.before" for request in REQUESTS[step]}
    return declared - set(failpoints)


def undeclared(failpoints: Iterable[str]) -> set[str]:
    """Return the failpoints that do not belong to a declared step or request."""
    names = {step.title for step in Step}
    for step in Step:
        requests = REQUESTS[step] | OCCASIONAL.get(step, frozenset())
        names |= {f"{step.title}.{request}" for request in requests}
    return {each for each in failpoints if each.rpartition(".")[0] not in names}
