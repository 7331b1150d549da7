"""Tests of transactions: atomicity, and visibility only after a commit (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import CONTROL, TRANSACTIONAL, batch, values
from tests.conformance.isolation import (
    ABORT,
    COMMIT,
    await_read,
    await_stable,
    markers,
    read,
    read_uncommitted,
    stored,
)
from tests.conformance.transactions import TransactionalProducer
from tests.conformance.wire import LATEST, list_offset

TopicFactory = Callable[..., str]


# Produce in a transaction.


def test_batch_keeps_its_producer_id_epoch_and_sequence(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a", "b")
    producer.write(name, "c")
    found = [(b.producer_id, b.producer_epoch, b.base_sequence) for b in stored(raw, name)]
    identity = (producer.producer_id, producer.epoch)
    assert found == [(*identity, 0), (*identity, 2)]
    assert all(b.attributes & TRANSACTIONAL for b in stored(raw, name))


def test_records_are_invisible_until_the_commit_and_visible_after_it(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a", "b")
    producer.write(name, "c")
    assert read_uncommitted(raw, name) == ["a", "b", "c"]
    assert read(raw, name) == []
    producer.commit()
    await_read(raw, name, "a", "b", "c")


def test_records_of_an_aborted_transaction_are_never_visible(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a", "b")
    producer.abort()
    await_stable(raw, name, 3)
    assert read(raw, name) == []
    assert read_uncommitted(raw, name) == ["a", "b"]


def test_consecutive_transactions(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    for number in range(6):
        producer.write(name, f"{number}")
        producer.end(commit=number % 2 == 0)
    producer.await_complete()
    assert read(raw, name) == ["0", "2", "4"]
    kinds = [COMMIT, ABORT] * 3
    assert [marker.kind for marker in markers(raw, name)] == kinds


def test_retry_of_a_batch_in_a_transaction_is_written_once(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    assert producer.write(name, "a", "b") == 0
    again = producer.produce_once(name, "a", "b", sequence=0)
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
    producer.commit()
    await_read(raw, name, "a", "b")


def test_sequence_gap_is_refused_and_the_transaction_can_commit(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    response = producer.produce_once(name, "c", sequence=2)
    assert response.error_code == ErrorCode.out_of_order_sequence_number
    producer.write(name, "b")
    producer.commit()
    await_read(raw, name, "a", "b")


def test_sequences_after_the_end_of_a_transaction(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    """In version 1 the sequence continues.

    In version 2 every transaction has its own producer epoch.
    """
    name = topic()
    before = (producer.producer_id, producer.epoch)
    producer.write(name, "a", "b")
    producer.commit()
    producer.await_complete()
    bumps = producer.generation.bumps_epoch
    assert (producer.producer_id, producer.epoch) == (before[0], before[1] + bumps)
    producer.write(name, "c")
    assert stored(raw, name)[-1].base_sequence == (0 if bumps else 2)
    producer.commit()
    await_read(raw, name, "a", "b", "c")


# Atomic writes to several partitions.


@pytest.mark.parametrize("commit", [True, False])
def test_markers_reach_all_partitions_of_all_brokers(
    raw: RawConnection,
    topic: TopicFactory,
    producer: TransactionalProducer,
    commit: bool,
) -> None:
    name, other = topic(partitions=6, replication_factor=1), topic()
    places = [(name, partition) for partition in range(6)] + [(other, 0)]
    for where, partition in places:
        producer.write(where, f"{where}-{partition}", partition=partition)
    for where, partition in places:
        leader = producer.leader(where, partition)
        assert read(leader, where, partition=partition) == []
    producer.end(commit=commit)
    producer.await_complete()
    for where, partition in places:
        leader = producer.leader(where, partition)
        expected = [f"{where}-{partition}"] if commit else []
        await_read(leader, where, *expected, partition=partition)
        kinds = [marker.kind for marker in markers(leader, where, partition=partition)]
        assert kinds == [COMMIT if commit else ABORT]


def test_state_is_complete_only_after_every_marker(
    topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic(partitions=9, replication_factor=1)
    for partition in range(9):
        producer.write(name, "a", partition=partition)
    producer.commit()
    producer.await_state("CompleteCommit")
    for partition in range(9):
        leader = producer.leader(name, partition)
        assert read(leader, name, partition=partition) == ["a"], partition


def test_partition_without_records_gets_a_marker(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name, other = topic(), topic()
    producer.add(name)
    producer.write(other, "a")
    producer.commit()
    producer.await_complete()
    (marker,) = markers(raw, name)
    assert (marker.kind, marker.producer_id) == (COMMIT, producer.producer_id)


# Control records.


def test_marker_has_an_offset_and_its_producer(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    epoch = producer.epoch
    producer.write(name, "a", "b")
    producer.commit()
    producer.await_complete()
    (marker,) = markers(raw, name)
    assert (marker.offset, marker.kind, marker.producer_id) == (2, COMMIT, producer.producer_id)
    # In version 2 the marker has the next producer epoch, which fences the old transaction.
    assert marker.producer_epoch == epoch + producer.generation.bumps_epoch
    assert marker.coordinator_epoch >= 0
    last = stored(raw, name)[-1]
    assert (last.record_count, last.attributes & (CONTROL | TRANSACTIONAL)) == (
        1,
        CONTROL | TRANSACTIONAL,
    )
    assert producer.write(name, "c") == 3
    assert list_offset(raw, name, LATEST).offset == 4


def test_control_batch_from_a_client_is_refused(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    forged = batch(
        values("x"),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=1,
        attributes=TRANSACTIONAL | CONTROL,
    )
    response = producer.send_once(name, forged)
    assert response.error_code == ErrorCode.invalid_record
    producer.commit()
    await_read(raw, name, "a")
