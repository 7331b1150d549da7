"""The oracle on a cluster: it reads all targets, committed offsets and open transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from integration.chaos import oracle
from integration.chaos.expected import copied_values
from integration.chaos.oracle import check, read_batches
from tests.conftest import TopicFactory

PARTITIONS = 2
RECORDS = 4
"""The source has this number of records in partition 0, and none in the others."""


def put(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def commit(bootstrap: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2})
    consumer.commit(
        offsets=[TopicPartition(topic, partition, end) for partition, end in offsets.items()],
        asynchronous=False,
    )
    consumer.close()


@pytest.fixture
def source(bootstrap: str, topic: TopicFactory) -> str:
    name = topic(PARTITIONS)
    put(bootstrap, name, *[b"x"] * RECORDS)
    return name


@pytest.mark.slow
def test_each_of_two_targets_is_compared(bootstrap: str, topic: TopicFactory, source: str) -> None:
    targets = [topic(PARTITIONS), topic(PARTITIONS)]
    values = copied_values([RECORDS])
    put(bootstrap, targets[0], *values)
    put(bootstrap, targets[1], *values)
    assert check(bootstrap, source, targets, fed=RECORDS).is_exactly_once
    put(bootstrap, targets[1], b"0:0")
    delivery = check(bootstrap, source, targets, fed=RECORDS)
    assert (delivery.rows, delivery.lost, delivery.duplicates) == (RECORDS, 0, 1)
    incomplete = check(bootstrap, source, [targets[0], topic(PARTITIONS)], fed=RECORDS)
    assert (incomplete.lost, incomplete.duplicates) == (RECORDS, 0)


@pytest.mark.slow
def test_counts_are_compared_with_the_micro_batches(
    bootstrap: str, topic: TopicFactory, source: str
) -> None:
    target, batches = topic(PARTITIONS), [[3, 0], [RECORDS, 0]]
    first = [b"0=1", b"1=1", b"2=1"]
    put(bootstrap, target, *first, *first, b"3=1")
    assert check(bootstrap, source, [target], fed=RECORDS, batches=batches).is_exactly_once
    put(bootstrap, target, b"3=1")
    repeated = check(bootstrap, source, [target], fed=RECORDS, batches=batches)
    assert (repeated.lost, repeated.duplicates) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [({0: RECORDS, 1: 0}, 0), ({0: RECORDS - 1, 1: 0}, 1), ({0: RECORDS}, 1)],
)
def test_committed_offsets_are_compared_with_the_source(
    offsets: Mapping[int, int],
    wrong: int,
    bootstrap: str,
    topic: TopicFactory,
    source: str,
) -> None:
    target, group = topic(PARTITIONS), f"group of {source}"
    put(bootstrap, target, *copied_values([RECORDS]))
    commit(bootstrap, group, source, offsets)
    delivery = check(bootstrap, source, [target], fed=RECORDS, group=group)
    assert len(delivery.wrong_offsets) == wrong
    assert delivery.is_exactly_once == (not wrong)


@pytest.mark.slow
def test_an_open_transaction_blocks_a_target(
    bootstrap: str,
    topic: TopicFactory,
    source: str,
    unique_name: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oracle, "_BLOCKED_AFTER_S", 0.0)
    target = topic(PARTITIONS)
    put(bootstrap, target, *copied_values([RECORDS]))
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique_name(), "log_level": 2}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(target, b"0:0", partition=0)
    producer.flush(30)
    delivery = check(bootstrap, source, [target], fed=RECORDS)
    producer.abort_transaction(30)
    assert (delivery.lost, delivery.duplicates, len(delivery.blocked)) == (0, 0, 1)
    assert not delivery.is_exactly_once


def test_the_micro_batches_are_read_from_a_checkpoint(tmp_path: Path) -> None:
    files = tmp_path / "offsets"
    files.mkdir()
    for number in range(11):
        ends = {"0": number} if number < 10 else {"0": number, "1": 3}
        (files / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'source': ends})}\n")
        (files / f".{number}.crc").touch()
    batches = read_batches(str(tmp_path), "source", partitions=PARTITIONS)
    assert batches == [*([number, 0] for number in range(10)), [10, 3]]
    (files / "5").unlink()
    with pytest.raises(AssertionError, match="batch 5"):
        read_batches(str(tmp_path), "source", partitions=PARTITIONS)
