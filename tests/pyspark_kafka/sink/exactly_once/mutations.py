"""Deliberate bugs in the protocol, one rule each.

They show that the scenarios detect such bugs. A mutation changes the real code in one rule only,
and `MUTATIONS` names the scenario that must detect it, and what the scenario must find. The
mutations do not depend on how scenarios run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import (
    BatchNotCommittedError,
    PysparkKafkaError,
    RowsLostError,
    SinkFencedError,
    StaleBatchError,
)
from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionState,
)
from pyspark_kafka.sink.exactly_once import (
    abort,
    commit,
    messages,
    planning,
    sweep,
    task,
)
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic, SinkNotRegisteredError
from pyspark_kafka.sink.exactly_once.decisions import Decision, QueryState, SinkState, _StateReader
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.messages import Prepared, TaskMessage
from pyspark_kafka.sink.exactly_once.planning import LastDecision
from tests.pyspark_kafka.sink.exactly_once import failure_scenarios, scenarios
from tests.pyspark_kafka.sink.exactly_once.runs import COMMIT_TOPIC
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

Patch = pytest.MonkeyPatch


class Finding(Enum):
    """The result of the sink that a check of a scenario finds wrong."""

    LOST_ROWS = "consumers do not read committed rows"
    DUPLICATE_ROWS = "consumers read rows again, or rows that are not committed"
    OPEN_TRANSACTION = "an open transaction blocks consumers"
    OFFSET = "the committed offset of a group is wrong"
    NO_ERROR = "an operation that must fail succeeds"
    STATE = "the result of a task or of planning, or a decision, is wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One deliberate bug; it is detected with the transaction versions in `versions`.

    `finding` is the wrong result, or the class of the error with which an operation of the sink
    fails that must succeed.
    """

    breaks: Callable[[Patch], None]
    found_by: Callable[[FakeWorld], object]
    finding: Finding | type[PysparkKafkaError]
    versions: tuple[int, ...] = (1, 2)


def skip_the_fence(patch: Patch) -> None:
    """Planning does not bump the epoch of the sink's id."""
    original = FailpointClient.init_producer_id

    def init(self: FailpointClient, transactional_id: str, **how: Any) -> ProducerIdAndEpoch:
        found = self.describe_transactions([transactional_id]).get(transactional_id)
        if "/" not in transactional_id and found is not None and how.get("expected") is None:
            return found.producer
        return original(self, transactional_id, **how)

    patch.setattr(FailpointClient, "init_producer_id", init)


def decide_twice(patch: Patch) -> None:
    """Tasks write a decided batch again, and the batch is decided again."""
    original = task._Attempt.decided

    def decided(self: Any) -> LastDecision | None:
        last = original(self)
        return last if last is None or last.lost else None

    patch.setattr(task._Attempt, "decided", decided)


def commit_before_prepare(patch: Patch) -> None:
    original = task._Attempt._produce

    def produce(self: Any, *rest: Any) -> Prepared:
        message = original(self, *rest)
        _end(self.client, message, is_commit=True)
        return message

    patch.setattr(task._Attempt, "_produce", produce)


def _end(client: TransactionalClient, message: Prepared, *, is_commit: bool) -> None:
    end = EndTransaction(
        transactional_id=message.entry.transactional_id,
        producer=message.entry.producer,
        is_commit=is_commit,
        version=message.entry.version,
    )
    client.end_transactions([end])


def forget_roll_forward(patch: Patch) -> None:
    """Planning marks decisions as finished without committing their transactions."""
    patch.setattr(planning, "roll_forward", lambda *_: ())


def reuse_ids_at_once(patch: Patch) -> None:
    """All batches have the same generation."""
    patch.setattr(planning, "next_generation", lambda *_: 0)


def trust_a_stale_decision(patch: Patch) -> None:
    """Decisions are read once and then cached forever."""
    original = CommitTopic.read
    known: dict[str, SinkState] = {}

    def read(self: CommitTopic) -> SinkState:
        return known.setdefault(self._sink_id, original(self))

    patch.setattr(CommitTopic, "read", read)


def offsets_outside_the_transaction(patch: Patch) -> None:
    def send(self: Any, _: object) -> None:
        if self.options.group_id is not None and self.offsets is not None:
            self.client.commit_offsets(self.options.group_id, self.offsets.offsets)

    patch.setattr(commit._Batch, "_send_offsets", send)


