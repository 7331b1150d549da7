"""Tests of old and new clients on one cluster, also with the same transactional id (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.groups import committed
from tests.conformance.isolation import await_read, markers, read
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    Generation,
    TransactionalProducer,
    code_of,
)

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
GENERATION_PAIRS = [(VERSION_1, VERSION_2), (VERSION_2, VERSION_1)]
IDS = ["old-then-new", "new-then-old"]


@pytest.fixture(params=GENERATION_PAIRS, ids=IDS)
def order(request: pytest.FixtureRequest) -> tuple[Generation, Generation]:
    """Return the clients in the order in which they write."""
    made: tuple[Generation, Generation] = request.param
    return made


def test_id_is_used_by_old_and_new_clients_in_turn(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    brokers: Connections,
    order: tuple[Generation, Generation],
) -> None:
    name = topic()
    transactional_id = f"id of {name}"
    expected: list[str] = []
    epochs: list[int] = []
    for number, generation in enumerate(order * 2):
        instance = TransactionalProducer(brokers, transactional_id, generation).init()
        epochs.append(instance.epoch)
        for commit in (True, False, True):
            instance.write(name, f"{number} {commit}")
            instance.commit_offsets(group, name, {0: number})
            instance.end(commit=commit)
            expected += [f"{number} {commit}"] * commit
        instance.await_complete()
        assert committed(raw, group, name)[0][0] == number
    await_read(raw, name, *expected)
    assert epochs == sorted(set(epochs))


def test_new_instance_fences_the_old_and_aborts_its_transaction(
    raw: RawConnection,
    topic: TopicFactory,
    brokers: Connections,
    unique_name: NameFactory,
    order: tuple[Generation, Generation],
) -> None:
    name, transactional_id = topic(), unique_name()
    old, new = (TransactionalProducer(brokers, transactional_id, g) for g in order)
    old.init().write(name, "old")
    new.init().write(name, "new")
    late = old.produce_once(name, "late")
    assert late.error_code == ErrorCode.invalid_producer_epoch
    assert code_of(old.end_once(commit=True)) == ErrorCode.producer_fenced
    new.commit()
    await_read(raw, name, "new")


def test_both_write_to_one_partition_at_once(
    raw: RawConnection, topic: TopicFactory, brokers: Connections, unique_name: NameFactory
) -> None:
    name = topic()
    old = TransactionalProducer(brokers, unique_name(), VERSION_1).init()
    new = TransactionalProducer(brokers, unique_name(), VERSION_2).init()
    expected = []
    for number in range(4):
        for producer, commits in ((old, number % 2 == 0), (new, number % 2 == 1)):
            producer.write(name, f"{number} {producer is new}")
            expected += [f"{number} {producer is new}"] * commits
        old.end(commit=number % 2 == 0)
        new.end(commit=number % 2 == 1)
    await_read(raw, name, *expected)


@pytest.mark.parametrize("transaction_version", [1], indirect=True, ids=["transactions-1"])
def test_version_2_requests_on_a_version_1_cluster(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    brokers: Connections,
    transaction_version: int,
) -> None:
    """The brokers use the version of the request. Only clients check the finalized features."""
    name = topic()
    producer = TransactionalProducer(brokers, f"id of {name}", VERSION_2).init()
    assert code_of(producer.produce_once(name, "a")) == ErrorCode.none
    assert producer.describe().topics == {name: [0]}
    assert producer.commit_offsets_once(group, name, {0: 5}) == [ErrorCode.none]
    producer.commit()
    assert producer.epoch == 1
    await_read(raw, name, "a")
    producer.await_complete()
    assert committed(raw, group, name)[0][0] == 5
    assert [m.producer_epoch for m in markers(raw, name)] == [1]
    producer.abort()
    assert producer.epoch == 2


@pytest.mark.parametrize("commit", [True, False])
def test_old_client_may_end_with_the_new_version(
    raw: RawConnection,
    topic: TopicFactory,
    brokers: Connections,
    unique_name: NameFactory,
    commit: bool,
) -> None:
    """The version of each request counts, because the broker does not store a client's version."""
    name = topic()
    producer = TransactionalProducer(brokers, unique_name(), VERSION_2).init()
    producer.add(name)
    assert code_of(producer.produce_once(name, "a", version=VERSION_1.produce)) == ErrorCode.none
    old = producer.epoch
    producer.end(commit=commit)
    assert producer.epoch == old + 1
    producer.await_complete()
    assert [m.producer_epoch for m in markers(raw, name)] == [old + 1]
    assert read(raw, name) == (["a"] if commit else [])
