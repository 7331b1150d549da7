"""By hand: settle what a query has left, and forget a `transactionalId`, without Spark.

Purpose: what `python -m pyspark_kafka transactions` does about a report; `operator_report` looks,
`operator_text` prints. Invariant: this does what the next start of the query would do, by the same
functions and in the same order: take X, commit what is decided, end what is not. It therefore is
safe beside a living query, whose batch then fails loudly. Rows that are lost are called settled, and
decisions that cannot be read are removed, only where the operator says so. What it must not know:
Spark, arguments, how a report is printed.
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

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """What the operator asks for."""

    forget: bool = False
    accept_loss: bool = False


# --- may it be done? ---


def check(report: Report, request: RepairRequest, *, names_topic: bool) -> None:
    """Refuse what could abort decided rows: where decisions are not known, nothing is undecided.

    `names_topic` says whether the operator named the commit topic. Raises `ExactlyOnceError`.
    """
    sink_id, topic = report.sink_id, report.commit_topic
    if report.damage is not None and not (request.forget and request.accept_loss):
        raise ExactlyOnceError(
            f"what was decided under '{sink_id}' cannot be read: {report.damage} Nothing was changed, "
            "since an open transaction that looks undecided may be decided. Repair the topic; or "
            "give the decisions up with --forget --accept-loss, which aborts every transaction "
            "that is open under this id"
        )
    if not report.has_commit_topic and not request.accept_loss:
        raise ExactlyOnceError(
            f"there is no topic '{topic}', so that nobody can tell what was decided under '{sink_id}'. "
            "Nothing was changed. Name the query's option commitTopic with --commit-topic; if it "
            "is gone for good, --accept-loss aborts every transaction that is open under this id"
        )
    if report.has_commit_topic and not (report.damage or report.decisions or names_topic):
        raise ExactlyOnceError(
            f"topic '{topic}' holds no decision of '{sink_id}'. If the query's option commitTopic names "
            "another topic, what is decided there would be aborted. Nothing was changed. Say which "
            f"it is: --commit-topic {topic}, if this is it"
        )


def signs_of_life(earlier: Report, later: Report, *, quiet_ms: int) -> tuple[str, ...]:
    """Why the owner of X may be alive, by two looks some seconds apart; empty where nothing says so.

    A query that waits for input leaves no sign, and does not notice either when it is taken over:
    it takes X again for its next batch. These are signs of a batch that is under way and would fail.
    """
    return tuple(_signs(earlier, later, quiet_ms))


def _signs(earlier: Report, later: Report, quiet_ms: int) -> Iterator[str]:
    now_ms, owner = later.taken_ms, later.owner
    if (earlier.owner and earlier.owner.producer) != (owner and owner.producer):
        yield f"somebody took '{later.sink_id}' a moment ago"
    if owner is not None and is_open(owner.state):
        yield f"the transaction of '{later.sink_id}' itself is open: a decision is being written"
    if _traces(earlier) != _traces(later):
        yield "transactions were begun or ended, or grew, while they were watched"
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
            f"{len(young)} undecided transactions began less than {duration_text(quiet_ms)} ago, "
            f"such as '{young[0]}'"
        )


def _traces(report: Report) -> object:
    """What a task changes while it writes. Others may write to the same partitions, too."""
    ends = {held.partition: held.high_watermark for held in report.held}
    of_tasks = [one.description for one in report.leftover]
    return (
        {(one.transactional_id, one.producer, one.state) for one in of_tasks},
        {partition: ends.get(partition) for one in of_tasks for partition in one.partitions},
    )


# --- what would be done ---


def planned_actions(report: Report, request: RepairRequest) -> tuple[str, ...]:
    """What carrying out the request would do, as far as can be told before; empty: nothing."""
    if not (report.unfinished or report.leftover or request.forget):
        return ()
    return tuple(_intentions(report, request))


def _intentions(report: Report, request: RepairRequest) -> Iterator[str]:
    yield f"take '{report.sink_id}': a run that is within a batch fails, and of that batch nothing is seen"
    for one in report.unfinished:
        waiting = one.state(EntryState.PREPARED, EntryState.COMMITTING)
        if waiting:
            yield f"commit {len(waiting)} transactions of {decision_text(one.decision)}"
        yield f"{_judged(one, request)} {decision_text(one.decision)}"
    if report.leftover:
        yield f"abort {len(report.leftover)} undecided transactions"
    if not request.forget:
        return
    if report.needs_judgement and not request.accept_loss:
        yield f"not remove anything of '{report.sink_id}' from topic '{report.commit_topic}'"
    elif report.has_commit_topic:
        yield f"remove every record of '{report.sink_id}' from topic '{report.commit_topic}'"


def _judged(report: DecisionReport, request: RepairRequest) -> str:
    if not report.needs_judgement:
        return "mark as finished"
    return (
        "mark as finished, although rows are lost," if request.accept_loss else "leave unfinished"
    )


def decision_text(decision: Decision) -> str:
    """A decision in a sentence."""
    batch = "" if decision.batch_id is None else f" (batch {decision.batch_id})"
    return f"decision {decision.number} of query {decision.query_id}{batch}"


# --- doing it ---


def repair(client: TransactionalClient, report: Report, request: RepairRequest, say: Say) -> None:
    """Do it, saying each thing that is done; it may be repeated if it breaks off.

    What was decided is read anew after X is taken: only then it cannot change any more. Raises
    errors of `KafkaError`, `SinkFencedError` where a query has taken X back meanwhile, `OutcomeUnknownError`.
    """
    sink_id = report.sink_id
    owner = client.init_producer_id(sink_id, timeout_ms=_timeout_ms(client))
    say(f"took '{sink_id}' ({owner})")
    topic = CommitTopic(client, report.commit_topic)
    is_readable = report.has_commit_topic and report.damage is None
    unfinished = _finish(client, topic, sink_id, request, say) if is_readable else {}
    fenced = sweep(
        client,
        sink_id,
        owner,
        spare={
            entry.transactional_id
            for state in unfinished.values()
            for entry in state.decision.entries
        },
        two_phase_commit=report.is_two_phase,
    )
    for transactional_id in fenced:
        say(f"aborted '{transactional_id}'")
    if not request.forget or not report.has_commit_topic:
        return
    if unfinished:
        say(f"kept the decisions of '{sink_id}': {len(unfinished)} are not finished")
        return
    _forget(client, topic, sink_id, owner)
    say(f"removed every record of '{sink_id}' from topic '{report.commit_topic}'")


def _timeout_ms(client: TransactionalClient) -> int:
    """Of the transaction that forget; brokers may allow less than a query asks for."""
    config = client.broker_config() or {}
    return min(DECISION_TIMEOUT_MS, int(config.get(TIMEOUT_MAX, DECISION_TIMEOUT_MS)))


def _finish(
    client: TransactionalClient, topic: CommitTopic, sink_id: str, request: RepairRequest, say: Say
) -> dict[str, QueryState]:
    """Roll forward and mark; the answer is what is not finished, by query."""
    unfinished = {}
    for query_id, state in sorted(topic.read(sink_id).items()):
        if state.is_finished:
            continue
        if _settle(client, state, request, say):
            topic.mark_finished(state.decision)
            say(f"marked {decision_text(state.decision)} as finished")
        else:
            unfinished[query_id] = state
    return unfinished


def _settle(
    client: TransactionalClient, state: QueryState, request: RepairRequest, say: Say
) -> bool:
    """Whether there is nothing left to commit, and nobody to write what is lost."""
    decision = state.decision
    try:
        lost = roll_forward(client, state)
    except OutcomeUnknownError as error:
        # Also where brokers do not answer, or do not allow to look: then nothing may be given up.
        may_give_up = request.accept_loss and isinstance(error, TransactionOutcomeExpiredError)
        now = entry_states(client, decision.entries).values() if may_give_up else ()
        if not may_give_up or {EntryState.PREPARED, EntryState.COMMITTING} & set(now):
            say(f"left {decision_text(decision)} unfinished: {error}")
            return False
        say(f"gave up what is not known of {decision_text(decision)}: {error}")
        return True
    if not lost:
        say(f"committed {len(decision.entries)} transactions of {decision_text(decision)}")
        return True
    rows = sum(entry.totals.row_count for entry in lost)
    if request.accept_loss:
        say(f"gave up {rows} lost rows of {decision_text(decision)}")
        return True
    say(
        f"left {decision_text(decision)} unfinished: {rows} of its rows are lost. Start the query "
        "again from the same checkpoint, which writes them again; or write them by other means and "
        "come back with --accept-loss"
    )
    return False


def _forget(
    client: TransactionalClient, topic: CommitTopic, sink_id: str, owner: ProducerIdAndEpoch
) -> None:
    """Remove all records at once, or none: half a decision would be a damaged one."""
    keys = topic.keys(sink_id)
    if not keys:
        return
    version = client.transaction_version()
    producer = client.transactional_producer(sink_id, owner, version)
    try:
        producer.send(topic.rows([(key, None) for key in keys]))
        producer.flush()
    except ProducerFencedError as error:
        producer.abort()
        raise SinkFencedError(
            f"'{sink_id}' is not ours any more, and so its decisions were not removed: a query has taken "
            "it back, or brokers took too long to write. Stop the query if there is one, and do this "
            "again"
        ) from error
    except BaseException:
        producer.abort()
        raise
    producer.close()
    end = EndTransaction(transactional_id=sink_id, producer=owner, is_commit=True, version=version)
    answer = client.end_transactions([end]).get(sink_id)
    if answer is not ErrorCode.none:
        raise OutcomeUnknownError(
            f"whether the decisions of '{sink_id}' were removed is not known: the brokers answered "
            f"{'nothing' if answer is None else answer.name.upper()}. Either all are or none; do "
            "this again"
        )