def swallow_a_lost_task(patch: Patch) -> None:
    for module in (planning, commit):
        original = module.roll_forward

        def roll_forward(*rest: Any, _original: Any = original, **options: Any) -> tuple[()]:
            _original(*rest, **options)
            return ()

        patch.setattr(module, "roll_forward", roll_forward)


def ignore_the_query_id(patch: Patch) -> None:
    """Tasks compare their batch with the last decision of another query."""
    original = task.write_task

    def write_task(*rest: Any, plan: Any, task: Any, **more: Any) -> TaskMessage:
        last = dict.fromkeys([task.query_id], *plan.last.values()) if plan.last else {}
        return original(*rest, plan=replace(plan, last=last), task=task, **more)

    patch.setattr("tests.pyspark_kafka.sink.exactly_once.runs.write_task", write_task)


def abort_what_was_decided(patch: Patch) -> None:
    """abort() treats every failed batch as undecided."""

    class Nothing(CommitTopic):
        def read(self) -> SinkState:
            return SinkState(forgotten_number=0, queries={})

    patch.setattr(abort, "_is_owner", lambda *_: True)
    patch.setattr(abort, "_take_over", lambda _, __, owner: owner)
    patch.setattr(abort, "CommitTopic", Nothing)
    patch.setattr(abort, "sweep", partial(sweep.sweep, is_decided=True))


def sweep_without_looking_who_owns_x(patch: Patch) -> None:
    patch.setattr(sweep, "_check_owner", lambda *_: None)


def let_a_late_mark_hide_a_newer_decision(patch: Patch) -> None:
    """A finished record counts even if a newer decision exists."""
    original = _StateReader._by_query

    def by_query(self: Any, records: Any) -> Any:
        found = original(self, records)
        return {
            query_id: {key: of_query[key] for key in of_query if key[1]} or of_query
            for query_id, of_query in found.items()
        }

    patch.setattr(_StateReader, "_by_query", by_query)


def read_the_commit_topic_only_to_its_lso(patch: Patch) -> None:
    original = FailpointClient.list_offsets

    def list_offsets(self: FailpointClient, queries: Any, isolation_level: IsolationLevel) -> Any:
        if any(partition.topic == COMMIT_TOPIC for partition in queries):
            isolation_level = IsolationLevel.READ_COMMITTED
        return original(self, queries, isolation_level)

    patch.setattr(FailpointClient, "list_offsets", list_offsets)


def rewrite_a_batch_older_than_the_decided_one(patch: Patch) -> None:
    original = task._Attempt.decided

    def decided(self: Any) -> LastDecision | None:
        last = self.plan.last.get(self.task.query_id)
        if last is not None and last.batch_id > self.task.batch_id:
            return None
        return original(self)

    patch.setattr(task._Attempt, "decided", decided)


def take_an_ambiguous_answer_for_success(patch: Patch) -> None:
    """Any response to EndTxn, or no response, counts as success."""
    original = FailpointClient.end_transactions

    def end(
        self: FailpointClient, ends: Collection[EndTransaction], **_: object
    ) -> Mapping[str, ErrorCode]:
        return dict.fromkeys(original(self, ends), ErrorCode.none)

    patch.setattr(FailpointClient, "end_transactions", end)


# --- further mutations ---


def take_no_look_before_deciding(patch: Patch) -> None:
    patch.setattr(commit._Batch, "verify", lambda _: math.inf)


def begin_right_before_the_timeout(patch: Patch) -> None:
    patch.setattr(commit, "_TIME_LEFT_MS_MIN", 0)


def commit_without_every_answer(patch: Patch) -> None:
    def complete(_: str, given: Sequence[Any]) -> list[TaskMessage]:
        return [message for message in given if message is not None]

    patch.setattr(messages, "_complete", complete)


def forget_what_survived(patch: Patch) -> None:
    """A supplement contains only the transactions that it adds."""

    def replaced(decision: Decision, *, run: str, entries: Any, **changes: Any) -> Decision:
        added = tuple(entry for entry in entries if entry not in decision.entries)
        return replace(decision, run=run, entries=added, **changes)

    patch.setattr(commit, "replace", replaced)


