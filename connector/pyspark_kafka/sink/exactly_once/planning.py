"""Plans a batch on the driver before its tasks start.

Runs steps 1 to 4 of the protocol: register, fence, read, sweep. Before the sweep, planning also
runs steps 9 and 10 for earlier decisions: roll forward, mark. Invariant: when a `Plan` exists, no
older driver can commit a batch, and every undecided transaction of the sink has been or is being
aborted. For every earlier decision that is not finished, the plan contains the decision's lost
rows, or the reason why the outcome is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import (
    EarlierJobCommittedError,
    ExactlyOnceError,
    KafkaError,
    OptionError,
    OutcomeUnknownError,
    RowsLostError,
    counted,
)
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.options.values import ExactlyOnce
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import (
    Entry,
    QueryState,
    RowTotals,
    deletion,
    finishing_records,
    tombstones,
)
from pyspark_kafka.sink.exactly_once.names import next_generation
from pyspark_kafka.sink.exactly_once.operator_command import operator_command
from pyspark_kafka.sink.exactly_once.roll_forward import (
    TransactionOutcomeExpiredError,
    TransactionOutcomeUnknownError,
    listing,
    roll_forward,
)
from pyspark_kafka.sink.exactly_once.steps import Step, step
from pyspark_kafka.sink.exactly_once.sweep import sweep

log = logging.getLogger(__name__)

TIMEOUT_MAX: Final = "transaction.max.timeout.ms"
DECISION_TIMEOUT_MS: Final = 30_000
"""The transaction timeout for the sink id. Its transactions are open only while a decision is
written."""
_VERIFICATION: Final = "transaction.partition.verification.enable"
_CHECKED: Final[set[tuple[str | None, int]]] = set()
"""Pairs of a commit topic's id and a transaction timeout that this process has checked."""
_EXPIRED: Final[dict[tuple[str | None, str, str, int, str], UnknownOutcome]] = {}
"""Decisions whose outcome can no longer be determined, by topic id, sink id, query id, number and
run. They are cached because each attempt to determine an outcome reads partitions to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOutcome:
    """The reason why the outcome of a decision is unknown, and the advice to the operator."""

    what: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDecision:
    """The last decision of a query. Tasks compare their batch with this decision.

    `lost` contains the numbers of the Spark partitions whose rows are lost. `totals_of_lost`
    contains the totals of these rows per Spark partition. `unknown` is set if the outcome of the
    decision is unknown. In this case, the query cannot continue.
    """

    number: int
    batch_id: int | None
    lost: frozenset[int]
    totals_of_lost: Mapping[int, RowTotals]
    unknown: UnknownOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of planning, which is sent to the tasks.

    `owner` is the sink's producer id and epoch. `commit_partition` is the partition of the commit
    topic that contains the sink's records. `last` is the last decision of each query.
    """

    owner: ProducerIdAndEpoch
    version: TransactionVersion
    generation: int
    commit_partition: int
    forgotten_number: int
    last: Mapping[str, LastDecision]

    def last_number(self, query_id: str) -> int:
        """Return the number of the query's last decision. The default is `forgotten_number`."""
        last = self.last.get(query_id)
        return self.forgotten_number if last is None else last.number


