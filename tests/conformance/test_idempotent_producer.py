"""Tests of the idempotent producer: sequences, duplicates and epochs (KIP-98, KIP-360).

A broker detects duplicates of a producer's last five batches.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, parse, values
from tests.conformance.producers import Producer, init_producer_id, new_producer_id
from tests.conformance.wire import fetch, only, produce, served

TopicFactory = Callable[..., str]
SEQUENCE_MAX = 2**31 - 1


@pytest.fixture
def producer(raw: RawConnection, topic: TopicFactory) -> Producer:
    return Producer(raw, topic())


def test_every_producer_gets_its_own_id(raw: RawConnection) -> None:
    ids = [new_producer_id(raw) for _ in range(20)]
    assert len(set(ids)) == len(ids)
    assert all(identifier >= 0 for identifier in ids)


def test_every_version_returns_an_id(raw: RawConnection) -> None:
    for version in served(raw, "init_producer_id"):
        assert init_producer_id(raw, version=version).producer_id >= 0, version


def test_sequences_in_order_are_written(producer: Producer) -> None:
    assert [producer.accepted(0, count=3), producer.accepted(3), producer.accepted(4)] == [0, 3, 4]


def test_stored_batch_keeps_its_producer_fields(raw: RawConnection, producer: Producer) -> None:
    producer.accepted(0, count=2)
    stored = only(parse(fetch(raw, producer.topic).records))
    fields = (stored.producer_id, stored.producer_epoch, stored.base_sequence)
    assert fields == (producer.producer_id, 0, 0)


def test_retry_of_the_last_batch_is_written_once(producer: Producer) -> None:
    assert producer.accepted(0, count=3) == 0
    assert producer.accepted(0, count=3) == 0
    assert producer.end() == 3


def test_retry_of_any_of_the_last_five_batches_returns_its_first_offset(producer: Producer) -> None:
    for sequence in range(0, 12, 2):
        producer.accepted(sequence, count=2)
    retried = [producer.accepted(sequence, count=2) for sequence in (10, 2, 8, 4, 6)]
    assert retried == [10, 2, 8, 4, 6]
    assert producer.end() == 12


def test_retry_of_the_sixth_last_batch_is_out_of_order(producer: Producer) -> None:
    for sequence in range(6):
        producer.accepted(sequence)
    assert producer.accepted(1) == 1
    assert producer.send(0).error_code == ErrorCode.out_of_order_sequence_number
    assert producer.end() == 6


def test_gap_is_an_error_and_nothing_is_written(producer: Producer) -> None:
    producer.accepted(0)
    response = producer.send(2)
    assert response.error_code == ErrorCode.out_of_order_sequence_number
    assert response.base_offset == -1
    assert producer.end() == 1
    assert producer.accepted(1) == 1


def test_overlapping_batch_is_not_a_duplicate(producer: Producer) -> None:
    producer.accepted(0, count=3)
    for sequence, count in ((0, 2), (1, 2), (0, 4), (2, 2)):
        response = producer.send(sequence, count=count)
        assert response.error_code == ErrorCode.out_of_order_sequence_number, (sequence, count)
    assert producer.end() == 3


def test_unknown_producer_may_start_at_any_sequence(producer: Producer) -> None:
    assert producer.accepted(17, count=2) == 0
    assert producer.accepted(19) == 2


def test_older_epoch_is_fenced(producer: Producer) -> None:
    producer.accepted(0, epoch=3)
    for sequence in (0, 1):
        response = producer.send(sequence, epoch=2)
        assert response.error_code == ErrorCode.invalid_producer_epoch, sequence
    assert producer.end() == 1


def test_new_epoch_starts_at_sequence_zero(producer: Producer) -> None:
    producer.accepted(0)
    producer.accepted(1)
    refused = producer.send(2, epoch=1)
    assert refused.error_code == ErrorCode.out_of_order_sequence_number
    assert producer.accepted(0, epoch=1) == 2
    assert producer.accepted(0, epoch=1) == 2
    assert producer.accepted(1, epoch=1) == 3


def test_new_epoch_removes_the_batches_of_the_old(producer: Producer) -> None:
    for sequence in range(5):
        producer.accepted(sequence)
    assert producer.accepted(0, epoch=1) == 5
    assert producer.send(4, epoch=1).error_code == ErrorCode.out_of_order_sequence_number
    assert producer.end() == 6


def test_sequences_wrap_to_zero(producer: Producer) -> None:
    assert producer.accepted(SEQUENCE_MAX - 1) == 0
    assert producer.accepted(SEQUENCE_MAX) == 1
    assert producer.accepted(0) == 2
    assert producer.accepted(0) == 2
    assert producer.accepted(SEQUENCE_MAX) == 1
    assert producer.send(2).error_code == ErrorCode.out_of_order_sequence_number


def test_sequences_may_wrap_inside_a_batch(producer: Producer) -> None:
    assert producer.accepted(SEQUENCE_MAX - 1, count=4) == 0
    assert producer.accepted(SEQUENCE_MAX - 1, count=4) == 0
    assert producer.send(0).error_code == ErrorCode.out_of_order_sequence_number
    assert producer.accepted(2) == 4


def test_each_partition_has_its_own_sequences(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    first, second = Producer(raw, name, partition=0), Producer(raw, name, partition=1)
    second.producer_id = first.producer_id
    assert [first.accepted(0), second.accepted(0), first.accepted(1), second.accepted(1)] == [
        0,
        0,
        1,
        1,
    ]


def test_producers_are_independent(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    first, second = Producer(raw, name), Producer(raw, name)
    assert [first.accepted(0), second.accepted(0), first.accepted(1)] == [0, 1, 2]
    assert [second.accepted(0), first.accepted(0)] == [1, 0]
    assert first.end() == 3


def test_sequence_without_a_producer_id_is_ignored(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    for expected in (0, 1):
        response = produce(raw, name, batch(values("a"), producer_id=-1, base_sequence=5))
        assert (response.error_code, response.base_offset) == (ErrorCode.none, expected)


def test_refused_batch_does_not_advance_the_sequence(producer: Producer) -> None:
    producer.accepted(0)
    too_large = producer.send(1, padding=2_000_000)
    assert too_large.error_code == ErrorCode.message_too_large
    assert producer.accepted(1) == 1
