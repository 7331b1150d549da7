"""Tests of the operator APIs: list transactions and producers, abort hanging transactions.

See KIP-664.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.isolation import (
    ABORT,
    COMMIT,
    await_stable,
    last_stable_offset,
    markers,
    read,
)
from tests.conformance.transaction_states import describe_transactions
from tests.conformance.transactions import Connections, TransactionalProducer, code_of
from tests.conformance.wire import LATEST, list_offset, only, served

TopicFactory = Callable[..., str]
ProducerFactory = Callable[..., TransactionalProducer]
NONE = ErrorCode.none
OPERATOR_EPOCH = -1
"""The coordinator epoch of a marker that an operator writes, if the partition has none yet."""


# DescribeTransactions.


def test_description_shows_the_state_of_the_transaction(
    topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic(partitions=2)
    found = producer.describe()
    assert (found.error_code, found.state, found.start_ms) == (NONE, "Empty", -1)
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert found.timeout_ms == producer.timeout_ms
    producer.write(name, "a", partition=1)
    found = producer.describe()
    assert (found.state, found.topics) == ("Ongoing", {name: [1]})
    assert 0 <= time.time() * 1000 - found.start_ms < 60_000
    start_ms = found.start_ms
    producer.commit()
    found = producer.await_state("CompleteCommit")
    assert (found.topics, found.start_ms) == ({}, start_ms)
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)


def test_ids_are_described_one_by_one(
    producer: TransactionalProducer, unique_name: Callable[[], str]
) -> None:
    coordinator = producer.coordinator()
    mine, stranger = producer.transactional_id, unique_name()
    while TransactionalProducer(
        producer.brokers, stranger, producer.generation
    ).coordinator() is not (coordinator):
        stranger = unique_name()
    found = describe_transactions(coordinator, mine, stranger, "")
    assert [(f.transactional_id, f.error_code) for f in found] == [
        (mine, NONE),
        (stranger, ErrorCode.transactional_id_not_found),
        ("", ErrorCode.invalid_request),
    ]


# ListTransactions.


def listed(raw: RawConnection, *, version: int = 2, **filters: Any) -> dict[str, tuple[str, int]]:
    """Return (state, producer id) by transactional id, from one coordinator."""
    response = raw.call("list_transactions", version, **filters)
    assert response.error_code == NONE
    return {
        t.transactional_id: (t.transaction_state, t.producer_id)
        for t in response.transaction_states
    }


@pytest.fixture
def siblings(new_producer: ProducerFactory) -> list[TransactionalProducer]:
    """Return two producers with the same coordinator and without transactions."""
    first = new_producer()
    second = new_producer()
    while second.coordinator() is not first.coordinator():
        second = new_producer()
    return [first, second]


def test_coordinator_lists_what_it_coordinates(
    topic: TopicFactory, cluster: Cluster, siblings: list[TransactionalProducer]
) -> None:
    idle, busy = siblings
    busy.write(topic(), "a")
    coordinator = idle.coordinator()
    for version in served(coordinator, "list_transactions"):
        found = listed(coordinator, version=version)
        assert found[idle.transactional_id] == ("Empty", idle.producer_id), version
        assert found[busy.transactional_id] == ("Ongoing", busy.producer_id), version
    for broker_id in cluster.broker_ids:
        other = idle.brokers.to(broker_id)
        if other is not coordinator:
            assert not {idle.transactional_id, busy.transactional_id} & listed(other).keys()
    busy.commit()
    busy.await_complete()
    assert listed(coordinator)[busy.transactional_id][0] == "CompleteCommit"


def test_filters_of_states_and_producer_ids(
    topic: TopicFactory, siblings: list[TransactionalProducer]
) -> None:
    idle, busy = siblings
    busy.write(topic(), "a")
    coordinator = idle.coordinator()
    both = {idle.transactional_id, busy.transactional_id}
    ids = [idle.producer_id, busy.producer_id]

    def found(**filters: Any) -> set[str]:
        return listed(coordinator, **filters).keys() & both

    assert found(state_filters=["Ongoing"]) == {busy.transactional_id}
    assert found(state_filters=["Ongoing", "Empty"]) == both
    assert found(state_filters=["CompleteAbort"]) == set()
    assert found(producer_id_filters=ids) == both
    assert found(producer_id_filters=ids[:1]) == {idle.transactional_id}
    assert found(producer_id_filters=ids[:1], state_filters=["Ongoing"]) == set()


def test_unknown_state_filters_are_returned(siblings: list[TransactionalProducer]) -> None:
    coordinator = siblings[0].coordinator()
    response = coordinator.call("list_transactions", 2, state_filters=["Foo", "ongoing", "Ongoing"])
    assert (response.error_code, sorted(response.unknown_state_filters)) == (
        NONE,
        ["Foo", "ongoing"],
    )
    response = coordinator.call("list_transactions", 2, state_filters=["Foo"])
    assert (response.unknown_state_filters, response.transaction_states) == (("Foo",), ())


def test_duration_filter_keeps_longer_transactions(
    topic: TopicFactory, siblings: list[TransactionalProducer]
) -> None:
    _, busy = siblings
    busy.write(topic(), "a")
    coordinator = busy.coordinator()
    mine = {busy.transactional_id}
    assert listed(coordinator, duration_filter=-1).keys() >= mine
    assert listed(coordinator, duration_filter=3_600_000).keys().isdisjoint(mine)
    started_ms = busy.describe().start_ms
    while time.time() * 1000 - started_ms < 50:
        time.sleep(0.01)
    assert listed(coordinator, duration_filter=20).keys() >= mine


def test_pattern_matches_the_whole_id(siblings: list[TransactionalProducer]) -> None:
    first, second = siblings
    coordinator = first.coordinator()
    whole = first.transactional_id.replace("[", ".").replace("]", ".")
    assert listed(coordinator, transactional_id_pattern=whole).keys() == {first.transactional_id}
    assert listed(coordinator, transactional_id_pattern=whole[:-1]) == {}
    both = {first.transactional_id, second.transactional_id}
    assert listed(coordinator, transactional_id_pattern="").keys() >= both
    assert listed(coordinator, transactional_id_pattern="test_pattern.*").keys() >= both
    for invalid in ("(", "a{1001}", "(?=a)"):
        response = coordinator.call("list_transactions", 2, transactional_id_pattern=invalid)
        assert response.error_code == ErrorCode.invalid_regular_expression, invalid


def test_pattern_dot_does_not_match_a_newline(
    new_producer: ProducerFactory, unique_name: Callable[[], str]
) -> None:
    odd = new_producer(f"{unique_name()}\n")
    coordinator = odd.coordinator()
    assert odd.transactional_id in listed(coordinator, transactional_id_pattern="")
    assert odd.transactional_id not in listed(coordinator, transactional_id_pattern=".*")
    assert odd.transactional_id in listed(coordinator, transactional_id_pattern="(?s).*")


# DescribeProducers.


def producers_of(raw: RawConnection, topic: str, partition: int = 0) -> Any:
    requested = [{"name": topic, "partition_indexes": [partition]}]
    return only(only(raw.call("describe_producers", 0, topics=requested).topics).partitions)


def the_producer(raw: RawConnection, topic: str, producer: TransactionalProducer) -> Any:
    response = producers_of(raw, topic)
    assert response.error_code == NONE
    return only([p for p in response.active_producers if p.producer_id == producer.producer_id])


def test_describe_producers_of_a_partition(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    assert producers_of(raw, name).active_producers == ()
    first, second = new_producer(), new_producer()
    first.write(name, "a", "b")
    second.write(name, "c")
    first.write(name, "d")
    found = the_producer(raw, name, first)
    assert (found.producer_epoch, found.last_sequence) == (first.epoch, 2)
    assert (found.current_txn_start_offset, found.coordinator_epoch) == (0, -1)
    assert abs(time.time() * 1000 - found.last_timestamp) < 60_000
    assert the_producer(raw, name, second).current_txn_start_offset == 2
    first.commit()
    first.await_complete()
    found = the_producer(raw, name, first)
    bumped = first.generation.bumps_epoch
    # In version 2 the marker starts the next epoch, which has no records yet.
    assert (found.producer_epoch, found.last_sequence) == (first.epoch, -1 if bumped else 2)
    assert found.current_txn_start_offset == -1
    assert found.coordinator_epoch >= 0
    second.abort()


def test_unknown_partitions_have_no_producers(
    raw: RawConnection,
    topic: TopicFactory,
    brokers: Connections,
    cluster: Cluster,
    unique_name: Callable[[], str],
) -> None:
    name = topic()
    unknown = ErrorCode.unknown_topic_or_partition
    assert producers_of(raw, name, 1).error_code == unknown
    assert producers_of(raw, unique_name()).error_code == unknown
    assert producers_of(raw, "no name").error_code == ErrorCode.invalid_topic_exception
    for broker_id in cluster.broker_ids[1:]:
        response = producers_of(brokers.to(broker_id), name)
        assert response.error_code == ErrorCode.not_leader_or_follower


# WriteTxnMarkers, which the Java tool uses to abort a hanging transaction.


def write_marker(
    raw: RawConnection,
    topic: str,
    *,
    producer_id: int,
    epoch: int,
    commit: bool = False,
    coordinator_epoch: int = OPERATOR_EPOCH,
    partition: int = 0,
    version: int = 1,
    **more: int,
) -> ErrorCode:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
        **more,
    }
    response = only(raw.call("write_txn_markers", version, markers=[marker]).markers)
    assert response.producer_id == producer_id
    return code_of(only(only(response.topics).partitions))


def test_hanging_transaction_is_aborted_with_a_marker(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    hanging = the_producer(raw, name, producer)
    assert hanging.current_txn_start_offset == 0
    code = write_marker(
        raw,
        name,
        producer_id=hanging.producer_id,
        epoch=hanging.producer_epoch,
        coordinator_epoch=hanging.coordinator_epoch,
    )
    assert code == NONE
    await_stable(raw, name, 2)
    assert read(raw, name) == []
    assert the_producer(raw, name, producer).current_txn_start_offset == -1
    (marker,) = markers(raw, name)
    assert (marker.kind, marker.coordinator_epoch) == (ABORT, OPERATOR_EPOCH)
    # The coordinator does not know about the marker, so the producer may continue and commit.
    assert producer.describe().state == "Ongoing"
    producer.write(name, "b")
    producer.commit()
    producer.await_complete()
    assert read(raw, name) == ["b"]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (5, -1)])
def test_marker_without_a_valid_producer_is_refused(
    raw: RawConnection, topic: TopicFactory, producer_id: int, epoch: int
) -> None:
    name = topic()
    code = write_marker(raw, name, producer_id=producer_id, epoch=epoch)
    assert code == ErrorCode.unknown_server_error
    assert list_offset(raw, name, LATEST).offset == 0


def test_marker_of_an_older_coordinator_is_refused(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    who: dict[str, Any] = {"producer_id": producer.producer_id, "epoch": producer.epoch}
    assert write_marker(raw, name, coordinator_epoch=10, commit=True, **who) == NONE
    fenced = ErrorCode.transaction_coordinator_fenced
    assert write_marker(raw, name, coordinator_epoch=9, **who) == fenced
    assert write_marker(raw, name, coordinator_epoch=OPERATOR_EPOCH, **who) == fenced
    assert write_marker(raw, name, coordinator_epoch=10, **who) == NONE
    assert write_marker(raw, name, coordinator_epoch=11, **who) == NONE
    assert [m.kind for m in markers(raw, name)] == [COMMIT, ABORT, ABORT]
    # A marker without an open transaction changes nothing.
    assert (read(raw, name), last_stable_offset(raw, name)) == (["a"], 4)
    assert the_producer(raw, name, producer).coordinator_epoch == 11


def test_marker_of_an_older_epoch_is_refused(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    old = new_producer()
    new = new_producer(old.transactional_id)
    new.write(name, "a")
    code = write_marker(raw, name, producer_id=old.producer_id, epoch=old.epoch)
    assert code == ErrorCode.invalid_producer_epoch
    assert the_producer(raw, name, new).current_txn_start_offset == 0
    new.commit()


def test_marker_with_a_higher_epoch_ends_the_transaction_and_fences(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    code = write_marker(raw, name, producer_id=producer.producer_id, epoch=producer.epoch + 1)
    assert code == NONE
    await_stable(raw, name, 2)
    late = producer.produce_once(name, "b")
    assert late.error_code == ErrorCode.invalid_producer_epoch


def test_marker_of_version_2_must_have_a_higher_epoch(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    """Otherwise a delayed marker could end the next transaction (KIP-1228)."""
    name = topic()
    producer.write(name, "a")
    who: dict[str, Any] = {"producer_id": producer.producer_id, "coordinator_epoch": 0}
    second: dict[str, Any] = {"version": 2, "transaction_version": 2, **who}
    code = write_marker(raw, name, epoch=producer.epoch, **second)
    assert code == ErrorCode.invalid_producer_epoch
    assert last_stable_offset(raw, name) == 0
    assert write_marker(raw, name, epoch=producer.epoch + 1, **second) == NONE
    await_stable(raw, name, 2)


def test_marker_of_version_1_may_have_the_same_epoch(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a")
    code = write_marker(
        raw,
        name,
        producer_id=producer.producer_id,
        epoch=producer.epoch,
        coordinator_epoch=0,
        version=2,
        transaction_version=1,
    )
    assert code == NONE
    await_stable(raw, name, 2)


def test_marker_of_an_unknown_producer_is_written(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    assert write_marker(raw, name, producer_id=producer.producer_id, epoch=3) == NONE
    found = the_producer(raw, name, producer)
    assert (found.producer_epoch, found.last_sequence) == (3, -1)
    assert last_stable_offset(raw, name) == 1


def test_markers_get_a_result_for_each_partition(
    raw: RawConnection,
    topic: TopicFactory,
    brokers: Connections,
    cluster: Cluster,
    new_producer: ProducerFactory,
) -> None:
    name = topic(partitions=2)
    first, second = new_producer(), new_producer()
    first.write(name, "a", partition=0)
    first.write(name, "a", partition=1)
    second.write(name, "b", partition=1)
    requested = [
        {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transaction_result": True,
            "coordinator_epoch": 0,
            "topics": [{"name": name, "partition_indexes": partitions}],
        }
        for producer, partitions in ((first, [0, 1, 2]), (second, [1]))
    ]
    response = raw.call("write_txn_markers", 1, markers=requested)
    unknown = ErrorCode.unknown_topic_or_partition
    found = {
        m.producer_id: {p.partition_index: p.error_code for p in only(m.topics).partitions}
        for m in response.markers
    }
    assert found == {
        first.producer_id: {0: NONE, 1: NONE, 2: unknown},
        second.producer_id: {1: NONE},
    }
    assert read(raw, name, partition=0) == ["a"]
    assert read(raw, name, partition=1) == ["a", "b"]
    for broker_id in cluster.broker_ids[1:]:
        who: dict[str, Any] = {"producer_id": first.producer_id, "epoch": first.epoch}
        assert write_marker(brokers.to(broker_id), name, **who) == unknown
    assert raw.call("write_txn_markers", 1, markers=[]).markers == ()