def plan(client: TransactionalClient, options: ExactlyOnce, *, is_single_job: bool = False) -> Plan:
    """Fence the sink, complete or abort its earlier batches, and read its last decisions.

    `is_single_job` is set for a batch job without `batchId`. Such a job may be a retry of an
    earlier job that stopped after its decision. A retry must not write the rows again, so planning
    raises `EarlierJobCommittedError` once. If rows of the earlier job are lost, or its outcome is
    unknown, planning raises `RowsLostError` or `OutcomeUnknownError` until an operator has accepted
    the loss.

    Raises `CommitTopicError` for a topic with unsafe settings or with corrupt or missing records.
    Raises `OutcomeUnknownError` if it is not known yet whether transactions of a decision are
    committed. Raises `SinkFencedError` if another run has fenced the sink, and `OptionError` for a
    timeout that the brokers do not allow. Also raises subclasses of `KafkaError`. Planning can
    safely be repeated.
    """
    sink_id = options.transactional_id
    topic = CommitTopic(client, options.commit_topic, sink_id)
    with step(Step.PLAN_CHECK):
        version = client.transaction_version()
        is_unknown = topic.ensure()
        checked = (topic.topic_id, options.transaction_timeout_ms)
        if is_unknown or checked not in _CHECKED:
            _check_brokers(client.broker_config(), options)
            _CHECKED.add(checked)
    with step(Step.PLAN_REGISTER):
        topic.register()
    with step(Step.PLAN_FENCE):
        owner = client.init_producer_id(sink_id, timeout_ms=decision_timeout_ms(options))
    with step(Step.PLAN_READ):
        state_of_sink = topic.read_latest()
    states = state_of_sink.queries
    unfinished = [state for state in states.values() if not state.is_finished]
    with step(Step.PLAN_ROLL_FORWARD):
        lost, unknown = _rolled_forward(client, unfinished, topic.topic_id)
    jobs = [state for state in states.values() if state.decision.batch_id is None]
    refusal = _refusal(jobs, lost, unknown) if is_single_job else None
    if refusal is not None:
        log.error("%s", refusal)
    with step(Step.PLAN_MARK):
        settled = _settled(unfinished, lost, unknown)
        topic.write_plain([*settled, *tombstones(state_of_sink.obsolete)])
    with step(Step.PLAN_SWEEP):
        decided = frozenset(
            entry.transactional_id for state in unfinished for entry in state.decision.entries
        )
        sweep(client, sink_id, owner, version, spare=decided)
    if refusal is not None:
        if isinstance(refusal, EarlierJobCommittedError):
            _delete(topic, jobs, refusal)
        raise refusal
    last = {
        query: _last(state, lost.get(query, ()), unknown.get(query))
        for query, state in states.items()
    }
    log.info(
        "Fenced transactional id '%s' (%s). The latest commit decisions are: %s",
        sink_id,
        owner,
        _listing(last) or "none",
    )
    generation = next_generation(owner, decided)
    return Plan(
        owner=owner,
        version=version,
        generation=generation,
        commit_partition=topic.partition.partition,
        forgotten_number=state_of_sink.forgotten_number or 0,
        last=last,
    )


def decision_timeout_ms(options: ExactlyOnce) -> int:
    """Return the timeout of a transaction that writes a decision, at most `transactionTimeout`."""
    return min(DECISION_TIMEOUT_MS, options.transaction_timeout_ms)


def _rolled_forward(
    client: TransactionalClient, unfinished: Iterable[QueryState], topic_id: str | None
) -> tuple[dict[str, Sequence[Entry]], dict[str, UnknownOutcome]]:
    """Roll forward decisions. Return the lost entries and the unknown outcomes, keyed by query id.

    If the outcome of a decision is unknown, only the query that wrote the decision fails.
    """
    lost: dict[str, Sequence[Entry]] = {}
    unknown: dict[str, UnknownOutcome] = {}
    for state in unfinished:
        decision = state.decision
        query_id = decision.query_id
        known = (topic_id, decision.sink_id, query_id, decision.number, decision.run)
        if known in _EXPIRED:
            unknown[query_id] = _EXPIRED[known]
            continue
        try:
            lost[query_id] = roll_forward(client, state)
        except TransactionOutcomeUnknownError as error:
            log.error("%s", error)
            unknown[query_id] = UnknownOutcome(what=error.what, advice=error.advice)
            is_final = isinstance(error, TransactionOutcomeExpiredError)
            if is_final and topic_id is not None:
                _EXPIRED[known] = unknown[query_id]
    return lost, unknown


