"""Mutations of the sink, and a seed of the simulation that detects each of them.

`python -m tests.simulation.sink_mutations 0:200` searches for the first seeds again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from integration.simulation.sink.run import run_sink
from integration.simulation.sink.workload import sink_plan_of
from pyspark_kafka.kafka.transactions import EndTransaction
from pyspark_kafka.sink.exactly_once import (
    abort,
    commit,
    decisions,
    planning,
    roll_forward,
    sweep,
    task,
)
from pyspark_kafka.sink.exactly_once.commit_log import CommitLog
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import SinkState
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.planning import Plan
from pyspark_kafka.sink.exactly_once.roll_forward import Outcome
from tests.pyspark_kafka.sink.exactly_once import mutations

Patch = pytest.MonkeyPatch


def count_open_decisions(patch: Patch) -> None:
    """A decision counts although its transaction is not committed yet."""
    patch.setattr(CommitLog, "decided", property(lambda self: tuple(self._batches)))


def count_aborted_decisions(patch: Patch) -> None:
    """A decision counts although its transaction was aborted."""
    patch.setattr(CommitLog, "_decide", lambda *_: None)


def never_read_the_commit_log_again(patch: Patch) -> None:
    """A process keeps its copy of the commit log without reading new records."""

    original = CommitLog.read

    def read(self: CommitLog, *rest: Any) -> bool:
        return self._last is not None or original(self, *rest)

    patch.setattr(CommitLog, "read", read)


def number_every_decision_alike(patch: Patch) -> None:
    patch.setattr(Plan, "last_number", lambda *_: 0)


def prefer_the_lowest_number(patch: Patch) -> None:
    """The first decision of a query remains its state."""
    patch.setattr(decisions, "max", min, raising=False)


def delete_the_current_records(patch: Patch) -> None:
    """Planning deletes the state of a query together with its obsolete records."""
    original = CommitTopic.read

    def read(self: CommitTopic) -> SinkState:
        state = original(self)
        keys = [key for query in state.queries.values() for key in query.keys]
        return replace(state, obsolete=(*state.obsolete, *keys))

    patch.setattr(CommitTopic, "read", read)


def read_before_the_fence(patch: Patch) -> None:
    """Planning reads the decisions before it fences the sink's id."""
    original_register, original_read = CommitTopic.register, CommitTopic.read_latest
    states: dict[int, SinkState] = {}

    def register(self: CommitTopic) -> None:
        original_register(self)
        states[id(self)] = original_read(self)

    def read_latest(self: CommitTopic) -> SinkState:
        return states.pop(id(self), None) or original_read(self)

    patch.setattr(CommitTopic, "register", register)
    patch.setattr(CommitTopic, "read_latest", read_latest)


def read_from_a_replaced_leader(patch: Patch) -> None:
    """An isolated broker returns its old end of the commit topic."""
    patch.setattr(CommitTopic, "read_latest", CommitTopic.read)


def mark_lost_rows_as_finished(patch: Patch) -> None:
    original = planning._settled

    def settled(states: Any, lost: Any, unknown: Any, *, reports_jobs: bool) -> Any:
        del lost
        return original(states, {}, unknown, reports_jobs=reports_jobs)

    patch.setattr(planning, "_settled", settled)


def take_a_fenced_transaction_for_lost(patch: Patch) -> None:
    """If the coordinator has another epoch, the transaction counts as aborted."""
    original = roll_forward._outcome_by_coordinator

    def outcome(entry: Any, found: Any) -> Outcome:
        known = original(entry, found)
        return Outcome.LOST if known is Outcome.UNKNOWN else known

    patch.setattr(roll_forward, "_outcome_by_coordinator", outcome)


def take_a_fenced_transaction_for_committed(patch: Patch) -> None:
    """If the coordinator has another epoch, the transaction counts as committed."""
    original = roll_forward._outcome_by_coordinator

    def outcome(entry: Any, found: Any) -> Outcome:
        known = original(entry, found)
        return Outcome.DONE if known is Outcome.UNKNOWN else known

    patch.setattr(roll_forward, "_outcome_by_coordinator", outcome)


def take_an_aborted_transaction_for_committed(patch: Patch) -> None:
    patch.setattr(roll_forward, "_BY_STATE", dict.fromkeys(roll_forward._BY_STATE, Outcome.DONE))


def take_the_first_marker_for_the_outcome(patch: Patch) -> None:
    """Any marker of the producer id determines the outcome, even one of another transaction."""

    def first(entry: Any, last_offset: int, batches: Any) -> Any:
        del last_offset
        ends = (
            b.ends_with for b in batches if b.producer.producer_id == entry.producer.producer_id
        )
        return next((end for end in ends if end is not None), None)

    patch.setattr(roll_forward, "_first_result", first)


def end_in_the_other_version(patch: Patch) -> None:
    """EndTxn has version 4 for transactions of version 2 and the other way round."""
    original = FailpointClient.end_transactions

    def end(self: FailpointClient, ends: Any) -> Any:
        def other(one: EndTransaction) -> EndTransaction:
            return replace(one, version=1 if one.version == 2 else 2)

        return original(self, [other(one) for one in ends])

    patch.setattr(FailpointClient, "end_transactions", end)


def decide_although_the_time_is_up(patch: Patch) -> None:
    """Transactions are neither verified, nor is the deadline checked before EndTxn."""
    original = commit._Batch.decide
    patch.setattr(commit._Batch, "verify", lambda _: float("inf"))
    patch.setattr(
        commit._Batch,
        "decide",
        lambda self, decision, **_: original(self, decision, before_ms=float("inf")),
    )


