"""Planning: what the driver does before the tasks of every batch.

Purpose: steps 1 to 4 of the protocol: fence, read, roll forward, mark, sweep. Invariant: when a
`Plan` is there, no older driver can decide anything, every earlier decision of X is finished, or its
lost rows are named, or why that cannot be told; and nothing else under X is open. What it must not
know: Spark; planning is told neither query nor batch.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.options.values import ExactlyOnce
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import (
    Entry,
    QueryState,
    RowTotals,
    finished_record,
    tombstones,
)
from pyspark_kafka.sink.exactly_once.roll_forward import (
    TransactionOutcomeExpiredError,
    TransactionOutcomeUnknownError,
    roll_forward,
)
from pyspark_kafka.sink.exactly_once.steps import Step, step
from pyspark_kafka.sink.exactly_once.sweep import sweep

log = logging.getLogger(__name__)

TIMEOUT_MAX: Final = "transaction.max.timeout.ms"
DECISION_TIMEOUT_MS: Final = 30_000
"""Of X's own transactions: each is written in one go."""
_VERIFICATION: Final = "transaction.partition.verification.enable"
_CHECKED: Final[set[tuple[str | None, int]]] = set()
"""Commit topics, by id, and the timeouts that their brokers allow, as this process knows."""
_EXPIRED: Final[dict[tuple[str | None, str, str, int, str], str]] = {}
"""Why decisions cannot be told any more, by topic id, X, query, number and run: finding that out
reads logs to their ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDecision:
    """Of one query: what tasks compare themselves with. `lost` are Spark's partitions.

    `totals_of_lost` are what has to be written again, by partition. `unknown_reason` says why this query
    cannot go on, where it cannot be told what became of the decision's rows.
    """

    number: int
    batch_id: int | None
    lost: frozenset[int]
    totals_of_lost: Mapping[int, RowTotals]
    unknown_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What tasks are given: who owns X, and the last decision of each query of X."""

    owner: ProducerIdAndEpoch
    version: TransactionVersion
    last: Mapping[str, LastDecision]


def plan(client: TransactionalClient, options: ExactlyOnce) -> Plan:
    """Take X, settle what earlier batches have left, and see what was decided last.

    Raises `CommitTopicError` for a topic that cannot keep decisions, `OutcomeUnknownError` for a
    decision of which cannot be told yet whether its rows are there, `SinkFencedError` where another run has
    taken over meanwhile, `OptionError` for a timeout that the brokers do not allow, and errors of
    `KafkaError`. Planning again is always safe.
    """
    sink_id = options.transactional_id
    topic = CommitTopic(client, options.commit_topic)
    with step(Step.PLAN_CHECK):
        version = client.transaction_version()
        is_unknown = topic.ensure()
        checked = (topic.topic_id, options.transaction_timeout_ms)
        if is_unknown or checked not in _CHECKED:
            _check_brokers(client.broker_config(), options)
            _CHECKED.add(checked)
    with step(Step.PLAN_FENCE):
        owner = client.init_producer_id(sink_id, timeout_ms=decision_timeout_ms(options))
    with step(Step.PLAN_READ):
        states = topic.read(sink_id)
    unfinished = [state for state in states.values() if not state.is_finished]
    with step(Step.PLAN_ROLL_FORWARD):
        lost, unknown_reason = _rolled_forward(client, unfinished, topic.topic_id)
    with step(Step.PLAN_MARK):
        topic.write_plain(_settled(states.values(), lost, unknown_reason))
    with step(Step.PLAN_SWEEP):
        sweep(
            client,
            sink_id,
            owner,
            spare=frozenset(
                entry.transactional_id for state in unfinished for entry in state.decision.entries
            ),
            two_phase_commit=options.two_phase_commit,
        )
    last = {
        query: _last(state, lost.get(query, ()), unknown_reason.get(query))
        for query, state in states.items()
    }
    log.info(
        "'%s' is ours (%s); decided under it: %s", sink_id, owner, _listing(last) or "nothing yet"
    )
    return Plan(owner=owner, version=version, last=last)


def decision_timeout_ms(options: ExactlyOnce) -> int:
    """Of X's own transactions: brokers that allow the tasks' timeout allow this one."""
    return min(DECISION_TIMEOUT_MS, options.transaction_timeout_ms)


def _rolled_forward(
    client: TransactionalClient, unfinished: Iterable[QueryState], topic_id: str | None
) -> tuple[dict[str, Sequence[Entry]], dict[str, str]]:
    """By query, the entries that are lost, and why it cannot be told what became of some.

    That stops the query whose decision it is, and no other one under X.
    """
    lost: dict[str, Sequence[Entry]] = {}
    unknown_reason: dict[str, str] = {}
    for state in unfinished:
        decision = state.decision
        query_id = decision.query_id
        known = (topic_id, decision.sink_id, query_id, decision.number, decision.run)
        if known in _EXPIRED:
            unknown_reason[query_id] = _EXPIRED[known]
            continue
        try:
            lost[query_id] = roll_forward(client, state)
        except TransactionOutcomeUnknownError as error:
            log.error("%s", error)
            unknown_reason[query_id] = str(error)
            if isinstance(error, TransactionOutcomeExpiredError) and topic_id is not None:
                _EXPIRED[known] = str(error)
    return lost, unknown_reason


def _settled(
    states: Iterable[QueryState],
    lost: Mapping[str, Sequence[Entry]],
    unknown_reason: Container[str],
) -> list[tuple[bytes, bytes | None]]:
    """Marks for what is finished now; what nobody can repeat is not even kept.

    A job without `batchId` is a query of its own: kept, all there ever were would be read before
    every batch.
    """
    records: list[tuple[bytes, bytes | None]] = []
    for state in states:
        decision = state.decision
        if lost.get(decision.query_id) or decision.query_id in unknown_reason:
            continue
        if decision.batch_id is None:
            records += tombstones(state)
        elif not state.is_finished:
            records.append(finished_record(decision))
    return records


def _last(state: QueryState, lost: Sequence[Entry], unknown_reason: str | None) -> LastDecision:
    decision = state.decision
    return LastDecision(
        number=decision.number,
        batch_id=decision.batch_id,
        unknown_reason=unknown_reason,
        lost=frozenset(entry.partition for entry in lost),
        totals_of_lost={entry.partition: entry.totals for entry in lost},
    )


def _listing(last: Mapping[str, LastDecision]) -> str:
    return ", ".join(
        f"batch {each.batch_id} of query {query} (decision {each.number})"
        for query, each in sorted(last.items())
    )


def _check_brokers(config: Mapping[str, str] | None, options: ExactlyOnce) -> None:
    """What brokers' settings say; where they may not be asked, a task meets a limit by itself."""
    if config is None:
        return
    longest_ms = config.get(TIMEOUT_MAX)
    if longest_ms is not None and options.transaction_timeout_ms > int(longest_ms):
        raise OptionError(
            f"option 'transactionTimeout' is {options.transaction_timeout_ms} ms, and the brokers "
            f"allow {longest_ms} ms ({TIMEOUT_MAX}): lower the first or raise the second"
        )
    if config.get(_VERIFICATION) != "true":
        log.warning(
            "the brokers do not check that what they write belongs to an open transaction (%s; "
            "Kafka has it from 3.6 on): a late request could leave a transaction open that holds "
            "read_committed readers back for ever; upgrade, or switch it on",
            _VERIFICATION,
        )
