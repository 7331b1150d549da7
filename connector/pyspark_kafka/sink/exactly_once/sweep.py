"""End open transactions of task attempts that no decision contains.

Purpose: steps 3 and 11 of the protocol. Invariant: a transaction is fenced only if it was listed
before the sink's transactional id was found to be still ours. So no newer owner is affected: its
tasks open transactions only after it has fenced us. Must not know: decisions, Spark.

Transactions are ended by InitProducerId, which raises the epoch, never by EndTxn(abort): with
version 1 a task that is still writing would silently begin another transaction after that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import AuthorizationError, SinkFencedError, reason_of
from pyspark_kafka.kafka.transactions import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from pyspark_kafka.sink.exactly_once.names import is_task_id_of, prefix, task_id

log = logging.getLogger(__name__)

FENCING_TIMEOUT_MS: Final = 1_000
"""The timeout that InitProducerId requires; nobody writes under these epochs. The previous owner
used another timeout, so this one marks ids that a sweep has fenced."""
_ROUNDS_MAX: Final = 5
_MADE_UP_RUN: Final = "probe"
_DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_LAST_EPOCH: Final = 32_766
"""The highest epoch of a producer id; the next owner gets epoch 0 of another producer id."""


def sweep(
    client: TransactionalClient,
    sink_id: str,
    owner: ProducerIdAndEpoch,
    *,
    run: str | None = None,
    spare: Collection[str] = frozenset(),
    two_phase_commit: bool = False,
    decided_with: TransactionVersion | None = None,
) -> tuple[str, ...]:
    """Fence every open transaction of the sink's tasks (of its `run`); return their ids.

    `owner` is the sink's producer id and epoch that planning got. If a decision was written under
    it since, it was ended with version `decided_with`. `spare` are the ids of decided transactions.
    With `two_phase_commit`, ids under which nothing is written yet are fenced, too: a transaction
    that is opened there would never time out. Raises `SinkFencedError` if the sink has another
    owner now.
    """
    fenced: list[str] = []
    for _ in range(_ROUNDS_MAX):
        listed = [
            one
            for one in client.list_transactions(prefix(sink_id, run=run))
            if is_task_id_of(one.transactional_id, sink_id, run=run)
            and one.transactional_id not in spare
        ]
        left_open = [
            one.transactional_id for one in listed if one.state is TransactionState.ONGOING
        ]
        if two_phase_commit:
            left_open += _initialized(client, listed)
        _check_owner(client, sink_id, owner, decided_with)
        if not left_open:
            break
        for transactional_id in left_open:
            client.init_producer_id(transactional_id, timeout_ms=FENCING_TIMEOUT_MS)
            fenced.append(transactional_id)
    if fenced:
        log.warning(
            "%d undecided open transactions of earlier attempts with transactionalId '%s' were "
            "aborted: %s",
            len(fenced),
            sink_id,
            ", ".join(sorted(fenced)[:10]),
        )
    return tuple(fenced)


def _initialized(client: TransactionalClient, listed: Sequence[TransactionListing]) -> list[str]:
    """Return ids that a task has initialized and may write under, except those that we fenced."""
    empty = [one.transactional_id for one in listed if one.state is TransactionState.EMPTY]
    found = client.describe_transactions(empty) if empty else {}
    return [name for name, one in found.items() if one.timeout_ms != FENCING_TIMEOUT_MS]


def _check_owner(
    client: TransactionalClient,
    sink_id: str,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> None:
    """Check that the sink is still ours, and that the list of transactions was complete.

    ListTransactions silently omits ids without DESCRIBE. DescribeTransactions refuses them, even
    those that do not exist.
    """
    made_up = str(task_id(sink_id, _MADE_UP_RUN, partition=0, attempt=0, task_attempt_id=0))
    try:
        found = client.describe_transactions([sink_id, made_up]).get(sink_id)
    except AuthorizationError as error:
        raise AuthorizationError(
            f"The open transactions of transactionalId '{sink_id}' cannot be listed: "
            f"{reason_of(error)}.",
            advice="Grant the principal DESCRIBE and WRITE on the transactional ids with the "
            f"prefix '{sink_id}' (kafka-acls.sh --transactional-id {sink_id} "
            "--resource-pattern-type prefixed).",
            transactional_id=sink_id,
        ) from error
    if found is not None and is_held(found, owner, decided_with):
        return
    now = "no longer exists" if found is None else f"now has {found.producer}"
    raise SinkFencedError(
        f"Another run has taken over transactionalId '{sink_id}': it {now}, and this run had "
        f"{owner}. This run stops. It has not touched transactions of the other run.",
        advice="If both queries are meant to run, give each its own transactionalId.",
        transactional_id=sink_id,
    )


def is_held(
    found: TransactionDescription,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> bool:
    """Return whether the sink's id is unchanged since `owner` got it, or since its own decision.

    Version 2 ends a transaction with the next epoch. A new owner then gets yet another one, so only
    our own decision can be committed with this one.
    """
    if found.producer == owner:
        return True
    if decided_with != 2 or found.state not in _DECIDED:
        return False
    decided_under = found.producer.producer_epoch - 1
    if found.producer.producer_id == owner.producer_id:
        return decided_under == owner.producer_epoch
    return found.producer.producer_epoch == 0 and owner.producer_epoch == _LAST_EPOCH
