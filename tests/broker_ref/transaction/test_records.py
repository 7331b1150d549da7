"""Tests that `__transaction_state` records have the same bytes as in Apache Kafka 4.3.0."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.records import (
    UnreadableTransactionError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    is_known,
)
from broker_ref.transaction.states import TransactionState
from broker_ref.transaction.transitions import Transaction

NOW_MS = 1_700_000_000_000
ONE = frozenset({PartitionKey(topic="t", partition=1)})

FRESH = Transaction(
    producer_id=7, producer_epoch=0, timeout_ms=60_000, last_update_timestamp_ms=NOW_MS
)
EMPTY = dataclasses.replace(FRESH, previous_producer_id=7, producer_epoch=3, last_producer_epoch=2)
ONGOING = dataclasses.replace(
    EMPTY,
    state=TransactionState.ONGOING,
    partitions=ONE,
    start_timestamp_ms=NOW_MS,
    last_update_timestamp_ms=NOW_MS + 1,
)
PREPARED = dataclasses.replace(
    ONGOING,
    state=TransactionState.PREPARE_ABORT,
    next_producer_id=9,
    producer_epoch=32767,
    last_producer_epoch=32766,
    client_transaction_version=2,
)
DONE = dataclasses.replace(
    PREPARED,
    state=TransactionState.COMPLETE_COMMIT,
    producer_id=9,
    next_producer_id=-1,
    producer_epoch=0,
    partitions=frozenset(),
)

WRITTEN_BY_KAFKA = [
    (FRESH, 0, "0000000000000000000700000000ea6000ffffffff0000018bcfe56800ffffffffffffffff"),
    (FRESH, 1, "0001000000000000000700000000ea6000000000018bcfe56800ffffffffffffffff00"),
    (EMPTY, 0, "0000000000000000000700030000ea6000ffffffff0000018bcfe56800ffffffffffffffff"),
    (
        EMPTY,
        1,
        (
            "0001000000000000000700030000ea6000000000018bcfe56800ffffffffffffffff"
            "0100080000000000000007"
        ),
    ),
    (
        ONGOING,
        0,
        (
            "0000000000000000000700030000ea600100000001000174000000010000000100"
            "00018bcfe568010000018bcfe56800"
        ),
    ),
    (
        ONGOING,
        1,
        (
            "0001000000000000000700030000ea60010202740200000001000000018bcfe56801"
            "0000018bcfe568000100080000000000000007"
        ),
    ),
    (
        PREPARED,
        1,
        (
            "000100000000000000077fff0000ea60030202740200000001000000018bcfe56801"
            "0000018bcfe5680003000800000000000000070108000000000000000902020002"
        ),
    ),
    (
        DONE,
        1,
        (
            "0001000000000000000900000000ea6004010000018bcfe568010000018bcfe56800"
            "020008000000000000000702020002"
        ),
    ),
]


@pytest.mark.parametrize(("value", "version", "written"), WRITTEN_BY_KAFKA)
def test_values_are_encoded_as_by_kafka(value: Transaction, version: int, written: str) -> None:
    assert encode_value(value, version=version).hex() == written
    kept = dataclasses.replace(value, last_producer_epoch=-1)
    if version == 0:
        kept = dataclasses.replace(kept, previous_producer_id=-1)
    assert decode_value(bytes.fromhex(written)) == kept


def test_keys_are_encoded_as_by_kafka() -> None:
    assert encode_key("tx-1").hex() == "0000000474782d31"
    assert decode_key(bytes.fromhex("0000000474782d31")) == "tx-1"


def test_unknown_versions_are_ignored() -> None:
    assert decode_key(b"\x00\x01\x00\x00") is None
    assert not is_known(b"\x00\x02anything")
    assert is_known(encode_value(DONE, version=0))
    with pytest.raises(UnreadableTransactionError, match=r"\b2\b"):
        decode_value(b"\x00\x02anything")


def test_next_producer_epoch_is_ignored() -> None:
    written = encode_value(PREPARED, version=1)
    tagged = b"\x03\x00\x08"
    position = written.index(tagged)
    more = written[:position] + b"\x04" + written[position + 1 :] + b"\x03\x02\x00\x05"
    assert decode_value(more) == dataclasses.replace(PREPARED, last_producer_epoch=-1)


@pytest.mark.parametrize(
    "damaged",
    [
        "0001",
        "0000000000000000000700000000ea6009ffffffff",
        "0000000000000000000700000000ea6006ffffffff0000018bcfe56800ffffffffffffffff",
    ],
)
def test_corrupt_value_is_reported(damaged: str) -> None:
    with pytest.raises(UnreadableTransactionError, match="__transaction_state"):
        decode_value(bytes.fromhex(damaged))


keys = st.builds(
    PartitionKey, topic=st.text(min_size=1, max_size=200), partition=st.integers(0, 2**31 - 1)
)


@given(
    value=st.builds(
        Transaction,
        producer_id=st.integers(0, 2**63 - 1),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        producer_epoch=st.integers(-1, 2**15 - 1),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=st.sampled_from(
            [
                each
                for each in TransactionState
                if each not in (TransactionState.EMPTY, TransactionState.DEAD)
            ]
        ),
        partitions=st.frozensets(keys, max_size=5),
        start_timestamp_ms=st.integers(-1, 2**63 - 1),
        last_update_timestamp_ms=st.integers(0, 2**63 - 1),
        client_transaction_version=st.integers(0, 2),
    )
)
def test_values_round_trip(value: Transaction) -> None:
    assert decode_value(encode_value(value, version=1)) == value
