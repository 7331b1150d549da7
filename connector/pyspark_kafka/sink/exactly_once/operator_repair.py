"""Repairs a sink without Spark: recovers unfinished batches, or removes the sink's state.

Implements the repairs of `python -m pyspark_kafka transactions`. Invariant: a repair runs the same
functions in the same order as the query does when it next starts. A repair fences the sink, commits
decided transactions and aborts undecided transactions. A repair is safe while a query is running,
but the query's current batch fails with an error. A repair accepts the loss of rows, or removes
unreadable decisions, only at the request of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import (
    ExactlyOnceError,
    OutcomeUnknownError,
    ProducerFencedError,
    SinkFencedError,
    counted,
)
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import Decision, QueryState
from pyspark_kafka.sink.exactly_once.operator_report import (
    DecisionReport,
    EntryState,
    Report,
    entry_states,
    is_open,
)
from pyspark_kafka.sink.exactly_once.operator_text import duration_text, time_text
from pyspark_kafka.sink.exactly_once.planning import DECISION_TIMEOUT_MS, TIMEOUT_MAX
from pyspark_kafka.sink.exactly_once.roll_forward import (
    TransactionOutcomeExpiredError,
    roll_forward,
)
from pyspark_kafka.sink.exactly_once.sweep import sweep

OnAction = Callable[[str], None]
"""A callback that receives a description of each completed action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """The operator's flags `--forget` and `--accept-loss`.

    If `forget` is False, the operator has set `--recover`.
    """

    forget: bool = False
    accept_loss: bool = False


# --- checks before a repair ---


def check(report: Report, request: RepairRequest) -> None:
    """Raise `ExactlyOnceError` if a repair could abort decided transactions.

    If the decisions are unknown, every transaction may belong to a decided batch.
    """
    if report.damage is not None and not (request.forget and request.accept_loss):
        raise ExactlyOnceError(
            f"{report.damage.what} Transactions that appear to have no commit decision may belong "
            "to a committed batch, so the command changed nothing.",
            advice=report.damage.advice,
            topic=report.commit_topic,
            transactional_id=report.sink_id,
        )


def signs_of_life(earlier: Report, later: Report, *, quiet_ms: int) -> tuple[str, ...]:
    """Compare two reports made a few seconds apart, and return signs that a batch is running.

    A repair would make this batch fail. A query that is waiting for input shows no signs, but a
    repair does not disturb such a query: the query fences the sink again before its next batch.
    """
    return tuple(_signs(earlier, later, quiet_ms))


def _signs(earlier: Report, later: Report, quiet_ms: int) -> Iterator[str]:
    now_ms, owner = later.taken_ms, later.owner
    if (earlier.owner and earlier.owner.producer) != (owner and owner.producer):
        yield f"another process fenced '{later.sink_id}' during the check"
    if owner is not None and is_open(owner.state):
        yield f"'{later.sink_id}' has an open transaction: a commit decision is being written"
    if _traces(earlier) != _traces(later):
        yield "transactions of tasks began, ended or grew during the check"
    for decision in (one.decision for one in later.decisions):
        if now_ms - decision.decided_ms < quiet_ms:
            yield f"query {decision.query_id} decided a batch at {time_text(decision.decided_ms)}"
    young = [
        one.description.transactional_id
        for one in later.leftover
        if one.description.started_ms is not None and now_ms - one.description.started_ms < quiet_ms
    ]
    if young:
        yield (
            f"{counted(len(young), 'undecided transaction')} began less than "
            f"{duration_text(quiet_ms)} ago, for example '{young[0]}'"
        )


def _traces(report: Report) -> object:
    """Return the parts of a report that change if a task writes between two reports.

    These parts can also change because other producers write to the same partitions.
    """
    ends = {held.partition: held.high_watermark for held in report.held}
    of_tasks = [one.description for one in report.leftover]
    return (
        {(one.transactional_id, one.producer, one.state) for one in of_tasks},
        {partition: ends.get(partition) for one in of_tasks for partition in one.partitions},
    )


# --- the actions of a repair ---


def planned_actions(report: Report, request: RepairRequest) -> tuple[str, ...]:
    """Return the actions that a repair will attempt, or an empty tuple if no repair is needed."""
    if not (report.unfinished or report.leftover or request.forget):
        return ()
    return tuple(_planned_actions(report, request))


def _planned_actions(report: Report, request: RepairRequest) -> Iterator[str]:
    yield (
        f"fence '{report.sink_id}': a running batch will fail, and none of its rows will be visible"
    )
    for one in report.unfinished:
        waiting = one.in_state(EntryState.PREPARED, EntryState.COMMITTING)
        if waiting:
            yield f"commit {counted(len(waiting), 'transaction')} of {decision_text(one.decision)}"
        yield _mark_action(one, request)
    if report.leftover:
        yield f"abort {counted(len(report.leftover), 'undecided transaction')}"
    if not request.forget:
        return
    if report.needs_operator and not request.accept_loss:
        yield (
            f"keep the records of '{report.sink_id}' in topic '{report.commit_topic}', because "
            "commit decisions remain unfinished"
        )
    else:
        yield f"remove every record of '{report.sink_id}' from topic '{report.commit_topic}'"


def _mark_action(report: DecisionReport, request: RepairRequest) -> str:
    decision = decision_text(report.decision)
    if not report.needs_operator:
        return f"mark {decision} as finished"
    if request.accept_loss:
        return f"accept the loss of rows and mark {decision} as finished"
    return f"leave {decision} unfinished"


