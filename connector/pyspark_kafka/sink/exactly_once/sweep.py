"""The sweep: aborts open transactions of task attempts that no decision contains.

Runs steps 3 and 11 of the protocol. Invariant: before a listed transaction is fenced, the sweep
checks that this process still owns the sink's transactional id. Transactions of a newer owner are
therefore never fenced, because its tasks open transactions only after it has fenced this process.

Transactions are aborted with InitProducerId, which raises the epoch, and never with EndTxn(abort).
With transaction version 1, a task that is still writing would silently begin another transaction
after an EndTxn.
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
"""The transaction timeout in the InitProducerId requests of a sweep. No producer writes with the
epochs that these requests return. Tasks use other timeouts, so this value identifies ids that a
sweep has fenced."""
_ROUNDS_MAX: Final = 5
_MADE_UP_RUN: Final = "probe"
_DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_LAST_EPOCH: Final = 32_766
"""The highest epoch of a producer id. The next owner gets another producer id with epoch 0."""


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
    """Fence every open transaction of the sink's tasks (only of `run`, if given); return their ids.

    `owner` is the sink's producer id and epoch from planning. If a decision was written with this
    epoch, `decided_with` is the version of its transaction. `spare` contains the ids of decided
    transactions, which are not fenced. With `two_phase_commit`, ids that are initialized but have
    no transaction are fenced, too, because a transaction that a task begins with such an id would
    never time out. Raises `SinkFencedError` if the sink has another owner.
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
            "Aborted %d open transactions of earlier attempts with transactionalId '%s' that were "
            "not decided: %s",
            len(fenced),
            sink_id,
            ", ".join(sorted(fenced)[:10]),
        )
    return tuple(fenced)


def _initialized(client: TransactionalClient, listed: Sequence[TransactionListing]) -> list[str]:
    """Return ids that a task has initialized but not used, except ids that a sweep fenced."""
    empty = [one.transactional_id for one in listed if one.state is TransactionState.EMPTY]
    found = client.describe_transactions(empty) if empty else {}
    return [name for name, one in found.items() if one.timeout_ms != FENCING_TIMEOUT_MS]


def _check_owner(
    client: TransactionalClient,
    sink_id: str,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> None:
    """Check that this process still owns the sink, and that the list of transactions is complete.

    ListTransactions silently omits ids for which the principal lacks DESCRIBE. DescribeTransactions
    returns an error for them, even for ids that do not exist.
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
        f"Another run has taken over transactionalId '{sink_id}': the id {now}, but this run had "
        f"{owner}. This run stops. It has not changed any transaction of the other run.",
        advice="If both queries are meant to run, give each its own transactionalId.",
        transactional_id=sink_id,
    )


def is_held(
    found: TransactionDescription,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> bool:
    """Return whether the sink's id still belongs to `owner`.

    With transaction version 2, the end of a transaction raises the epoch by one, and a new owner
    raises it once more. Therefore a committed transaction with the next epoch is the owner's own
    decision.
    """
    if found.producer == owner:
        return True
    if decided_with != 2 or found.state not in _DECIDED:
        return False
    decided_under = found.producer.producer_epoch - 1
    if found.producer.producer_id == owner.producer_id:
        return decided_under == owner.producer_epoch
    return found.producer.producer_epoch == 0 and owner.producer_epoch == _LAST_EPOCH
