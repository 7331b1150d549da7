"""Tests of AddPartitionsToTxn, and of verification before a produce (KIP-98, KIP-890)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.isolation import (
    COMMIT,
    await_read,
    await_stable,
    markers,
    read,
    read_uncommitted,
)
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    TransactionalProducer,
)
from tests.conformance.wire import LATEST, list_offset, only, served

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
ProducerFactory = Callable[..., TransactionalProducer]
NONE = ErrorCode.none


@pytest.fixture
def explicit(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    """Return a producer whose client adds partitions before it produces."""
    return TransactionalProducer(brokers, unique_name(), VERSION_1).init()


@pytest.fixture
def implicit(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    """Return a producer whose client lets the partition leader add the partition."""
    return TransactionalProducer(brokers, unique_name(), VERSION_2).init()


def added(producer: TransactionalProducer) -> dict[str, list[int]]:
    """Return the partitions of the transaction from DescribeTransactions."""
    return dict(producer.describe().topics)


def test_transaction_begins_with_its_first_partition(
    topic: TopicFactory, explicit: TransactionalProducer
) -> None:
    name = topic(partitions=3)
    before = explicit.describe()
    assert (before.state, before.start_ms, added(explicit)) == ("Empty", -1, {})
    asked_ms = int(time.time() * 1000)
    assert explicit.add_once(name, 0, 2) == [NONE, NONE]
    begun = explicit.describe()
    assert begun.state == "Ongoing"
    assert added(explicit) == {name: [0, 2]}
    assert asked_ms <= begun.start_ms <= time.time() * 1000


def test_partitions_may_be_added_at_any_time_and_repeatedly(
    topic: TopicFactory, explicit: TransactionalProducer
) -> None:
    name, other = topic(partitions=3), topic()
    assert explicit.add_once(name, 0) == [NONE]
    start = explicit.describe().start_ms
    for _ in range(2):
        assert explicit.add_once(name, 0, 1) == [NONE, NONE]
        assert explicit.add_once(other) == [NONE]
    assert added(explicit) == {name: [0, 1], other: [0]}
    # Adding partitions does not restart the transaction timeout.
    assert explicit.describe().start_ms == start


def test_every_version_adds_partitions(
    raw: RawConnection, topic: TopicFactory, explicit: TransactionalProducer
) -> None:
    versions = served(raw, "add_partitions_to_txn")
    name = topic(partitions=len(versions))
    for partition, version in enumerate(versions):
        assert explicit.add_once(name, partition, version=version) == [NONE], version
        assert added(explicit) == {name: list(range(partition + 1))}


def test_one_unknown_partition_prevents_adding_the_others(
    topic: TopicFactory, explicit: TransactionalProducer, unique_name: NameFactory
) -> None:
    name = topic(partitions=2)
    codes = explicit.add_once(name, 0, 1, 2)
    not_attempted = ErrorCode.operation_not_attempted
    assert codes == [not_attempted, not_attempted, ErrorCode.unknown_topic_or_partition]
    assert explicit.add_once(unique_name()) == [ErrorCode.unknown_topic_or_partition]
    assert (explicit.describe().state, added(explicit)) == ("Empty", {})


def test_add_by_another_producer_id_or_epoch_is_refused(
    topic: TopicFactory, explicit: TransactionalProducer
) -> None:
    name = topic()
    mapping, fenced = ErrorCode.invalid_producer_id_mapping, ErrorCode.producer_fenced
    assert explicit.add_once(name, producer_id=explicit.producer_id + 1) == [mapping]
    assert explicit.add_once(name, epoch=explicit.epoch + 1) == [fenced]
    assert explicit.add_once(name, producer_id=explicit.producer_id + 1, epoch=7) == [mapping]
    assert explicit.describe().state == "Empty"


def test_uninitialized_id_cannot_add_partitions(
    topic: TopicFactory, brokers: Connections, unique_name: NameFactory
) -> None:
    stranger = TransactionalProducer(brokers, unique_name(), VERSION_1)
    code = ErrorCode.invalid_producer_id_mapping
    assert stranger.add_once(topic(), producer_id=1, epoch=0) == [code]


# Requests of brokers (version 4 and later): several transactions, and verification only.


def _transaction(producer: TransactionalProducer, topic: str, *partitions: int) -> dict[str, Any]:
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "topics": [{"name": topic, "partitions": list(partitions)}],
    }


def _codes(transaction: Any) -> dict[int, ErrorCode]:
    topic = only(transaction.topic_results)
    return {p.partition_index: p.partition_error_code for p in topic.results_by_partition}


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_verify_several_transactions_at_once(
    topic: TopicFactory, brokers: Connections, unique_name: NameFactory, version: int
) -> None:
    name = topic(partitions=2)
    first = TransactionalProducer(brokers, unique_name(), VERSION_1).init()
    coordinator = first.coordinator()
    second = first
    while second is first or second.coordinator() is not coordinator:
        second = TransactionalProducer(brokers, unique_name(), VERSION_1)
    second.init()
    second.epoch += 1
    requested = [_transaction(first, name, 0, 1), _transaction(second, name, 0)]
    response = coordinator.call("add_partitions_to_txn", version, transactions=requested)
    assert response.error_code == NONE
    found = {t.transactional_id: _codes(t) for t in response.results_by_transaction}
    assert found == {
        first.transactional_id: {0: NONE, 1: NONE},
        second.transactional_id: {0: ErrorCode.producer_fenced},
    }


@pytest.mark.parametrize("version", [4, 5])
def test_verify_only_adds_nothing(
    topic: TopicFactory, explicit: TransactionalProducer, version: int
) -> None:
    name = topic(partitions=2)
    coordinator = explicit.coordinator()

    def ask(producer_id: int, epoch: int) -> dict[int, ErrorCode]:
        fields = _transaction(explicit, name, 0, 1)
        fields |= {"verify_only": True, "producer_id": producer_id, "producer_epoch": epoch}
        response = coordinator.call("add_partitions_to_txn", version, transactions=[fields])
        return _codes(only(response.results_by_transaction))

    abortable = ErrorCode.transaction_abortable
    identity = (explicit.producer_id, explicit.epoch)
    assert ask(*identity) == {0: abortable, 1: abortable}
    explicit.add(name, 0)
    assert ask(*identity) == {0: NONE, 1: abortable}
    assert added(explicit) == {name: [0]}
    fenced, mapping = ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping
    assert ask(identity[0], identity[1] + 1) == {0: fenced, 1: fenced}
    assert ask(identity[0] + 1, identity[1]) == {0: mapping, 1: mapping}


# Produce to a partition that was not added.


@pytest.mark.parametrize(
    ("version", "error_code"),
    [
        (9, ErrorCode.invalid_txn_state),
        (10, ErrorCode.invalid_txn_state),
        (11, ErrorCode.transaction_abortable),
    ],
)
def test_produce_to_a_partition_that_was_not_added_is_refused(
    raw: RawConnection,
    topic: TopicFactory,
    explicit: TransactionalProducer,
    version: int,
    error_code: ErrorCode,
) -> None:
    name = topic(partitions=2)
    explicit.write(name, "a")
    response = explicit.produce_once(name, "b", partition=1, version=version)
    assert (response.error_code, response.base_offset) == (error_code, -1)
    assert list_offset(raw, name, LATEST, partition=1).offset == 0
    assert added(explicit) == {name: [0]}
    explicit.abort()


def test_produce_outside_of_any_transaction_is_refused(
    raw: RawConnection, topic: TopicFactory, explicit: TransactionalProducer
) -> None:
    name = topic()
    assert explicit.produce_once(name, "a").error_code == ErrorCode.transaction_abortable
    explicit.write(name, "a")
    explicit.commit()
    explicit.await_complete()
    # The transaction has ended, so the late batch is in no transaction.
    assert explicit.produce_once(name, "b").error_code == ErrorCode.transaction_abortable
    assert read_uncommitted(raw, name) == ["a"]


def test_produce_of_version_2_adds_its_partition(
    raw: RawConnection, topic: TopicFactory, implicit: TransactionalProducer
) -> None:
    name = topic(partitions=2)
    assert implicit.describe().state == "Empty"
    assert implicit.produce_once(name, "a").error_code == NONE
    assert (implicit.describe().state, added(implicit)) == ("Ongoing", {name: [0]})
    assert implicit.produce_once(name, "b", partition=1).error_code == NONE
    assert added(implicit) == {name: [0, 1]}
    implicit.commit()
    await_read(raw, name, "a")
    await_read(raw, name, "b", partition=1)


def test_late_produce_of_version_2_has_an_old_epoch(
    raw: RawConnection, topic: TopicFactory, implicit: TransactionalProducer
) -> None:
    """The purpose of KIP-890: a delayed batch cannot become part of the next transaction."""
    name = topic()
    old = implicit.epoch
    implicit.write(name, "a")
    late = implicit.batch("late", sequence=1)
    implicit.abort()
    implicit.await_complete()
    assert implicit.epoch == old + 1
    code = ErrorCode.invalid_producer_epoch
    assert implicit.send_once(name, late).error_code == code
    implicit.write(name, "b")
    assert implicit.send_once(name, late).error_code == code
    implicit.commit()
    await_read(raw, name, "b")


def test_late_produce_of_version_1_after_an_abort_is_refused(
    raw: RawConnection, topic: TopicFactory, explicit: TransactionalProducer
) -> None:
    name = topic()
    explicit.write(name, "a")
    late = explicit.batch("late", sequence=1)
    explicit.abort()
    explicit.await_complete()
    assert explicit.send_once(name, late).error_code == ErrorCode.transaction_abortable
    assert read_uncommitted(raw, name) == ["a"]
    await_stable(raw, name, 2)


# Other rejected batches.


def test_transactional_batch_needs_a_transactional_id(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.add(name)
    producer.transactional_id, kept = None, producer.transactional_id  # type: ignore[assignment]
    batch = producer.batch("a", sequence=0)
    response = producer.send_once(name, batch)
    producer.transactional_id = kept
    assert response.error_code == ErrorCode.transactional_id_authorization_failed
    assert read_uncommitted(raw, name) == []


def test_nontransactional_batch_inside_a_transaction_is_refused(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    response = producer.produce_once(name, "b", is_transactional=False)
    assert response.error_code == ErrorCode.invalid_txn_state
    producer.commit()
    await_read(raw, name, "a")


def test_transactional_producer_may_send_nontransactional_batches(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    assert producer.produce_once(name, "a", is_transactional=False).error_code == NONE
    assert read(raw, name) == ["a"]
    assert producer.describe().state == "Empty"


# Large transactions.


@pytest.mark.full
@pytest.mark.timeout(300)
def test_transaction_over_a_thousand_partitions(
    raw: RawConnection, topic: TopicFactory, brokers: Connections, unique_name: NameFactory
) -> None:
    # Creating one topic with that many partitions exceeds the client's timeout.
    count, names = 143, [topic(partitions=143) for _ in range(7)]
    assert count * len(names) > 1_000
    ended = []
    for generation in (VERSION_1, VERSION_2):
        producer = TransactionalProducer(brokers, unique_name(), generation).init()
        for name in names:
            producer.add(name, *range(count))
            producer.write(name, "a", partition=count // 2)
        assert added(producer) == {name: list(range(count)) for name in names}
        producer.commit()
        producer.await_complete()
        ended.append((COMMIT, producer.producer_id))
    for name, partition in itertools.product(names, range(count)):
        found = [(m.kind, m.producer_id) for m in markers(raw, name, partition=partition)]
        assert found == ended, (name, partition)
    for name in names:
        assert read(raw, name, partition=count // 2) == ["a", "a"]