def prepare_a_part_of_the_rows(patch: Patch) -> None:
    """A task returns before its rows are acknowledged."""
    original = task._Attempt._send

    def send(self: Any, producer: Any, first: Any, others: Iterator[Any]) -> None:
        original(self, producer, first, iter(()))
        for _ in others:
            pass

    patch.setattr(task._Attempt, "_send", send)


def write_what_was_decided_after_a_restart(patch: Patch) -> None:
    """A finished decision does not count."""
    original = CommitTopic.read

    def read(self: CommitTopic) -> SinkState:
        state = original(self)
        open_ = {name: one for name, one in state.queries.items() if not one.is_finished}
        return replace(state, queries=open_)

    patch.setattr(CommitTopic, "read", read)


def sweep_without_the_owner_check_in_abort(patch: Patch) -> None:
    """abort() takes the sink's id from a newer owner."""
    patch.setattr(abort, "_is_owner", lambda *_: True)
    patch.setattr(
        abort,
        "_take_over",
        lambda client, options, _: client.init_producer_id(
            options.transactional_id, timeout_ms=30_000
        ),
    )


def hold_the_sink_forever(patch: Patch) -> None:
    """A sweep believes that it still owns the sink, whoever the owner is."""
    patch.setattr(sweep, "is_held", lambda *_: True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A mutation, a seed that detects it, and a regular expression for the violation."""

    mutation: Callable[[Patch], None]
    seed: int
    violation: str


_DUPLICATES = "duplicate rows"
_LOST = "lost rows"
_STUCK = "stuck readers"
_OFFSET = "group offset"
_MODEL = "the model does not allow"

FOUND: tuple[Found, ...] = (
    Found(mutation=mutations.decide_twice, seed=3, violation=_DUPLICATES),
    Found(mutation=mutations.commit_before_prepare, seed=0, violation=_DUPLICATES),
    Found(mutation=mutations.forget_roll_forward, seed=28, violation=_LOST),
    Found(mutation=mutations.mark_before_rolling_forward, seed=13, violation=_LOST),
    Found(mutation=mutations.trust_a_stale_decision, seed=1, violation=_OFFSET),
    Found(mutation=mutations.offsets_outside_the_transaction, seed=7, violation=_OFFSET),
    Found(mutation=mutations.sweep_nothing_when_planning, seed=11, violation=_STUCK),
    Found(mutation=never_read_the_commit_log_again, seed=1, violation=_OFFSET),
    Found(mutation=number_every_decision_alike, seed=12, violation=_OFFSET),
    Found(mutation=prefer_the_lowest_number, seed=12, violation=_OFFSET),
    Found(mutation=delete_the_current_records, seed=3, violation=_OFFSET),
    Found(mutation=write_what_was_decided_after_a_restart, seed=1, violation=_OFFSET),
    Found(mutation=prepare_a_part_of_the_rows, seed=0, violation=_LOST),
    Found(mutation=mutations.let_a_late_mark_hide_a_newer_decision, seed=12, violation=_OFFSET),
    Found(mutation=mutations.decide_nothing_of_an_empty_batch, seed=1, violation=_OFFSET),
    Found(mutation=mutations.begin_without_looking_who_owns_x, seed=0, violation=_MODEL),
    Found(mutation=mutations.sweep_nothing_after_committing, seed=0, violation=_MODEL),
    Found(mutation=mutations.fence_again_to_decide, seed=0, violation=_MODEL),
    Found(mutation=mutations.abort_without_fencing, seed=9, violation=_MODEL),
    Found(mutation=mutations.abort_what_was_decided, seed=5, violation=_MODEL),
    Found(mutation=read_from_a_replaced_leader, seed=1350, violation=_OFFSET),
    Found(mutation=read_before_the_fence, seed=0, violation=_MODEL),
    Found(mutation=sweep_without_the_owner_check_in_abort, seed=5, violation=_MODEL),
)

CANDIDATES: tuple[Callable[[Patch], None], ...] = (
    *dict.fromkeys(one.breaks for one in mutations.MUTATIONS),
    count_open_decisions,
    count_aborted_decisions,
    never_read_the_commit_log_again,
    number_every_decision_alike,
    prefer_the_lowest_number,
    delete_the_current_records,
    read_before_the_fence,
    read_from_a_replaced_leader,
    mark_lost_rows_as_finished,
    take_a_fenced_transaction_for_lost,
    take_a_fenced_transaction_for_committed,
    take_an_aborted_transaction_for_committed,
    take_the_first_marker_for_the_outcome,
    end_in_the_other_version,
    decide_although_the_time_is_up,
    prepare_a_part_of_the_rows,
    write_what_was_decided_after_a_restart,
    sweep_without_the_owner_check_in_abort,
    hold_the_sink_forever,
)


def search(seeds: range, names: list[str]) -> None:
    """Print the first seed that detects each mutation."""
    for mutation in CANDIDATES:
        if names and mutation.__name__ not in names:
            continue
        found = "not found"
        for seed in seeds:
            with pytest.MonkeyPatch.context() as patch:
                mutation(patch)
                violation = run_sink(sink_plan_of(seed)).violation
            if violation is not None:
                found = f"{seed:4d} {violation}"
                break
        print(f"{mutation.__name__:45s} {re.sub(r'[^ -~]', ' ', found)[:160]}", flush=True)


if __name__ == "__main__":
    first, _, end = sys.argv[1].partition(":")
    search(range(int(first), int(end)), sys.argv[2:])