def replace_lost_rows_by_any(patch: Patch) -> None:
    patch.setattr(task._Attempt, "_check_rewritten", lambda *_: None)
    patch.setattr(commit._Batch, "_check_rewritten", lambda *_: None)


def go_on_behind_lost_rows(patch: Patch) -> None:
    original = task._Attempt.decided

    def decided(self: Any) -> LastDecision | None:
        last = self.plan.last.get(self.task.query_id)
        return None if last is not None and last.batch_id < self.task.batch_id else original(self)

    patch.setattr(task._Attempt, "decided", decided)


def begin_without_looking_who_owns_x(patch: Patch) -> None:
    patch.setattr(task._Attempt, "_check_owner", lambda _: None)


def sweep_only_open_transactions(patch: Patch) -> None:
    """An attempt that has initialized its id begins its transaction after the sweep."""
    patch.setattr(sweep, "_SWEPT", (TransactionState.ONGOING,))


def sweep_nothing_when_planning(patch: Patch) -> None:
    patch.setattr(planning, "sweep", lambda *_, **__: ())


def sweep_nothing_after_committing(patch: Patch) -> None:
    patch.setattr(commit, "sweep", lambda *_, **__: ())


def mark_before_rolling_forward(patch: Patch) -> None:
    original = commit._Batch.finish

    def finish(self: Any, state: QueryState) -> None:
        self._mark(state)
        original(self, state)

    patch.setattr(commit._Batch, "finish", finish)


def fence_again_to_decide(patch: Patch) -> None:
    """Commit bumps the epoch itself, so that any caller becomes the owner."""
    original = commit._Batch.decide

    def decide(self: Any, decision: Decision, *, before_ms: float) -> QueryState:
        owner = self.client.init_producer_id(self.options.transactional_id, timeout_ms=30_000)
        results = replace(self.results, owner=owner)
        return original(replace(self, results=results), decision, before_ms=before_ms)

    patch.setattr(commit._Batch, "decide", decide)


def compare_no_replay(patch: Patch) -> None:
    patch.setattr(commit._Batch, "_compare", lambda *_: None)


def abort_without_fencing(patch: Patch) -> None:
    """A delayed decision can arrive after abort() has read the commit topic."""
    patch.setattr(abort, "_take_over", lambda _, __, owner: owner)


def decide_nothing_of_an_empty_batch(patch: Patch) -> None:
    original = commit._Batch.decision

    def decision(self: Any) -> Decision | None:
        return original(self) if self.results.prepared else None

    patch.setattr(commit._Batch, "decision", decision)


def leave_a_failed_task_open(patch: Patch) -> None:
    patch.setattr(task._Attempt, "_abort_own", lambda *_: None)


