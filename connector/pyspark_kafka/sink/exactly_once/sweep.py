"""Implements the sweep, which aborts the undecided transactions of task attempts.

Runs steps 3 and 11 of the protocol. The sweep also fences attempts that have initialized their
transactional id but have not begun a transaction yet. Invariant: the sweep affects only attempts of
this owner of the sink id and of earlier owners. The sweep lists and describes the transactional ids
first, and then checks that this process still owns the sink id. A newer owner bumps the epoch
before its tasks begin. Therefore, if the check succeeds, the list contains no attempts of a newer
owner.

With transaction version 2, the sweep sends EndTxn(abort) with the producer id and epoch from
DescribeTransactions. EndTxn bumps the epoch, but has no effect on an id that another attempt has
initialized in the meantime. With version 1, EndTxn does not bump the epoch: an attempt that is
still writing would begin another transaction. Therefore, the sweep sends InitProducerId, which also
aborts the transaction of an attempt that has initialized the id in the meantime. Such an attempt
belongs to a much later batch, because each id is reused as late as possible (see `names`). The
later batch then fails.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import AuthorizationError, SinkFencedError, counted, reason_of
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionState,
    TransactionVersion,
)
from pyspark_kafka.options.table import TRANSACTION_TIMEOUT_MS_MIN
from pyspark_kafka.sink.exactly_once.names import is_task_id_of, prefix, unused_task_id

log = logging.getLogger(__name__)

FENCING_TIMEOUT_MS: Final = TRANSACTION_TIMEOUT_MS_MIN - 1
"""The transaction timeout in the InitProducerId requests of a sweep. No producer writes with the
epochs that these requests return. Tasks use higher timeouts, so this value identifies ids that a
sweep has fenced."""
_SWEPT: Final = (TransactionState.ONGOING, TransactionState.EMPTY)
_ROUNDS_MAX: Final = 5
DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
"""The states of the sink id after a decision."""
_LAST_EPOCH: Final = 32_766
"""The highest epoch of a producer id. The next owner gets another producer id with epoch 0."""


def sweep(
    client: TransactionalClient,
    sink_id: str,
    owner: ProducerIdAndEpoch,
    version: TransactionVersion,
    *,
    generation: int | None = None,
    spare: Collection[str] = frozenset(),
    is_decided: bool = False,
) -> tuple[str, ...]:
    """Fence every attempt of the sink's tasks, and return the ids of the aborted transactions.

    If `generation` is given, only attempts of this generation are fenced. `owner` is the sink's
    producer id and epoch from planning. `is_decided` is set if a decision was written with this id
    and epoch. `spare` contains the ids of decided transactions, which are not fenced. Raises
    `SinkFencedError` if the sink has another owner.
    """
    aborted: set[str] = set()
    for _ in range(_ROUNDS_MAX):
        listed = [
            one.transactional_id
            for one in client.list_transactions(prefix(sink_id, generation=generation), *_SWEPT)
            if is_task_id_of(one.transactional_id, sink_id, generation=generation)
            and one.transactional_id not in spare
        ]
        found = {
            name: one
            for name, one in client.describe_transactions(listed).items()
            if one.state in _SWEPT and not _is_fenced(one)
        }
        _check_owner(client, sink_id, owner, version if is_decided else None)
        if not found:
            break
        _fence(client, found, version)
        aborted |= {name for name, one in found.items() if one.state is TransactionState.ONGOING}
    if aborted:
        log.warning(
            "Aborted %s of earlier attempts with transactionalId '%s': %s",
            counted(len(aborted), "uncommitted transaction"),
            sink_id,
            ", ".join(sorted(aborted)[:10]),
        )
    return tuple(sorted(aborted))


def _is_fenced(found: TransactionDescription) -> bool:
    return found.state is TransactionState.EMPTY and found.timeout_ms == FENCING_TIMEOUT_MS


def _fence(
    client: TransactionalClient,
    found: Mapping[str, TransactionDescription],
    version: TransactionVersion,
) -> None:
    """Abort the transactions and bump the epochs of all ids.

    Errors from EndTxn are ignored, because the next round of the sweep reads the current state of
    each id.
    """
    if version == 1:
        client.init_producer_ids(found, timeout_ms=FENCING_TIMEOUT_MS)
        return
    client.end_transactions(
        [
            EndTransaction(
                transactional_id=name, producer=one.producer, is_commit=False, version=version
            )
            for name, one in found.items()
        ]
    )


def _check_owner(
    client: TransactionalClient,
    sink_id: str,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> None:
    """Check that this process still owns the sink, and that the list of transactions is complete.

    ListTransactions silently omits ids for which the principal lacks DESCRIBE. DescribeTransactions
    returns an error for such ids, even if they do not exist.
    """
    try:
        found = client.describe_transactions([sink_id, unused_task_id(sink_id)]).get(sink_id)
    except AuthorizationError as error:
        raise AuthorizationError(
            f"The open transactions of transactionalId '{sink_id}' cannot be listed. "
            f"{reason_of(error)}.",
            advice="Grant the principal DESCRIBE and WRITE on the transactional ids with the "
            f"prefix '{sink_id}' (kafka-acls.sh --transactional-id {sink_id} "
            "--resource-pattern-type prefixed).",
            transactional_id=sink_id,
        ) from error
    if found is not None and is_held(found, owner, decided_with):
        return
    now = "no longer exists" if found is None else f"now belongs to {found.producer}"
    raise SinkFencedError(
        f"Another run has taken over transactionalId '{sink_id}'. The id {now}. It previously "
        f"belonged to {owner}. This run has not changed any of the other run's transactions.",
        advice="If both queries are meant to run, give each query its own transactionalId.",
        transactional_id=sink_id,
    )


def is_held(
    found: TransactionDescription,
    owner: ProducerIdAndEpoch,
    decided_with: TransactionVersion | None,
) -> bool:
    """Return whether `owner` still owns the sink's transactional id.

    With transaction version 2, the coordinator bumps the epoch by one at the end of a transaction,
    and once more for a new owner. Therefore, a committed transaction whose epoch directly follows
    the epoch of `owner` contains the owner's own decision.
    """
    if found.producer == owner:
        return True
    if decided_with != 2 or found.state not in DECIDED:
        return False
    decided_under = found.producer.producer_epoch - 1
    if found.producer.producer_id == owner.producer_id:
        return decided_under == owner.producer_epoch
    return found.producer.producer_epoch == 0 and owner.producer_epoch == _LAST_EPOCH
