"""Tests of clients during broker failures: no acknowledged record is lost or duplicated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.classic_members import ClassicMember, settle
from tests.conformance.consumer_members import ConsumerMember, describe
from tests.conformance.eventually import eventually
from tests.conformance.groups import await_coordinator, commit, committed, find_coordinator
from tests.conformance.nodes import BROKERS, Nodes
from tests.conformance.wire import append, only, produce

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]
DELIVERY_TIMEOUT_S = 90.0


class Load:
    """An idempotent producer that writes ascending numbers until it is stopped."""

    def __init__(self, nodes: Nodes, topic: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": nodes.cluster.bootstrap_servers,
                "log_level": 2,
                "enable.idempotence": True,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._is_stopped = threading.Event()
        self.acknowledged: list[bytes] = []
        self.errors: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._is_stopped.is_set():
            self._producer.produce(self._topic, b"%d" % number, partition=0, on_delivery=self._on)
            number += 1
            self._producer.poll(0.005)
        assert self._producer.flush(DELIVERY_TIMEOUT_S) == 0

    def stop(self) -> None:
        self._is_stopped.set()

    def _on(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.errors.append(str(error))


@contextmanager
def load_on(nodes: Nodes, topic: str) -> Iterator[Load]:
    """Run a producer in the background; at the end the brokers have acknowledged all records."""
    load = Load(nodes, topic)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        eventually(lambda: len(load.acknowledged) >= 20)
        yield load
        more = len(load.acknowledged) + 20
        eventually(lambda: len(load.acknowledged) >= more, timeout_s=60)
    finally:
        load.stop()
        thread.join(DELIVERY_TIMEOUT_S + 10)
    assert load.errors == []


def read_values(nodes: Nodes, topic: str, count: int) -> list[bytes]:
    """Return the first `count` values of partition 0, with librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": nodes.cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": "reader",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return [message.value() or b"" for message in _take(consumer, count)]
    finally:
        consumer.close()


def _take(consumer: confluent_kafka.Consumer, count: int) -> list[confluent_kafka.Message]:
    taken: list[confluent_kafka.Message] = []
    deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
    while len(taken) < count:
        assert time.monotonic() < deadline_s, f"{len(taken)} of {count} records arrived"
        messages = consumer.consume(count - len(taken), timeout=1.0)
        taken += [message for message in messages if message.error() is None]
    return taken


def test_killed_leader_loses_and_duplicates_nothing_acknowledged(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **{"min.insync.replicas": "2"})
    before = nodes.known(name)
    with load_on(nodes, name) as load:
        nodes.kill(1)
        after = nodes.await_leader(name, 2, 3)
    assert after.leader_epoch > before.leader_epoch
    assert 1 not in after.isr
    # The log contains each acknowledged number exactly once, in order.
    assert read_values(nodes, name, len(load.acknowledged)) == load.acknowledged
    nodes.start(1)
    nodes.await_isr(name, 1, 2, 3)


def test_stopped_broker_hands_over_its_leadership_first(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), [1, 2, 3], **{"min.insync.replicas": "2"})
    with load_on(nodes, name) as load:
        nodes.stop(1)
        # A controlled shutdown moves the leadership first, so the clients see no timeout.
        after = nodes.known(name)
        assert after.leader in (2, 3)
        assert after.isr == {2, 3}
    assert read_values(nodes, name, len(load.acknowledged)) == load.acknowledged


def test_consumer_continues_with_the_next_leader(nodes: Nodes, unique_name: NameFactory) -> None:
    name = nodes.create(unique_name(), [1, 2, 3])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": nodes.cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": unique_name(),
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
        append(nodes.to(1), name, batch(values("a", "b")))
        assert [m.value() for m in _take(consumer, 2)] == [b"a", b"b"]
        nodes.kill(1)
        leader = nodes.await_leader(name, 2, 3).leader
        served = ErrorCode.none
        last = batch(values("c"))
        eventually(lambda: produce(nodes.to(leader), name, last).error_code == served)
        message = only(_take(consumer, 1))
        assert (message.value(), message.offset()) == (b"c", 2)
    finally:
        consumer.close()


def coordinator_of(nodes: Nodes, group: str) -> int:
    return int(only(find_coordinator(nodes.any(), group).coordinators).node_id)


def await_other_coordinator(nodes: Nodes, group: str, gone: int) -> int:
    """Return the new coordinator of the group, once it has loaded the offsets."""
    eventually(lambda: coordinator_of(nodes, group) not in (gone, -1), timeout_s=60)
    found = coordinator_of(nodes, group)
    await_coordinator(nodes.to(found), group)
    return found


