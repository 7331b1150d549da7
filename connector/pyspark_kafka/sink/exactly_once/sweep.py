"""End what attempts of tasks have left open under X and nothing has decided.

Purpose: steps 3 and 11 of the protocol. Invariant: only what was listed before X was seen to be
ours is fenced. So no newer owner can be hit: its tasks' transactions come into being only after it
has taken X from us. What it must not know: decisions, Spark.

Transactions are ended by InitProducerId, which moves the epoch on, never by EndTxn(abort): under
version 1 a task that is still writing would silently begin another transaction after that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import AccessError, AuthorizationError, SinkFencedError
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
"""Of transactions that nobody is going to write: a coordinator wants one to be said.

Who had the id before told another one, so that an id that was fenced can be told.
"""
_ROUNDS_MAX: Final = 5
_MADE_UP_RUN: Final = "probe"
_DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_LAST_EPOCH: Final = 32_766
"""The highest that a producer gets; the next one is epoch 0 of another producer id."""


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
    """Fence every transaction that is open under X (under its `run`); the answer is their ids.

    `owner` is who holds X, as planning got it; where a decision was written under it since, that
    was ended by version `decided_with`. `spare` are the ids of decided transactions. With
    `two_phase_commit` also ids under which nothing is written yet: what is begun there would
    never time out. Raises `SinkFencedError` where X is not the owner's any more.
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
            left_open += _taken(client, listed)
        _check_owner(client, sink_id, owner, decided_with)
        if not left_open:
            break
        for transactional_id in left_open:
            client.init_producer_id(transactional_id, timeout_ms=FENCING_TIMEOUT_MS)
            fenced.append(transactional_id)
    if fenced:
        log.warning(
            "%d transactions under transactionalId '%s', which earlier attempts had left open and "
            "nothing has decided, were aborted: %s",
            len(fenced),
            sink_id,
            ", ".join(sorted(fenced)[:10]),
        )
    return tuple(fenced)


def _taken(client: TransactionalClient, listed: Sequence[TransactionListing]) -> list[str]:
    """Ids that somebody has just got, and may write under when we have looked; not what we fenced."""
    empty = [one.transactional_id for one in listed if one.state is TransactionState.EMPTY]
    found = client.describe_transactions(empty) if empty else {}
    return [name for name, one in found.items() if one.timeout_ms != FENCING_TIMEOUT_MS]


def _check_owner(
    client: TransactionalClient,
    sink_id: str,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> None:
    """Whether X is still ours, and whether the list could be whole.

    Brokers leave ids out of lists without a word where DESCRIBE is not allowed, but refuse to
    describe such an id, even one that does not exist.
    """
    made_up = str(task_id(sink_id, _MADE_UP_RUN, partition=0, attempt=0, task_attempt_id=0))
    try:
        found = client.describe_transactions([sink_id, made_up]).get(sink_id)
    except AccessError as error:
        raise AuthorizationError(
            f"transactions under transactionalId '{sink_id}' that were left open could not be found "
            f"({error}): allow DESCRIBE and WRITE on the transactional ids with the prefix '{sink_id}' "
            "to this principal (kafka-acls.sh --transactional-id "
            f"{sink_id} --resource-pattern-type prefixed)"
        ) from error
    if found is not None and is_held(found, owner, decided_with):
        return
    now = "is not known to the brokers any more" if found is None else f"has {found.producer}"
    raise SinkFencedError(
        f"another run has taken over transactionalId '{sink_id}': it {now}, and this run had {owner}. "
        "This run ends here, and nothing of the other was touched. If both are meant to run, give "
        "each its own transactionalId"
    )


def is_held(
    found: TransactionDescription,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> bool:
    """Whether X is as `owner` got it, or as a decision under that epoch has left it.

    Version 2 ends a transaction with the next epoch. Who takes X then has yet another one, so that
    only our own decision can be committed with this one.
    """
    if found.producer == owner:
        return True
    if decided_with != 2 or found.state not in _DECIDED:
        return False
    decided_under = found.producer.producer_epoch - 1
    if found.producer.producer_id == owner.producer_id:
        return decided_under == owner.producer_epoch
    return found.producer.producer_epoch == 0 and owner.producer_epoch == _LAST_EPOCH
