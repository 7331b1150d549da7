"""Tests of InitProducerId with a transactional id (KIP-98, KIP-360, KIP-588).

A request with the same transactional id returns the same producer id with a higher epoch. It fences
the older producer and aborts its open transaction.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection, request
from tests.conformance.isolation import ABORT, await_read, await_stable, markers, read
from tests.conformance.transactions import (
    VERSION_1,
    Connections,
    TransactionalProducer,
    code_of,
    retried,
)
from tests.conformance.wire import served

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
ProducerFactory = Callable[..., TransactionalProducer]
TIMEOUT_MAX_MS = 900_000
SMALLEST_FENCED_VERSION = 4
"""The first version of InitProducerId that returns PRODUCER_FENCED, not INVALID_PRODUCER_EPOCH."""


@pytest.fixture
def instance(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    return TransactionalProducer(brokers, unique_name(), VERSION_1)


def test_same_id_keeps_its_producer_id_with_a_higher_epoch(
    new_producer: ProducerFactory,
) -> None:
    first = new_producer()
    second = new_producer(first.transactional_id)
    third = new_producer(first.transactional_id)
    assert first.epoch == 0
    assert [p.producer_id for p in (second, third)] == [first.producer_id] * 2
    assert [p.epoch for p in (second, third)] == [1, 2]


def test_each_transactional_id_has_its_own_producer_id(new_producer: ProducerFactory) -> None:
    ids = {new_producer().producer_id for _ in range(10)}
    assert len(ids) == 10


def test_every_version_of_init_producer_id(
    raw: RawConnection, instance: TransactionalProducer
) -> None:
    versions = served(raw, "init_producer_id")
    for epoch, version in enumerate(versions):
        instance.init(version=version)
        assert instance.epoch == epoch, version


def test_older_instance_is_fenced_at_every_request(
    raw: RawConnection, topic: TopicFactory, group: str, new_producer: ProducerFactory
) -> None:
    name = topic()
    old = new_producer()
    old.write(name, "a")
    old.commit()
    new = new_producer(old.transactional_id)
    assert (new.producer_id, new.epoch > old.epoch) == (old.producer_id, True)
    new.write(name, "b")
    # The partition leader rejects the old epoch if it knows the new one. Otherwise the coordinator
    # rejects it.
    assert old.produce_once(name, "x").error_code == ErrorCode.invalid_producer_epoch
    fenced = [ErrorCode.producer_fenced]
    assert old.add_once(name) == fenced
    assert [old.add_offsets_once(group)] == fenced
    for commit in (True, False):
        assert [code_of(old.end_once(commit=commit))] == fenced
    new.commit()
    await_read(raw, name, "a", "b")


def test_older_producer_is_fenced_before_the_new_one_writes(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    old = new_producer()
    new_producer(old.transactional_id)
    response = old.produce_once(name, "x")
    assert response.error_code == ErrorCode.invalid_producer_epoch
    assert read(raw, name) == []


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(1, ErrorCode.invalid_producer_epoch), (2, ErrorCode.producer_fenced)],
)
def test_old_clients_get_invalid_producer_epoch(
    topic: TopicFactory,
    group: str,
    new_producer: ProducerFactory,
    version: int,
    error_code: ErrorCode,
) -> None:
    name = topic()
    old = new_producer()
    new_producer(old.transactional_id)
    assert old.add_once(name, version=version) == [error_code]
    assert old.add_offsets_once(group, version=version) == error_code
    assert code_of(old.end_once(commit=True, version=version)) == error_code


@pytest.mark.old_clients
def test_open_transaction_of_the_older_instance_is_aborted(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    old = new_producer()
    old.write(name, "a")
    again = old.init_once()
    # The producer has to retry during the abort; the retry then returns the next epoch.
    assert (again.error_code, again.producer_id, again.producer_epoch) == (
        ErrorCode.concurrent_transactions,
        -1,
        -1,
    )
    new = new_producer(old.transactional_id)
    assert new.producer_id == old.producer_id
    assert new.epoch >= old.epoch + 2
    await_stable(raw, name, 2)
    assert read(raw, name) == []
    (marker,) = markers(raw, name)
    assert marker.kind == ABORT
    assert old.epoch < marker.producer_epoch < new.epoch
    assert code_of(old.end_once(commit=True)) == ErrorCode.producer_fenced
    new.write(name, "b")
    new.commit()
    await_read(raw, name, "b")


def test_two_clients_of_one_id_never_both_commit(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    first = new_producer()
    first.write(name, "first")
    second = new_producer(first.transactional_id)
    second.write(name, "second")
    # The first producer gets a new epoch, which fences the second producer and its transaction.
    first.init()
    assert code_of(second.end_once(commit=True)) == ErrorCode.producer_fenced
    first.write(name, "first again")
    first.commit()
    await_read(raw, name, "first again")


def test_concurrent_inits_never_get_the_same_epoch(instance: TransactionalProducer) -> None:
    instance.init()
    address = instance.coordinator().address
    requested = request(
        "init_producer_id",
        4,
        transactional_id=instance.transactional_id,
        transaction_timeout=60_000,
    )
    epochs: list[int] = []
    with RawConnection(address) as one, RawConnection(address) as other:
        for _ in range(20):
            for client in (one, other):
                client.send_only(requested)
            for client in (one, other):
                response = client.receive(requested)
                if response.error_code != ErrorCode.concurrent_transactions:
                    assert response.error_code == ErrorCode.none
                    epochs.append(response.producer_epoch)
    assert len(epochs) >= 20
    assert sorted(epochs) == list(range(1, len(epochs) + 1))


def test_init_does_not_affect_a_commit_in_progress(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    producer.commit()
    producer.init()
    await_read(raw, name, "a")
    assert producer.describe().state == "Empty"


# Limits of the transaction timeout.


@pytest.mark.parametrize("timeout_ms", [0, -1, TIMEOUT_MAX_MS + 1, 2**31 - 1])
def test_timeout_out_of_bounds_is_refused(instance: TransactionalProducer, timeout_ms: int) -> None:
    response = retried(lambda: instance.init_once(transaction_timeout=timeout_ms))
    assert response.error_code == ErrorCode.invalid_transaction_timeout
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


def test_timeout_bounds_are_inclusive(instance: TransactionalProducer) -> None:
    instance.init(transaction_timeout=TIMEOUT_MAX_MS)
    assert instance.describe().timeout_ms == TIMEOUT_MAX_MS
    # The timeout also limits how long the coordinator waits for the replication of its record.
    response = retried(lambda: instance.init_once(transaction_timeout=1), frozenset())
    assert response.error_code in (ErrorCode.none, ErrorCode.coordinator_not_available)


def test_last_init_sets_the_timeout(instance: TransactionalProducer) -> None:
    instance.init(transaction_timeout=30_000)
    instance.init(transaction_timeout=40_000)
    assert instance.describe().timeout_ms == 40_000


def test_empty_id_is_refused(raw: RawConnection) -> None:
    for version in served(raw, "init_producer_id"):
        response = raw.call(
            "init_producer_id", version, transactional_id="", transaction_timeout=60_000
        )
        assert response.error_code == ErrorCode.invalid_request, version


@pytest.mark.parametrize("fields", [{"producer_id": 5}, {"producer_epoch": 5}])
def test_incomplete_identity_is_refused(
    instance: TransactionalProducer, fields: dict[str, int]
) -> None:
    instance.init()
    assert code_of(instance.init_once(**fields)) == ErrorCode.invalid_request


# KIP-360: a producer that sends its producer id and epoch gets the next epoch.


def test_recovering_producer_gets_the_next_epoch(instance: TransactionalProducer) -> None:
    instance.init()
    before = (instance.producer_id, instance.epoch)
    instance.init(producer_id=before[0], producer_epoch=before[1])
    assert (instance.producer_id, instance.epoch) == (before[0], before[1] + 1)


def test_retry_of_recovery_gets_the_same_epoch(instance: TransactionalProducer) -> None:
    instance.init()
    identity = {"producer_id": instance.producer_id, "producer_epoch": instance.epoch}
    for _ in range(3):
        response = retried(lambda: instance.init_once(**identity))
        assert code_of(response) == ErrorCode.none
        assert (response.producer_id, response.producer_epoch) == (
            instance.producer_id,
            instance.epoch + 1,
        )


def test_fenced_producer_cannot_recover(instance: TransactionalProducer) -> None:
    instance.init()
    identity = {"producer_id": instance.producer_id, "producer_epoch": instance.epoch}
    instance.init()
    for version, code in (
        (SMALLEST_FENCED_VERSION - 1, ErrorCode.invalid_producer_epoch),
        (SMALLEST_FENCED_VERSION, ErrorCode.producer_fenced),
    ):
        assert code_of(instance.init_once(version=version, **identity)) == code, version
    # The rejected request does not affect the active producer.
    assert instance.epoch == 1
    again = {"producer_id": instance.producer_id, "producer_epoch": instance.epoch}
    instance.init(**again)
    assert instance.epoch == 2


@pytest.mark.parametrize(("id_offset", "epoch_offset"), [(1, 0), (0, 1), (0, 2)])
def test_another_identity_is_fenced(
    instance: TransactionalProducer, id_offset: int, epoch_offset: int
) -> None:
    instance.init()
    response = instance.init_once(
        producer_id=instance.producer_id + id_offset, producer_epoch=instance.epoch + epoch_offset
    )
    assert code_of(response) == ErrorCode.producer_fenced


def test_recovery_aborts_the_open_transaction(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    response = producer.init_once(**identity)
    assert code_of(response) == ErrorCode.concurrent_transactions
    await_stable(raw, name, 2)
    assert read(raw, name) == []


# Exhausted blocks of producer ids.


def test_producer_ids_continue_after_a_block(raw: RawConnection) -> None:
    """Brokers allocate producer ids in blocks of a thousand."""
    seen: set[int] = set()
    for _ in range(1_100):
        response = retried(
            lambda: raw.call("init_producer_id", 4, transaction_timeout=60_000),
        )
        assert response.error_code == ErrorCode.none
        seen.add(int(response.producer_id))
    assert len(seen) == 1_100
