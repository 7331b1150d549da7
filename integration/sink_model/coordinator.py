"""A model of Kafka's transaction coordinator, with all behavior that the sink can observe.

It models the effect of each request on a transactional id, and the response. Invariant: only the
functions of this module change the state of a transactional id. `REFUSED` represents all error
codes after which the outcome is unknown.

The conformance tests check the same behavior against Apache Kafka. With both transaction versions,
they check the producer epoch after EndTxn, after fencing and after a timeout. They also check the
responses to an InitProducerId request with an epoch and to a repeated EndTxn request. Transaction
version 2 uses EndTxn version 5, and transaction version 1 uses EndTxn version 4.
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
"""The responses: success, an error that is not retried, and CONCURRENT_TRANSACTIONS."""

PRODUCER_ID: Final = 100
"""The next producer id of an expired id starts with an epoch that is a multiple of this number."""


def init_producer_id(
    current: TransactionalId, version: int, expected: int | None = None
) -> tuple[TransactionalId, int]:
    """Handle InitProducerId. Abort an open transaction before the expected epoch is checked."""
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
    """Handle EndTxn with `epoch`."""
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
    """Complete a prepared transaction whose markers have all been written."""
    status = COMPLETE_COMMIT if current.status == PREPARE_COMMIT else COMPLETE_ABORT
    return TransactionalId(current.epoch, status, current.last_epoch, 0)


def expired(current: TransactionalId) -> TransactionalId:
    """Expire a transactional id. The next InitProducerId returns a different producer id."""
    highest = (current.epoch // PRODUCER_ID + 1) * PRODUCER_ID - 1
    return TransactionalId(highest, EXPIRED, NONE, 0)
