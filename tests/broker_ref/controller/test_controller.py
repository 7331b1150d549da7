"""What the controller decides, with more brokers than this project starts yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.controller import Controller, NewTopic
from broker_ref.controller.journal import Journal
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid, random_uuid, uuid_text
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.driver import seeded_bytes


def controller(storage: MemoryStorage, *, brokers: tuple[int, ...] = (0, 4, 7)) -> Controller:
    made = Controller(
        journal=Journal(storage, "journal"),
        random_bytes=seeded_bytes(),
        num_partitions=2,
        default_replication_factor=2,
    )
    for broker in brokers:
        made.register_broker(broker_id=broker, host=f"h{broker}", port=1, rack=None)
    return made


def refused(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        action()
    return caught.value.error_code


def test_replicas_are_spread_over_the_brokers() -> None:
    subject = controller(MemoryStorage())
    subject.create_topic(NewTopic(name="t", partition_count=4, replication_factor=2))
    partitions = subject.metadata.topics["t"].partitions
    replicas = [partitions[index].replicas for index in range(4)]
    assert replicas == [(0, 4), (4, 7), (7, 0), (0, 4)]
    assert all(p.leader == p.replicas[0] and p.isr == p.replicas for p in partitions.values())
    subject.create_partitions("t", 6, None, validate_only=False)
    assert [partitions[index].replicas for index in (4, 5)] == [(4, 7), (7, 0)]


def test_defaults_stand_in_for_counts_that_are_not_given() -> None:
    subject = controller(MemoryStorage())
    made = subject.create_topic(NewTopic(name="t"))
    assert (made.partition_count, made.replication_factor) == (2, 2)


def test_more_replicas_than_brokers() -> None:
    subject = controller(MemoryStorage())
    new = NewTopic(name="t", replication_factor=4)
    assert refused(lambda: subject.create_topic(new)) is ErrorCode.invalid_replication_factor
    assert subject.metadata.topics == {}


def test_assignments_by_hand() -> None:
    subject = controller(MemoryStorage())
    subject.create_topic(NewTopic(name="t", assignments=((1, (7, 0)), (0, (4, 7)))))
    partitions = subject.metadata.topics["t"].partitions
    assert [partitions[0].replicas, partitions[1].replicas] == [(4, 7), (7, 0)]
    uneven = NewTopic(name="u", assignments=((0, (4, 7)), (1, (4,))))
    assert refused(lambda: subject.create_topic(uneven)) is ErrorCode.invalid_replica_assignment


def test_the_metadata_is_what_the_journal_says() -> None:
    storage = MemoryStorage()
    subject = controller(storage)
    subject.create_topic(NewTopic(name="kept", configs={"retention.ms": "1"}))
    subject.create_topic(NewTopic(name="gone"))
    subject.delete_topic(subject.metadata.topics["gone"])
    block = subject.allocate_producer_ids(0)
    again = controller(storage, brokers=())
    assert again.metadata.topics == subject.metadata.topics
    assert again.metadata.topics_by_id.keys() == subject.metadata.topics_by_id.keys()
    assert again.metadata.brokers == subject.metadata.brokers
    assert again.allocate_producer_ids(0).start == block.stop


def test_a_started_broker_leads_in_a_new_epoch() -> None:
    subject = controller(MemoryStorage())
    subject.create_topic(NewTopic(name="t", partition_count=3, replication_factor=1))
    subject.elect_leaders(4)
    epochs = {p.leader: p.leader_epoch for p in subject.metadata.topics["t"].partitions.values()}
    assert epochs == {0: 0, 4: 1, 7: 0}


def test_broker_epochs_rise_with_every_registration() -> None:
    storage = MemoryStorage()
    controller(storage)
    again = controller(storage, brokers=(4,))
    assert {b.broker_id: b.broker_epoch for b in again.metadata.brokers.values()} == {
        0: 0,
        4: 1,
        7: 0,
    }


def test_ids_that_kafka_reserves_are_never_drawn() -> None:
    dash = bytes([0b11111000]) + bytes(15)
    good = bytes(range(16))
    draws = iter([dash, good])
    drawn = random_uuid(lambda _: next(draws))
    assert drawn.version == 4
    assert not uuid_text(drawn).startswith("-")
    assert drawn.bytes[:6] == good[:6]
    assert drawn not in (Uuid(int=0), Uuid(int=1))


def test_a_compacted_journal_says_the_same_and_remembers_what_is_left_of_removed_topics() -> None:
    storage = MemoryStorage()
    subject = controller(storage)
    subject.create_topic(NewTopic(name="t", configs={"retention.ms": "1"}))
    for name in ("gone", "left"):
        subject.create_topic(NewTopic(name=name))
    gone, left = (subject.metadata.topics[name] for name in ("gone", "left"))
    subject.delete_topic(gone)
    subject.delete_topic(left)
    subject.elect_leaders(4)
    block = subject.allocate_producer_ids(0)
    subject.compact_journal(undeleted=[left.topic_id])
    again = controller(storage, brokers=())
    assert again.metadata.topics == subject.metadata.topics
    assert again.metadata.brokers == subject.metadata.brokers
    assert again.metadata.removed_topics == {left.topic_id}
    assert again.allocate_producer_ids(0).start == block.stop