def _refusal(
    jobs: Sequence[QueryState],
    lost: Mapping[str, Sequence[Entry]],
    unknown: Mapping[str, UnknownOutcome],
) -> ExactlyOnceError | None:
    """Return the error to raise if this job may be a retry of an earlier job, or None."""
    for decision in (state.decision for state in jobs):
        if decision.query_id in unknown:
            outcome = unknown[decision.query_id]
            return OutcomeUnknownError(
                outcome.what, advice=outcome.advice, transactional_id=decision.sink_id
            )
        if rows := lost.get(decision.query_id):
            return RowsLostError(
                f"An earlier batch job (run {decision.run}) with transactionalId "
                f"'{decision.sink_id}' is committed, but some of its rows are lost: "
                f"{listing(rows)}. Nothing was written.",
                advice="Write the lost rows with another tool. Then mark the job as finished with "
                f"{operator_command(decision.sink_id, '--recover --accept-loss')}. The next job "
                "without 'batchId' then fails once with EarlierJobCommittedError.",
                transactional_id=decision.sink_id,
            )
    if not jobs:
        return None
    decision = jobs[0].decision
    rows_of_all = "; ".join(
        f"{counted(state.decision.totals.row_count, 'row')} of run {state.decision.run}"
        + (f" ({listing(state.decision.entries)})" if state.decision.entries else "")
        for state in jobs
    )
    return EarlierJobCommittedError(
        f"An earlier batch job with transactionalId '{decision.sink_id}' stopped after its rows "
        f"were committed, and did not report this. Committed: {rows_of_all}. If an operator has "
        "accepted the loss of rows, these rows are included. This run wrote nothing.",
        advice="If this run is a retry of that job, do not run the job again, because that would "
        "write its rows twice. If this is a new job, run it again: this error is raised only once. "
        "Set the option 'batchId', so that a job can be repeated safely.",
        transactional_id=decision.sink_id,
    )


def _settled(
    unfinished: Iterable[QueryState],
    lost: Mapping[str, Sequence[Entry]],
    unknown: Container[str],
) -> list[tuple[bytes, bytes | None]]:
    """Return the finished records of decisions whose transactions are all committed."""
    records: list[tuple[bytes, bytes | None]] = []
    for state in unfinished:
        query_id = state.decision.query_id
        if not lost.get(query_id) and query_id not in unknown:
            records += finishing_records(state)
    return records


def _delete(
    topic: CommitTopic, jobs: Iterable[QueryState], refusal: EarlierJobCommittedError
) -> None:
    """Delete the finished decisions of the jobs that `refusal` reports.

    Call this last. If planning failed after the deletion, the jobs would not be reported, and a
    retry of a job would write its rows again. For the same reason, `refusal` is also raised if it
    is unknown whether the decisions were deleted.
    """
    try:
        with step(Step.PLAN_MARK):
            topic.write_plain([deletion(state.decision) for state in jobs])
    except KafkaError as error:
        raise refusal from error


def _last(state: QueryState, lost: Sequence[Entry], unknown: UnknownOutcome | None) -> LastDecision:
    decision = state.decision
    return LastDecision(
        number=decision.number,
        batch_id=decision.batch_id,
        unknown=unknown,
        lost=frozenset(entry.partition for entry in lost),
        totals_of_lost={entry.partition: entry.totals for entry in lost},
    )


def _listing(last: Mapping[str, LastDecision]) -> str:
    return ", ".join(
        f"batch {each.batch_id} of query {query} (commit decision {each.number})"
        for query, each in sorted(last.items())
    )


def _check_brokers(config: Mapping[str, str] | None, options: ExactlyOnce) -> None:
    """Check the broker settings for transactions.

    If these settings cannot be read, an excessive `transactionTimeout` is not detected until the
    first task runs.
    """
    if config is None:
        return
    longest_ms = config.get(TIMEOUT_MAX)
    if longest_ms is not None and options.transaction_timeout_ms > int(longest_ms):
        raise OptionError(
            f"Option 'transactionTimeout' is set to {options.transaction_timeout_ms} ms, but "
            f"the brokers allow at most {longest_ms} ms ({TIMEOUT_MAX}).",
            advice=f"Set the option to a lower value, or increase {TIMEOUT_MAX} on the brokers.",
            option="transactionTimeout",
        )
    if config.get(_VERIFICATION) != "true":
        log.warning(
            "The brokers do not verify that records belong to an open transaction (%s, Kafka 3.6 "
            "or later). Without this setting, a late Produce request can leave a transaction open "
            "forever, which blocks read_committed consumers. Upgrade the brokers, or enable the "
            "setting.",
            _VERIFICATION,
        )
