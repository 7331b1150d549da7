"""Mutations of the sink, and the seed of the simulation that detects each of them.

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
from pyspark_kafka.sink.exactly_once.names import next_generation
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

    def settled(unfinished: Any, lost: Any, unknown: Any) -> Any:
        del lost
        return original(unfinished, {}, unknown)

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

    def end(self: FailpointClient, ends: Any, **_: Any) -> Any:
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


def end_only_the_first_transaction(patch: Patch) -> None:
    """Roll-forward takes all transactions for committed after it has ended one."""
    original = roll_forward._Committer.commit

    def commit_first(self: Any, entries: Any) -> None:
        original(self, entries[:1])
        self.outcomes |= dict.fromkeys((e.transactional_id for e in entries[1:]), Outcome.DONE)

    patch.setattr(roll_forward._Committer, "commit", commit_first)


def abort_the_decided_transactions(patch: Patch) -> None:
    original = roll_forward._commit
    patch.setattr(roll_forward, "_commit", lambda entry: replace(original(entry), is_commit=False))


def leave_the_decision_open(patch: Patch) -> None:
    """The transaction of the decision is not committed."""
    patch.setattr(
        commit._Batch, "decide", lambda self, decision, **_: self._write_decision(decision)
    )


def abort_the_decision(patch: Patch) -> None:
    """The transaction of the decision is aborted, and the batch continues."""
    patch.setattr(
        commit, "EndTransaction", lambda **fields: EndTransaction(**fields | {"is_commit": False})
    )


def sweep_decided_transactions(patch: Patch) -> None:
    """Planning aborts transactions although a decision contains them."""
    original = sweep.sweep

    def sweep_all(*rest: Any, spare: Any, **options: Any) -> Any:
        del spare
        return original(*rest, **options)

    patch.setattr(planning, "sweep", sweep_all)


def sweep_only_one_generation(patch: Patch) -> None:
    """Planning sweeps only the ids of the generation that its own tasks will use."""
    original = sweep.sweep

    def sweep_one(client: Any, sink_id: str, owner: Any, version: Any, **options: Any) -> Any:
        generation = next_generation(owner, ())
        return original(client, sink_id, owner, version, generation=generation, **options)

    patch.setattr(planning, "sweep", sweep_one)


def fence_only_the_first_attempt(patch: Patch) -> None:
    """A sweep looks once and ends one transaction."""
    original = sweep._fence

    def fence(client: Any, found: Any, version: Any) -> None:
        original(client, dict(list(found.items())[:1]), version)

    patch.setattr(sweep, "_fence", fence)
    patch.setattr(sweep, "_ROUNDS_MAX", 1)


def commit_no_offsets(patch: Patch) -> None:
    patch.setattr(commit._Batch, "_send_offsets", lambda *_: None)


def delete_finished_decisions(patch: Patch) -> None:
    """A finished decision is deleted instead of marked, as for a job without batchId."""
    original = CommitTopic.mark_finished

    def mark(self: CommitTopic, state: Any) -> None:
        original(self, state)
        finished = [record[0] for record in decisions.finishing_records(state)]
        self.write_plain(decisions.tombstones(finished))

    patch.setattr(CommitTopic, "mark_finished", mark)


def decide_with_a_part_of_the_results(patch: Patch) -> None:
    """The decision omits the transaction of the last task."""
    original = commit._Batch.decision

    def decision(self: Any) -> Any:
        found = original(self)
        return None if found is None else replace(found, entries=found.entries[:-1])

    patch.setattr(commit._Batch, "decision", decision)


def write_each_row_twice(patch: Patch) -> None:
    """A task sends its first rows again, as after an error without idempotence."""
    original = task._Attempt._send

    def send(self: Any, producer: Any, first: Any, others: Iterator[Any]) -> None:
        original(self, producer, first, iter((first, *others)))

    patch.setattr(task._Attempt, "_send", send)


def forget_what_was_just_decided(patch: Patch) -> None:
    """commit() ends only the transaction of the decision and marks the batch as finished."""
    patch.setattr(commit, "roll_forward", lambda *_, **__: ())


def commit_while_sweeping(patch: Patch) -> None:
    """A sweep commits the transactions that it finds, and renews the ids with version 1."""
    original = sweep._fence

    def fence(client: Any, found: Any, version: Any) -> None:
        ends = [
            EndTransaction(
                transactional_id=name, producer=one.producer, is_commit=True, version=version
            )
            for name, one in found.items()
        ]
        client.end_transactions(ends)
        if version == 1:
            original(client, found, version)

    patch.setattr(sweep, "_fence", fence)


def take_a_new_batch_for_the_decided_one(patch: Patch) -> None:
    patch.setattr(task._Attempt, "decided", lambda self: self.plan.last.get(self.task.query_id))
    patch.setattr(commit._Batch, "_compare", lambda *_: None)


def write_nothing_in_a_second_attempt(patch: Patch) -> None:
    original = task._Attempt.write

    def write(self: Any, rows: Any, decided: Any) -> Any:
        return self._empty() if self.task.attempt else original(self, rows, decided)

    patch.setattr(task._Attempt, "write", write)


def commit_the_offset_of_the_last_row(patch: Patch) -> None:
    """The committed offset is the offset of the last row instead of the one after it."""
    original = commit._Batch._send_offsets

    def send(self: Any, producer: Any) -> None:
        if self.offsets is not None:
            offsets = {partition: n - 1 for partition, n in self.offsets.offsets.items()}
            self = replace(self, offsets=replace(self.offsets, offsets=offsets))
        original(self, producer)

    patch.setattr(commit._Batch, "_send_offsets", send)


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
    Found(mutation=mutations.offsets_outside_the_transaction, seed=33, violation=_OFFSET),
    Found(mutation=mutations.sweep_nothing_when_planning, seed=11, violation=_STUCK),
    Found(mutation=never_read_the_commit_log_again, seed=1, violation=_OFFSET),
    Found(mutation=number_every_decision_alike, seed=12, violation=_OFFSET),
    Found(mutation=prefer_the_lowest_number, seed=12, violation=_OFFSET),
    Found(mutation=delete_the_current_records, seed=7, violation=_OFFSET),
    Found(mutation=write_what_was_decided_after_a_restart, seed=1, violation=_OFFSET),
    Found(mutation=prepare_a_part_of_the_rows, seed=0, violation=_LOST),
    Found(mutation=mutations.let_a_late_mark_hide_a_newer_decision, seed=12, violation=_OFFSET),
    Found(mutation=mutations.decide_nothing_of_an_empty_batch, seed=1, violation=_OFFSET),
    Found(mutation=mutations.begin_without_looking_who_owns_x, seed=0, violation=_MODEL),
    Found(mutation=mutations.sweep_nothing_after_committing, seed=0, violation=_MODEL),
    Found(mutation=mutations.fence_again_to_decide, seed=0, violation=_MODEL),
    Found(mutation=mutations.abort_without_fencing, seed=9, violation=_MODEL),
    Found(mutation=mutations.abort_what_was_decided, seed=5, violation=_MODEL),
    Found(mutation=read_before_the_fence, seed=0, violation=_MODEL),
    Found(mutation=sweep_without_the_owner_check_in_abort, seed=5, violation=_MODEL),
    Found(mutation=end_only_the_first_transaction, seed=0, violation=_LOST),
    Found(mutation=abort_the_decided_transactions, seed=0, violation=_LOST),
    Found(mutation=abort_the_decision, seed=1, violation=_OFFSET),
    Found(mutation=sweep_only_one_generation, seed=11, violation=_STUCK),
    Found(mutation=fence_only_the_first_attempt, seed=11, violation=_STUCK),
    Found(mutation=commit_no_offsets, seed=1, violation=_OFFSET),
    Found(mutation=decide_with_a_part_of_the_results, seed=0, violation=_LOST),
    Found(mutation=write_each_row_twice, seed=0, violation=_DUPLICATES),
    Found(mutation=leave_the_decision_open, seed=0, violation=_MODEL),
    Found(mutation=delete_finished_decisions, seed=1, violation=_OFFSET),
    Found(mutation=forget_what_was_just_decided, seed=0, violation=_LOST),
    Found(mutation=commit_while_sweeping, seed=0, violation=_DUPLICATES),
    Found(mutation=take_a_new_batch_for_the_decided_one, seed=0, violation=_LOST),
    Found(mutation=write_nothing_in_a_second_attempt, seed=0, violation=_LOST),
    Found(mutation=commit_the_offset_of_the_last_row, seed=1, violation=_OFFSET),
    Found(mutation=mutations.swallow_a_lost_task, seed=180, violation=_LOST),
    Found(mutation=mutations.take_an_ambiguous_answer_for_success, seed=273, violation=_LOST),
    Found(mutation=mark_lost_rows_as_finished, seed=180, violation=_LOST),
    Found(mutation=take_a_fenced_transaction_for_committed, seed=180, violation=_LOST),
)

NOT_FOUND: tuple[Callable[[Patch], None], ...] = (
    *dict.fromkeys(
        one.breaks
        for one in mutations.MUTATIONS
        if one.breaks not in {found.mutation for found in FOUND}
    ),
    read_from_a_replaced_leader,
    count_open_decisions,
    count_aborted_decisions,
    take_a_fenced_transaction_for_lost,
    take_an_aborted_transaction_for_committed,
    take_the_first_marker_for_the_outcome,
    end_in_the_other_version,
    decide_although_the_time_is_up,
    hold_the_sink_forever,
    sweep_decided_transactions,
)


def search(seeds: range, names: list[str]) -> None:
    """Print the first seed that detects each mutation."""
    for mutation in (*(found.mutation for found in FOUND), *NOT_FOUND):
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
