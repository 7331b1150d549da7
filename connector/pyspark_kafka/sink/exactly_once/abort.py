"""After a batch has failed on the driver: end its transactions, unless it was decided.

Purpose: Spark calls this after any failure in tasks or in commit, so that the batch may have been
decided after all, or be about to, by a request that is still under way. Invariant: a transaction is
aborted only when X's epoch has moved on under our hands, so that nothing can decide it any more,
and the commit topic does not name it; where that cannot be had nothing is done, and the next
planning settles it. What it must not know: Spark, why the batch failed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import ExactlyOnceError, KafkaError, ProducerFencedError
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch
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
    """End what the tasks of a failed batch have left prepared, if that is safe.

    `messages` are of the tasks that have finished, None for others. Never raises what brokers
    cause: the failure that led here is the one to be told.
    """
    answered = [message for message in messages if isinstance(message, TaskMessage)]
    if not answered:
        return
    sink_id, first = options.transactional_id, answered[0]
    try:
        _abort(client, options, answered, first)
    except (KafkaError, ExactlyOnceError) as error:
        log.warning(
            "the transactions of a failed batch (run %s) under transactionalId '%s' were not all "
            "aborted: %s. That is safe: the next start of the query ends them, or commits them if "
            "they were decided; until then, or their timeout, read_committed readers wait",
            first.task.run,
            sink_id,
            error,
        )


def _abort(
    client: TransactionalClient,
    options: ExactlyOnce,
    answered: Sequence[TaskMessage],
    first: TaskMessage,
) -> None:
    sink_id = options.transactional_id
    with step(Step.ABORT_LOOK):
        is_free = _may_be_undecided(client, sink_id, first.owner)
    if not is_free:
        return
    with step(Step.ABORT_FENCE):
        owner = _take_over(client, options, first.owner)
    if owner is None:
        return
    prepared = [message for message in answered if isinstance(message, Prepared)]
    with step(Step.ABORT_READ):
        states = CommitTopic(client, options.commit_topic).read(sink_id)
        decided = {
            (entry.transactional_id, entry.producer)
            for state in states.values()
            for entry in state.decision.entries
        }
    if any((m.entry.transactional_id, m.entry.producer) in decided for m in prepared):
        log.info("run %s under '%s' was decided before it failed", first.task.run, sink_id)
        return
    with step(Step.ABORT_TASKS):
        _end(client, prepared)
    with step(Step.ABORT_SWEEP):
        sweep(
            client,
            sink_id,
            owner,
            run=first.task.run,
            spare=frozenset(transactional_id for transactional_id, _ in decided),
            two_phase_commit=options.two_phase_commit,
        )


def _may_be_undecided(client: TransactionalClient, sink_id: str, owner: ProducerIdAndEpoch) -> bool:
    """Whether X is just as planning left it.

    Asking for X, and be it in vain, would abort a decision that a newer owner is writing.
    """
    found = client.describe_transactions([sink_id]).get(sink_id)
    if found is not None and found.producer == owner:
        return True
    log.info(
        "'%s' is left as it is (%s): the batch is decided, or another run has taken over",
        sink_id,
        "unknown" if found is None else f"{found.state.value}, {found.producer}",
    )
    return False


def _take_over(
    client: TransactionalClient, options: ExactlyOnce, owner: ProducerIdAndEpoch
) -> ProducerIdAndEpoch | None:
    """Move X's epoch on, so that no request that is still under way can decide the batch."""
    sink_id = options.transactional_id
    try:
        return client.init_producer_id(
            sink_id, timeout_ms=decision_timeout_ms(options), expected=owner
        )
    except ProducerFencedError as error:
        log.info("'%s' is left as it is, since another run has taken over: %s", sink_id, error)
        return None


def _end(client: TransactionalClient, prepared: Sequence[Prepared]) -> None:
    """Abort them; one that refuses has ended already, or ends with its timeout."""
    ends = [
        EndTransaction(
            transactional_id=message.entry.transactional_id,
            producer=message.entry.producer,
            is_commit=False,
            version=message.entry.version,
        )
        for message in prepared
    ]
    answers = client.end_transactions(ends)
    log.info(
        "aborted the transactions of a failed batch: %s",
        {name: code and code.name for name, code in answers.items()},
    )
