"""Tests of the result of each request in each state, with Kafka's order of checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction import request_validation
from broker_ref.transaction.request_validation import ProducerIdAndEpoch, TransactionMetadata
from broker_ref.transaction.states import TransactionState
from broker_ref.transaction.transitions import (
    NO_TIMEOUT_MS,
    Transaction,
    new_transactional_id,
    prepare_complete,
)

NOW_MS = 1_000_000
P0, P1 = PartitionKey(topic="t", partition=0), PartitionKey(topic="t", partition=1)
NEW_PRODUCER_ID = 99

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT

CONCURRENT = ErrorCode.concurrent_transactions
FENCED = ErrorCode.producer_fenced
INVALID_STATE = ErrorCode.invalid_txn_state
MAPPING = ErrorCode.invalid_producer_id_mapping


def entry_of(state: TransactionState = EMPTY, **changed: Any) -> TransactionMetadata:
    fields: dict[str, Any] = {
        "producer_id": 5,
        "previous_producer_id": 5,
        "producer_epoch": 3,
        "timeout_ms": 60_000,
        "last_update_timestamp_ms": 900_000,
        "state": state,
        "start_timestamp_ms": -1 if state is EMPTY else 800_000,
        "partitions": frozenset({P0})
        if state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
        else frozenset(),
    }
    current = Transaction(**(fields | changed))
    return TransactionMetadata(name="tx", current=current, unmarked=set(current.partitions))


def pending(entry: TransactionMetadata) -> TransactionMetadata:
    entry.pending = entry.current
    return entry


def code_of(decide: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        decide()
    return raised.value.error_code


def start(
    entry: TransactionMetadata, expected: tuple[int, int] | None = None
) -> Transaction | None:
    return request_validation.initialize(
        entry,
        timeout_ms=7_000,
        expected=None if expected is None else ProducerIdAndEpoch(*expected),
        generate_producer_id=lambda: NEW_PRODUCER_ID,
        now_ms=NOW_MS,
    )


def end(
    entry: TransactionMetadata,
    *,
    commit: bool,
    producer: tuple[int, int] = (5, 3),
    version: int = 2,
) -> Transaction | None:
    return request_validation.end(
        entry,
        ProducerIdAndEpoch(*producer),
        commit=commit,
        client_transaction_version=version,
        generate_producer_id=lambda: NEW_PRODUCER_ID,
        now_ms=NOW_MS,
    )


def identity(value: Transaction | None) -> tuple[int, int, int]:
    assert value is not None
    return value.producer_id, value.producer_epoch, value.last_producer_epoch


# InitProducerId


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_starting_producer_gets_the_next_epoch(state: TransactionState) -> None:
    value = start(entry_of(state))
    assert identity(value) == (5, 4, -1)
    assert value is not None
    assert (value.state, value.timeout_ms, value.start_timestamp_ms) == (EMPTY, 7_000, -1)
    assert value.last_update_timestamp_ms == NOW_MS


def test_new_id_starts_with_epoch_zero() -> None:
    for expected in (None, (77, 12)):
        created = new_transactional_id(5, timeout_ms=1, now_ms=NOW_MS)
        entry = TransactionMetadata(name="tx", current=created, unmarked=set())
        assert identity(start(entry, expected)) == (5, 0, -1)


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [
        ((5, 3), (5, 4, 3)),  # The current epoch is bumped.
        ((5, 2), (5, 3, 2)),  # A retry gets the same epoch again.
        ((5, 1), FENCED),
        ((5, 4), FENCED),
        ((6, 3), FENCED),
    ],
)
def test_producer_bumps_its_own_epoch(expected: tuple[int, int], outcome: Any) -> None:
    entry = entry_of(last_producer_epoch=2)
    if outcome is FENCED:
        assert code_of(lambda: start(entry, expected)) is FENCED
    else:
        assert identity(start(entry, expected)) == outcome


def test_exhausted_epochs_rotate_the_producer_id() -> None:
    assert identity(start(entry_of(producer_epoch=32765))) == (5, 32766, -1)
    exhausted = entry_of(producer_epoch=32766)
    assert identity(start(exhausted)) == (NEW_PRODUCER_ID, 0, -1)
    rotated = start(exhausted, (5, 32766))
    assert identity(rotated) == (NEW_PRODUCER_ID, 0, 32766)
    # The response was lost: the producer sends the producer id that it knows.
    assert rotated is not None
    again = TransactionMetadata(name="tx", current=rotated, unmarked=set())
    assert identity(start(again, (5, 32766))) == (NEW_PRODUCER_ID, 0, 32766)
    assert code_of(lambda: start(again, (5, 32765))) is FENCED
    assert code_of(lambda: start(exhausted, (5, 32765))) is ErrorCode.unknown_server_error


def test_open_transaction_is_aborted_first() -> None:
    assert start(entry_of(ONGOING)) is None
    assert code_of(lambda: start(entry_of(ONGOING), (6, 3))) is FENCED
    for state in (PREPARE_COMMIT, PREPARE_ABORT):
        entry = entry_of(state)
        assert code_of(lambda entry=entry: start(entry)) is CONCURRENT  # type: ignore[misc]
    assert code_of(lambda: start(pending(entry_of()), (6, 3))) is CONCURRENT


# AddPartitionsToTxn


def add(
    entry: TransactionMetadata, *partitions: PartitionKey, producer: tuple[int, int] = (5, 3)
) -> Transaction | None:
    return request_validation.add_partitions(
        entry,
        ProducerIdAndEpoch(*producer),
        partitions,
        client_transaction_version=0,
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_first_partition_begins_a_transaction(state: TransactionState) -> None:
    value = add(entry_of(state), P0)
    assert value is not None
    assert (value.state, value.partitions, value.start_timestamp_ms) == (
        ONGOING,
        frozenset({P0}),
        NOW_MS,
    )


def test_further_partitions_do_not_restart_the_transaction() -> None:
    value = add(entry_of(ONGOING), P1)
    assert value is not None
    assert (value.partitions, value.start_timestamp_ms) == (frozenset({P0, P1}), 800_000)
    assert add(entry_of(ONGOING), P0) is None


def test_add_partitions_is_refused() -> None:
    assert code_of(lambda: add(pending(entry_of()), P0, producer=(6, 9))) is CONCURRENT
    assert code_of(lambda: add(entry_of(), P0, producer=(6, 9))) is MAPPING
    assert code_of(lambda: add(entry_of(), P0, producer=(5, 2))) is FENCED
    assert code_of(lambda: add(entry_of(), P0, producer=(5, 4))) is FENCED
    assert code_of(lambda: add(entry_of(PREPARE_ABORT), P0)) is CONCURRENT
    unowned = TransactionMetadata(
        name="tx", current=new_transactional_id(5, timeout_ms=1, now_ms=NOW_MS), unmarked=set()
    )
    assert code_of(lambda: add(unowned, P0, producer=(5, -1))) is FENCED


def test_verification_returns_a_code_for_each_partition() -> None:
    def verify(entry: TransactionMetadata, producer: tuple[int, int] = (5, 3)) -> Any:
        return request_validation.verify_partitions(entry, ProducerIdAndEpoch(*producer), (P0, P1))

    abortable = ErrorCode.transaction_abortable
    assert verify(entry_of(ONGOING)) == {P0: ErrorCode.none, P1: abortable}
    assert verify(pending(entry_of(ONGOING))) == {P0: ErrorCode.none, P1: abortable}
    assert verify(entry_of(COMPLETE_COMMIT)) == {P0: abortable, P1: abortable}
    assert code_of(lambda: verify(entry_of(ONGOING), (6, 3))) is MAPPING
    assert code_of(lambda: verify(entry_of(ONGOING), (5, 2))) is FENCED
    assert code_of(lambda: verify(entry_of(PREPARE_COMMIT))) is CONCURRENT


# EndTxn

NONE = ErrorCode.none

VERSION_1 = [  # state, commit, producer, result
    (ONGOING, True, (5, 3), PREPARE_COMMIT),
    (ONGOING, False, (5, 3), PREPARE_ABORT),
    (ONGOING, True, (5, 2), FENCED),
    (ONGOING, True, (5, 4), FENCED),
    (ONGOING, True, (6, 3), MAPPING),
    (EMPTY, True, (5, 3), INVALID_STATE),
    (EMPTY, False, (5, 3), INVALID_STATE),
    (COMPLETE_COMMIT, True, (5, 3), NONE),
    (COMPLETE_COMMIT, False, (5, 3), INVALID_STATE),
    (COMPLETE_ABORT, True, (5, 3), INVALID_STATE),
    (COMPLETE_ABORT, False, (5, 3), NONE),
    (COMPLETE_ABORT, False, (5, 2), FENCED),
    (PREPARE_COMMIT, True, (5, 3), CONCURRENT),
    (PREPARE_COMMIT, False, (5, 3), INVALID_STATE),
    (PREPARE_ABORT, False, (5, 3), CONCURRENT),
    (PREPARE_ABORT, True, (5, 3), INVALID_STATE),
]

VERSION_2 = [  # The current epoch is 3: a producer that sends 2 is retrying.
    (ONGOING, True, (5, 3), PREPARE_COMMIT),
    (ONGOING, False, (5, 3), PREPARE_ABORT),
    (ONGOING, True, (5, 2), FENCED),
    (ONGOING, True, (5, 4), FENCED),
    (ONGOING, True, (6, 3), MAPPING),
    (EMPTY, True, (5, 3), INVALID_STATE),
    (EMPTY, False, (5, 3), PREPARE_ABORT),
    (EMPTY, False, (5, 2), FENCED),
    (COMPLETE_COMMIT, True, (5, 2), NONE),
    (COMPLETE_COMMIT, True, (5, 3), INVALID_STATE),
    (COMPLETE_COMMIT, False, (5, 2), INVALID_STATE),
    (COMPLETE_COMMIT, False, (5, 3), PREPARE_ABORT),
    (COMPLETE_COMMIT, True, (5, 1), FENCED),
    (COMPLETE_ABORT, False, (5, 2), NONE),
    (COMPLETE_ABORT, False, (5, 3), PREPARE_ABORT),
    (COMPLETE_ABORT, True, (5, 2), INVALID_STATE),
    (COMPLETE_ABORT, True, (5, 3), INVALID_STATE),
    (PREPARE_COMMIT, True, (5, 2), CONCURRENT),
    (PREPARE_COMMIT, False, (5, 2), INVALID_STATE),
    (PREPARE_COMMIT, True, (5, 3), FENCED),
    (PREPARE_ABORT, False, (5, 2), CONCURRENT),
    (PREPARE_ABORT, True, (5, 2), INVALID_STATE),
]

ENDS = [(1, *row) for row in VERSION_1] + [(2, *row) for row in VERSION_2]


@pytest.mark.parametrize(("version", "state", "commit", "producer", "outcome"), ENDS)
def test_results_of_end_txn(
    version: int,
    state: TransactionState,
    commit: bool,
    producer: tuple[int, int],
    outcome: TransactionState | ErrorCode,
) -> None:
    entry = entry_of(state)
    if outcome is NONE:
        assert end(entry, commit=commit, producer=producer, version=version) is None
    elif isinstance(outcome, TransactionState):
        value = end(entry, commit=commit, producer=producer, version=version)
        assert value is not None
        assert (value.state, value.partitions) == (outcome, entry.current.partitions)
        assert identity(value) == ((5, 4, 3) if version == 2 else (5, 3, -1))
        assert value.client_transaction_version == (2 if version == 2 else 0)
    else:
        code = code_of(lambda: end(entry, commit=commit, producer=producer, version=version))
        assert code is outcome


def test_checks_before_and_after_the_pending_check() -> None:
    busy = pending(entry_of(ONGOING))
    assert code_of(lambda: end(busy, commit=True, producer=(6, 9), version=2)) is CONCURRENT
    assert code_of(lambda: end(busy, commit=True, producer=(6, 9), version=1)) is MAPPING
    assert code_of(lambda: end(busy, commit=True, producer=(5, 9), version=1)) is FENCED
    assert code_of(lambda: end(busy, commit=True, version=1)) is CONCURRENT


def test_abort_without_a_transaction_starts_now() -> None:
    value = end(entry_of(EMPTY), commit=False)
    assert value is not None
    assert (value.start_timestamp_ms, value.partitions) == (NOW_MS, frozenset())


def test_last_epoch_of_a_producer_id_is_reserved_for_markers() -> None:
    entry = entry_of(ONGOING, producer_epoch=32766)
    value = end(entry, commit=True, producer=(5, 32766))
    assert identity(value) == (5, 32767, 32766)
    assert value is not None
    assert value.next_producer_id == NEW_PRODUCER_ID
    done = prepare_complete(value, now_ms=NOW_MS + 1)
    assert identity(done) == (NEW_PRODUCER_ID, 0, 32766)
    assert (done.previous_producer_id, done.next_producer_id) == (5, -1)
    # The response was lost: the producer retries with the id and epoch that it knows.
    again = TransactionMetadata(name="tx", current=done, unmarked=set())
    assert end(again, commit=True, producer=(5, 32766)) is None
    assert code_of(lambda: end(again, commit=False, producer=(5, 32766))) is INVALID_STATE
    assert code_of(lambda: end(again, commit=True, producer=(5, 32765))) is MAPPING


def test_fencing_uses_the_next_epoch() -> None:
    def fence(version: int, **changed: Any) -> Transaction:
        return request_validation.fence(
            entry_of(ONGOING, **changed),
            transaction_version=version,
            generate_producer_id=lambda: NEW_PRODUCER_ID,
            now_ms=NOW_MS,
        )

    assert identity(fence(1)) == (5, 4, -1)
    assert identity(fence(2)) == (5, 4, 3)
    assert fence(1).client_transaction_version == 0
    assert identity(fence(1, producer_epoch=32766)) == (5, 32767, -1)
    assert fence(2, producer_epoch=32766).next_producer_id == NEW_PRODUCER_ID
    assert identity(fence(2, producer_epoch=32767)) == (5, 32767, 32767)


# Time


def test_transaction_times_out() -> None:
    assert not request_validation.has_timed_out(entry_of(ONGOING), 860_000)
    assert request_validation.has_timed_out(entry_of(ONGOING), 860_001)
    assert not request_validation.has_timed_out(pending(entry_of(ONGOING)), 860_001)
    assert not request_validation.has_timed_out(entry_of(ONGOING, timeout_ms=NO_TIMEOUT_MS), 2**40)
    for state in (EMPTY, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert not request_validation.has_timed_out(entry_of(state), 2**40)


def test_transactional_id_expires() -> None:
    def expired(entry: TransactionMetadata, now_ms: int = 900_500) -> bool:
        return request_validation.has_expired(entry, expiration_ms=500, now_ms=now_ms)

    for state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert expired(entry_of(state))
        assert not expired(entry_of(state), 900_499)
        assert not expired(pending(entry_of(state)))
    for state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT):
        assert not expired(entry_of(state))


def test_transitions_keep_other_fields() -> None:
    entry = entry_of(ONGOING, previous_producer_id=1)
    value = add(entry, P1)
    assert value == dataclasses.replace(
        entry.current,
        partitions=frozenset({P0, P1}),
        previous_producer_id=5,
        last_update_timestamp_ms=NOW_MS,
    )
