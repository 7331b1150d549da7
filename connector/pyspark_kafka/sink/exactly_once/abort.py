"""Cleans up after a failed batch: aborts its transactions unless the batch was decided.

Spark calls `abort` after any failure of a task or of the commit. At that point, the batch may
already be decided, or the EndTxn request that commits its decision may still be in flight.
Invariant: a transaction is aborted only if two conditions hold. First, this process has bumped the
epoch of the sink's transactional id, so no request can commit the batch later. Second, no decision
in the commit topic contains the transaction. If either condition is not met, nothing is aborted,
and the next planning run completes or aborts the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import ExactlyOnceError, KafkaError, ProducerFencedError
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionState,
)
from pyspark_kafka.options.values import ExactlyOnce
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.messages import Prepared, TaskMessage
from pyspark_kafka.sink.exactly_once.planning import decision_timeout_ms
from pyspark_kafka.sink.exactly_once.steps import Step, step
from pyspark_kafka.sink.exactly_once.sweep import sweep

log = logging.getLogger(__name__)


def abort(
    client: TransactionalClient,
    options: ExactlyOnce,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    """Abort the prepared transactions of a failed batch if no decision can contain them.

    `messages` contains the result of each finished task, and None for every other task. Errors from
    brokers are only logged, because the caller raises the original error.
    """
    results = [message for message in messages if isinstance(message, TaskMessage)]
    if not results:
        return
    sink_id, first = options.transactional_id, results[0]
    try:
        _abort(client, options, results, first)
    except (KafkaError, ExactlyOnceError) as error:
        log.warning(
            "Some transactions of a failed batch (run %s) with transactionalId '%s' were not "
            "aborted. When the query starts again, it will abort them, or commit them if the "
            "batch is committed. Until then, or until the transactions time out, read_committed "
            "consumers cannot read past them. The error was: %s",
            first.task.run,
            sink_id,
            error,
        )


def _abort(
    client: TransactionalClient,
    options: ExactlyOnce,
    results: Sequence[TaskMessage],
    first: TaskMessage,
) -> None:
    sink_id = options.transactional_id
    with step(Step.ABORT_LOOK):
        is_owner = _is_owner(client, sink_id, first)
    if not is_owner:
        return
    with step(Step.ABORT_FENCE):
        owner = _take_over(client, options, first.owner)
    if owner is None:
        return
    with step(Step.ABORT_READ):
        topic = CommitTopic(client, options.commit_topic, sink_id, partition=first.commit_partition)
        states = topic.read_latest().queries
        decided = {
            (entry.transactional_id, entry.producer)
            for state in states.values()
            for entry in state.decision.entries
        }
    prepared = [message.entry for message in results if isinstance(message, Prepared)]
    if any((entry.transactional_id, entry.producer) in decided for entry in prepared):
        log.info(
            "Not aborting the batch (run %s) with transactionalId '%s', because it is committed",
            first.task.run,
            sink_id,
        )
        return
    with step(Step.ABORT_SWEEP):
        sweep(
            client,
            sink_id,
            owner,
            first.version,
            generation=first.generation,
            spare=frozenset(
                entry.transactional_id
                for state in states.values()
                if not state.is_finished
                for entry in state.decision.entries
            ),
        )


def _is_owner(client: TransactionalClient, sink_id: str, first: TaskMessage) -> bool:
    """Return whether the run of this batch still owns the sink's transactional id.

    This check precedes InitProducerId, because even a rejected InitProducerId would abort the
    transaction in which a newer owner is writing a decision. With transaction version 1, this
    function aborts an open transaction that contains this batch's decision. Otherwise,
    InitProducerId with an expected epoch would abort this transaction, but return an error.
    """
    found = client.describe_transactions([sink_id]).get(sink_id)
    if found is None or found.producer != first.owner:
        log.info(
            "Not fencing transactional id '%s' (%s), because the batch is committed, the "
            "transaction of its commit decision has timed out, or another run has taken over the "
            "id",
            sink_id,
            "unknown" if found is None else f"{found.state.value}, {found.producer}",
        )
        return False
    if first.version == 1 and found.state is TransactionState.ONGOING:
        end = EndTransaction(
            transactional_id=sink_id, producer=first.owner, is_commit=False, version=1
        )
        client.end_transactions([end])
    return True


def _take_over(
    client: TransactionalClient, options: ExactlyOnce, owner: ProducerIdAndEpoch
) -> ProducerIdAndEpoch | None:
    """Bump the epoch of the sink id, so that no pending request can commit the batch."""
    sink_id = options.transactional_id
    try:
        return client.init_producer_id(
            sink_id, timeout_ms=decision_timeout_ms(options), expected=owner
        )
    except ProducerFencedError as error:
        log.info("Another run has taken over transactional id '%s': %s", sink_id, error)
        return None