MUTATIONS = (
    Mutation(
        breaks=skip_the_fence,
        found_by=scenarios.an_old_driver_wakes_up_anywhere,
        finding=Finding.LOST_ROWS,
        # With version 2 each decision also bumps the epoch, so the later decision is rejected.
        versions=(1,),
    ),
    Mutation(
        breaks=skip_the_fence,
        found_by=failure_scenarios.a_decision_of_a_dead_driver_is_delivered_late,
        finding=SinkFencedError,
        # With version 1 both decisions are in one transaction, and the later one takes precedence.
        versions=(2,),
    ),
    Mutation(
        breaks=decide_twice,
        found_by=scenarios.a_driver_killed_anywhere,
        finding=Finding.DUPLICATE_ROWS,
    ),
    Mutation(
        breaks=commit_before_prepare,
        found_by=scenarios.a_failed_batch_is_not_visible,
        finding=Finding.DUPLICATE_ROWS,
    ),
    Mutation(
        breaks=forget_roll_forward,
        found_by=scenarios.replay_of_what_was_decided_and_not_rolled_forward,
        finding=Finding.OPEN_TRANSACTION,
    ),
    Mutation(
        breaks=reuse_ids_at_once,
        found_by=scenarios.a_late_task_of_an_old_run,
        finding=BatchNotCommittedError,
    ),
    Mutation(
        breaks=trust_a_stale_decision,
        found_by=scenarios.replay_of_what_was_decided,
        finding=Finding.STATE,
    ),
    Mutation(
        breaks=offsets_outside_the_transaction,
        found_by=scenarios.offsets_are_committed_with_the_rows,
        finding=Finding.OFFSET,
    ),
    Mutation(
        breaks=swallow_a_lost_task,
        found_by=failure_scenarios.decided_rows_are_lost_and_written_again,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=ignore_the_query_id,
        found_by=scenarios.a_checkpoint_is_deleted,
        finding=StaleBatchError,
    ),
    Mutation(
        breaks=abort_what_was_decided,
        found_by=failure_scenarios.abort_after_a_commit_that_has_decided,
        finding=Finding.LOST_ROWS,
    ),
    Mutation(
        breaks=sweep_without_looking_who_owns_x,
        found_by=scenarios.an_old_driver_that_sweeps_late,
        finding=BatchNotCommittedError,
    ),
    Mutation(
        breaks=let_a_late_mark_hide_a_newer_decision,
        found_by=scenarios.a_late_mark_of_an_old_decision,
        finding=Finding.LOST_ROWS,
    ),
    Mutation(
        breaks=read_the_commit_topic_only_to_its_lso,
        found_by=scenarios.another_query_holds_the_commit_topic,
        finding=SinkNotRegisteredError,
    ),
    Mutation(
        breaks=rewrite_a_batch_older_than_the_decided_one,
        found_by=scenarios.a_stale_driver_is_refused,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=take_an_ambiguous_answer_for_success,
        found_by=failure_scenarios.the_decision_is_lost,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=take_an_ambiguous_answer_for_success,
        found_by=failure_scenarios.decided_rows_are_lost_and_written_again,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=take_no_look_before_deciding,
        found_by=failure_scenarios.a_prepared_transaction_times_out_before_the_decision,
        finding=RowsLostError,
    ),
    Mutation(
        breaks=take_no_look_before_deciding,
        found_by=scenarios.a_late_result_of_a_fenced_attempt_is_refused,
        finding=RowsLostError,
    ),
    Mutation(
        breaks=begin_right_before_the_timeout,
        found_by=failure_scenarios.a_batch_close_to_its_timeout_is_not_decided,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=commit_without_every_answer,
        found_by=scenarios.a_failed_batch_is_not_visible,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=forget_what_survived,
        found_by=failure_scenarios.a_supplement_keeps_the_surviving_rows,
        finding=Finding.STATE,
    ),
    Mutation(
        breaks=replace_lost_rows_by_any,
        found_by=failure_scenarios.lost_rows_are_replaced_by_other_rows,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=go_on_behind_lost_rows,
        found_by=failure_scenarios.a_batch_after_lost_rows_is_refused,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=begin_without_looking_who_owns_x,
        found_by=scenarios.an_attempt_after_the_last_sweep_of_an_idle_query,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=sweep_only_open_transactions,
        found_by=scenarios.an_attempt_that_begins_after_the_last_sweep,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=sweep_nothing_when_planning,
        found_by=scenarios.replay_of_what_was_not_decided,
        finding=Finding.OPEN_TRANSACTION,
    ),
    Mutation(
        breaks=sweep_nothing_after_committing,
        found_by=scenarios.a_task_is_tried_again_after_it_has_prepared,
        finding=Finding.OPEN_TRANSACTION,
    ),
    Mutation(
        breaks=mark_before_rolling_forward,
        found_by=scenarios.a_driver_killed_anywhere,
        finding=Finding.LOST_ROWS,
    ),
    Mutation(
        breaks=fence_again_to_decide,
        found_by=scenarios.a_checkpoint_is_copied_and_run_twice,
        finding=SinkFencedError,
    ),
    Mutation(
        breaks=compare_no_replay,
        found_by=scenarios.a_replay_with_other_rows_is_refused,
        finding=Finding.NO_ERROR,
    ),
    Mutation(
        breaks=abort_without_fencing,
        found_by=failure_scenarios.a_decision_is_delivered_late,
        finding=Finding.STATE,
        # With version 1, abort() ends the open decision before it fences.
        versions=(2,),
    ),
    Mutation(
        breaks=decide_nothing_of_an_empty_batch,
        found_by=scenarios.replay_of_an_empty_batch,
        finding=Finding.STATE,
    ),
    Mutation(
        breaks=decide_nothing_of_an_empty_batch,
        found_by=scenarios.offsets_are_committed_with_the_rows,
        finding=Finding.OFFSET,
    ),
)