def decision_text(decision: Decision) -> str:
    """Return a short description of a decision."""
    batch = "" if decision.batch_id is None else f" (batch {decision.batch_id})"
    return f"commit decision {decision.number} of query {decision.query_id}{batch}"


# --- the repair ---


def repair(
    client: TransactionalClient, report: Report, request: RepairRequest, on_action: OnAction
) -> None:
    """Repair the sink, and report each completed action. A failed repair can be repeated.

    Reads the decisions again after fencing the sink, because fenced owners can no longer change
    them. Raises `SinkFencedError` if a query has fenced the sink in the meantime,
    `OutcomeUnknownError` if an outcome is unknown, or a subclass of `KafkaError`.
    """
    sink_id = report.sink_id
    owner = client.init_producer_id(sink_id, timeout_ms=_timeout_ms(client))
    on_action(f"fenced '{sink_id}' ({owner})")
    topic = CommitTopic(client, report.commit_topic, sink_id)
    unfinished = _finish(client, topic, request, on_action) if report.damage is None else {}
    aborted = sweep(
        client,
        sink_id,
        owner,
        client.transaction_version(),
        spare={
            entry.transactional_id
            for state in unfinished.values()
            for entry in state.decision.entries
        },
    )
    for transactional_id in aborted:
        on_action(f"aborted '{transactional_id}'")
    if not request.forget:
        return
    if unfinished:
        on_action(
            f"kept the commit decisions of '{sink_id}', because {len(unfinished)} are not finished"
        )
        return
    _forget(client, topic, sink_id, owner)
    on_action(f"removed every record of '{sink_id}' from topic '{report.commit_topic}'")


def _timeout_ms(client: TransactionalClient) -> int:
    """Return the transaction timeout for removing records. It is at most the brokers' maximum."""
    config = client.broker_config() or {}
    return min(DECISION_TIMEOUT_MS, int(config.get(TIMEOUT_MAX, DECISION_TIMEOUT_MS)))


def _finish(
    client: TransactionalClient,
    topic: CommitTopic,
    request: RepairRequest,
    on_action: OnAction,
) -> dict[str, QueryState]:
    """Roll forward decisions and mark them as finished. Return unfinished decisions by query id."""
    unfinished = {}
    for query_id, state in sorted(topic.read_latest().queries.items()):
        if state.is_finished:
            continue
        if _is_settled(client, state, request, on_action):
            topic.mark_finished(state)
            on_action(f"marked {decision_text(state.decision)} as finished")
        else:
            unfinished[query_id] = state
    return unfinished


def _is_settled(
    client: TransactionalClient, state: QueryState, request: RepairRequest, on_action: OnAction
) -> bool:
    """Commit the transactions of a decision. Return whether it can be marked as finished."""
    decision = state.decision
    try:
        lost = roll_forward(client, state)
    except OutcomeUnknownError as error:
        # The loss is not accepted if the brokers did not respond, or if an ACL is missing.
        may_accept = request.accept_loss and isinstance(error, TransactionOutcomeExpiredError)
        states = entry_states(client, decision.entries).values() if may_accept else ()
        if not may_accept or {EntryState.PREPARED, EntryState.COMMITTING} & set(states):
            on_action(f"left {decision_text(decision)} unfinished. {error}")
            return False
        on_action(f"accepted the unknown outcome of {decision_text(decision)}. {error}")
        return True
    if not lost:
        count = counted(len(decision.entries), "transaction")
        on_action(f"committed {count} of {decision_text(decision)}")
        return True
    rows = sum(entry.totals.row_count for entry in lost)
    if request.accept_loss:
        on_action(f"accepted the loss of {counted(rows, 'row')} of {decision_text(decision)}")
        return True
    on_action(
        f"left {decision_text(decision)} unfinished, because {rows} of its rows are lost. To write "
        "these rows again, restart the query from the same checkpoint. Alternatively, write them "
        "with another tool, and then repeat this command with --accept-loss"
    )
    return False


def _forget(
    client: TransactionalClient, topic: CommitTopic, sink_id: str, owner: ProducerIdAndEpoch
) -> None:
    """Remove the sink's state in one transaction. A partially removed decision would be corrupt."""
    topic.ensure()
    version = client.transaction_version()
    producer = client.transactional_producer(sink_id, owner, version)
    try:
        producer.send(topic.rows(topic.removal()))
        producer.flush()
    except ProducerFencedError as error:
        producer.abort()
        raise SinkFencedError(
            f"The commit decisions of transactionalId '{sink_id}' were not removed. Either a query "
            "has taken over the id again, or the transaction that removes them has timed out.",
            advice="Stop the query if it is running, and run the command again.",
            transactional_id=sink_id,
        ) from error
    except BaseException:
        producer.abort()
        raise
    producer.close()
    end = EndTransaction(transactional_id=sink_id, producer=owner, is_commit=True, version=version)
    error_code = client.end_transactions([end]).get(sink_id)
    if error_code is not ErrorCode.none:
        result = "timed out" if error_code is None else f"returned {error_code.name.upper()}"
        raise OutcomeUnknownError(
            f"It is unknown whether the commit decisions of transactionalId '{sink_id}' were "
            f"removed, because EndTxn {result}. Either all or none of them were removed.",
            advice="Run the command again.",
            transactional_id=sink_id,
        )