def test_committed_offsets_survive_their_coordinator(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name, group = nodes.create(unique_name(), [1, 2, 3]), unique_name()
    find_coordinator(nodes.any(), group)
    eventually(lambda: coordinator_of(nodes, group) in BROKERS)
    first = coordinator_of(nodes, group)
    await_coordinator(nodes.to(first), group)
    for offset in (5, 7):
        code = commit(nodes.to(first), group, name, offset, metadata="m", leader_epoch=0)
        assert code == ErrorCode.none
    # A broker that is not the coordinator returns NOT_COORDINATOR.
    stranger = next(b for b in BROKERS if b != first)
    assert commit(nodes.to(stranger), group, name, 9) == ErrorCode.not_coordinator
    member = ConsumerMember(nodes.to(stranger), group, name)
    valid: dict[str, Any] = {
        "rebalance_timeout": 1000,
        "subscribed_topic_names": [name],
        "topic_partitions": [],
    }
    assert member.code(**valid) == ErrorCode.not_coordinator
    unsupported = member.code(**valid, server_assignor="other")
    assert unsupported == ErrorCode.unsupported_assignor
    nodes.kill(first)

    def second() -> RawConnection:
        # On a busy machine, the coordinator can move again.
        return nodes.to(await_other_coordinator(nodes, group, first))

    # The new leader has to receive fetches of its followers before it can return the last commit.
    eventually(lambda: committed(second(), group, name) == [(7, "m", 0)])
    eventually(lambda: commit(second(), group, name, 8) == ErrorCode.none)
    eventually(lambda: committed(second(), group, name) == [(8, "", -1)])


def test_group_continues_when_its_coordinator_is_killed(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    name, group = nodes.create(unique_name(), [1, 2, 3]), unique_name()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": nodes.cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # The session outlasts a failover, so that the member stays in the group.
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 500,
        }
    )
    try:
        consumer.subscribe([name])
        append(nodes.to(1), name, batch(values("a")))
        consumer.commit(message=only(_take(consumer, 1)), asynchronous=False)
        gone = coordinator_of(nodes, group)
        nodes.kill(gone)
        await_other_coordinator(nodes, group, gone)
        leader = nodes.await_leader(name, *(b for b in BROKERS if b != gone)).leader
        served, second = ErrorCode.none, batch(values("b"))
        eventually(lambda: produce(nodes.to(leader), name, second).error_code == served)
        # The consumer does not read committed records again.
        message = only(_take(consumer, 1))
        assert (message.value(), message.offset()) == (b"b", 1)
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    found = coordinator_of(nodes, group)
    assert committed(nodes.to(found), group, name)[0][0] == 2


def test_members_of_both_protocols_survive_their_coordinator(
    nodes: Nodes, unique_name: NameFactory
) -> None:
    """KIP-848: the new coordinator knows the epochs and the assignments of a consumer group."""
    name, group = nodes.create(unique_name(), [1, 2, 3], [2, 3, 1], [3, 1, 2]), unique_name()
    find_coordinator(nodes.any(), group)
    eventually(lambda: coordinator_of(nodes, group) in BROKERS)
    first = coordinator_of(nodes, group)
    await_coordinator(nodes.to(first), group)
    consumers = [ConsumerMember(nodes.to(first), group, name) for _ in range(2)]
    with ClassicMember(nodes.to(first), group, name) as classic:
        for consumer in consumers:
            consumer.join()
        classic.join()
        classic.sync()
        settle(*consumers, classic)
        before = describe(nodes.to(first), group)
        epoch = consumers[0].epoch
        nodes.kill(first)
        second = await_other_coordinator(nodes, group, first)
        raw = nodes.to(second)
        # The description contains only records below the high watermark, which lags at first.
        eventually(lambda: describe(raw, group) == before)
        assert (before.group_state, before.group_epoch) == ("Stable", epoch)
        for member in consumers:
            member.raw = raw
            # The members keep their assignments without rejoining.
            assert (member.heartbeat().assignment, member.epoch) == (None, epoch)
        classic.connect_to(raw)
        assert classic.heartbeat() == ErrorCode.none
        for offset, changed in ((7, {}), (8, {"generation_id_or_member_epoch": epoch - 1})):
            partition = min(classic.owned)
            code = commit(
                raw, group, name, offset, partition=partition, **classic.identity() | changed
            )
            assert code == (ErrorCode.illegal_generation if changed else ErrorCode.none)
        consumers[0].leave()
        settle(consumers[1], classic)
        assert describe(raw, group).group_epoch == epoch + 1
