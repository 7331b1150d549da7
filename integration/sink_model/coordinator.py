"""Kafka's transaction coordinator, as the protocol observes it.

Purpose: the effect of each request on a transactional id, and its response. Invariant: only these
functions change an id; `REFUSED` represents all error codes that leave the outcome open. What it
must not know: the contents of a transaction, and the client.

The conformance tests check the same on Apache Kafka: epochs after an end, a fence and a timeout in
both transaction versions, the response to an InitProducerId with an epoch, and to a repeated
EndTxn. EndTxn has version 5 in transaction version 2, else version 4.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EXPIRED,
    NONE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    TransactionalId,
)

GRANTED: Final = 0
REFUSED: Final = 1
CONCURRENT: Final = 2
"""Responses: NONE; any error code of the table of outcomes; CONCURRENT_TRANSACTIONS, retry."""

PRODUCER_ID: Final = 100
"""The epochs of an expired id's next producer id start at a multiple of this."""


def init_producer_id(
    current: TransactionalId, version: int, expected: int | None = None
) -> tuple[TransactionalId, int]:
    """InitProducerId. It aborts an open transaction before it checks the expected epoch."""
    epoch, status, last_epoch, _ = current
    if status in PREPARED:
        return current, CONCURRENT
    if status == ONGOING:
        return fenced(current, version), CONCURRENT
    if expected is None:
        return TransactionalId(epoch + 1, EMPTY, NONE, 0), GRANTED
    if expected == epoch:
        return TransactionalId(epoch + 1, EMPTY, epoch, 0), GRANTED
    if expected == last_epoch:
        return TransactionalId(epoch, EMPTY, last_epoch, 0), GRANTED
    return current, REFUSED


def fenced(current: TransactionalId, version: int) -> TransactionalId:
    """Abort an open transaction because of a fence or a timeout."""
    last_epoch = current.epoch if version == 2 else NONE
    return TransactionalId(current.epoch + 1, PREPARE_ABORT, last_epoch, current.rows)


def end(
    current: TransactionalId, epoch: int, version: int, *, is_commit: bool
) -> tuple[TransactionalId, int]:
    """EndTxn with `epoch`."""
    status = current.status
    prepare, complete = (
        (PREPARE_COMMIT, COMPLETE_COMMIT) if is_commit else (PREPARE_ABORT, COMPLETE_ABORT)
    )
    bump = 1 if version == 2 else 0
    if status in (EXPIRED, EMPTY) and (status == EXPIRED or is_commit or version == 1):
        return current, REFUSED
    if status in PREPARED:
        is_again = status == prepare and current.epoch == epoch + bump
        return current, CONCURRENT if is_again else REFUSED
    if status == complete and current.epoch == epoch + bump:
        return current, GRANTED
    if current.epoch != epoch or (status != ONGOING and (is_commit or version == 1)):
        return current, REFUSED
    last_epoch = epoch if version == 2 else current.last_epoch
    return TransactionalId(epoch + bump, prepare, last_epoch, current.rows), GRANTED


def completed(current: TransactionalId) -> TransactionalId:
    """Complete a prepared transaction: all markers are written."""
    status = COMPLETE_COMMIT if current.status == PREPARE_COMMIT else COMPLETE_ABORT
    return TransactionalId(current.epoch, status, current.last_epoch, 0)


def expired(current: TransactionalId) -> TransactionalId:
    """Expire an id; the next InitProducerId returns another producer id."""
    highest = (current.epoch // PRODUCER_ID + 1) * PRODUCER_ID - 1
    return TransactionalId(highest, EXPIRED, NONE, 0)
