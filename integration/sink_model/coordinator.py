"""Kafka's transaction coordinator, as far as the protocol can see it.

Purpose: what each request makes of a transactional id, and what it answers. Invariant: an id is
changed by nothing else; all answers that leave open what became of a transaction are one answer,
`REFUSED`. What it must not know: what is in a transaction, and who asks.

Tests of conformance state the same about Apache Kafka: epochs after an end, a fence and a timeout
in both transaction versions, what an InitProducerId that names an epoch gets, what a repeated end is
told. `EndTxn` is of version 5 where transactions are of version 2, else of version 4.
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
"""Answers: NONE; any error of the table of outcomes; CONCURRENT_TRANSACTIONS, ask again."""

PRODUCER_ID: Final = 100
"""Epochs of the next producer id of an id that expired begin here."""


def init_producer_id(
    current: TransactionalId, version: int, expected: int | None = None
) -> tuple[TransactionalId, int]:
    """InitProducerId. An open transaction is aborted before an expected epoch is looked at."""
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
    """The abort of an open transaction by somebody else, or by its timeout."""
    last_epoch = current.epoch if version == 2 else NONE
    return TransactionalId(current.epoch + 1, PREPARE_ABORT, last_epoch, current.rows)


def end(
    current: TransactionalId, epoch: int, version: int, *, is_commit: bool
) -> tuple[TransactionalId, int]:
    """EndTxn by who holds `epoch`."""
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
    """All markers are written."""
    status = COMPLETE_COMMIT if current.status == PREPARE_COMMIT else COMPLETE_ABORT
    return TransactionalId(current.epoch, status, current.last_epoch, 0)


def expired(current: TransactionalId) -> TransactionalId:
    """The id is forgotten; who takes it next gets another producer id."""
    highest = (current.epoch // PRODUCER_ID + 1) * PRODUCER_ID - 1
    return TransactionalId(highest, EXPIRED, NONE, 0)
