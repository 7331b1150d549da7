"""A test of `kill -9` under load: every acknowledged record is stored exactly once.

The page cache survives the death of a process, so this must hold without fsync.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
import pytest

from broker_ref.io.admin import create_topic
from broker_ref.io.process import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "load"
PARTITIONS = 3
ROUNDS = 2
ACKNOWLEDGED_PER_ROUND = 3_000
IN_FLIGHT_MAX = 5_000
PADDING = b"." * 1_000  # Each partition has several segments.
CONFIGS = {"auto.create.topics.enable": "false"}
TIMEOUT_SECONDS = 60.0

Partition = int
Offset = int
Number = int


@dataclass
class Load:
    """An idempotent producer of numbered records, which stores the acknowledged records."""

    bootstrap_servers: str
    acknowledged: dict[tuple[Partition, Offset], Number] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    sent: dict[Partition, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    def __post_init__(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,  # The test causes lost connections.
                "message.timeout.ms": int(TIMEOUT_SECONDS * 1000),
            }
        )
        self._partitions = itertools.cycle(range(PARTITIONS))

    def send_until(self, acknowledged: int) -> None:
        while len(self.acknowledged) < acknowledged and not self.failures:
            while len(self._producer) < IN_FLIGHT_MAX:
                self._send_one()
            self._producer.poll(0.1)

    def finish(self) -> None:
        assert self._producer.flush(TIMEOUT_SECONDS) == 0
        assert self.failures == []

    def _send_one(self) -> None:
        partition = next(self._partitions)
        number = self.sent[partition]
        self.sent[partition] += 1

        def delivered(
            error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
        ) -> None:
            if error is not None:
                self.failures.append(f"record {number} of partition {partition}: {error}")
                return
            offset = message.offset()
            assert offset is not None
            place = (partition, offset)
            if place in self.acknowledged:
                self.failures.append(f"offset {place} was acknowledged for two records")
            self.acknowledged[place] = number

        value = struct.pack(">q", number) + PADDING
        self._producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)


def read_all(bootstrap_servers: str) -> dict[Partition, list[tuple[Offset, Number]]]:
    """Return all records of the topic, in the order of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    found: dict[Partition, list[tuple[Offset, Number]]] = defaultdict(list)
    try:
        consumer.assign(
            [confluent_kafka.TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        )
        unfinished = set(range(PARTITIONS))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while unfinished:
            assert time.monotonic() < deadline, f"partitions {unfinished} are incomplete"
            for message in consumer.consume(10_000, timeout=0.5):
                partition, offset, error = message.partition(), message.offset(), message.error()
                assert partition is not None
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    unfinished.discard(partition)
                    continue
                value = message.value()
                assert offset is not None
                assert value is not None
                found[partition].append((offset, struct.unpack_from(">q", value)[0]))
    finally:
        consumer.close()
    return found


def test_kill_9_neither_loses_nor_duplicates_acknowledged_records(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, configs=CONFIGS, log_level="warning") as broker:
        create_topic(
            broker.bootstrap_servers,
            TOPIC,
            partitions=PARTITIONS,
            configs={"segment.bytes": "1048576"},
        )
        load = Load(broker.bootstrap_servers)
        for round_number in range(1, ROUNDS + 1):
            load.send_until(round_number * ACKNOWLEDGED_PER_ROUND)
            assert load.failures == []
            broker.kill()
            broker.start()
        load.finish()
        found = read_all(broker.bootstrap_servers)
        assert "Traceback" not in broker.logs()

    assert len(load.acknowledged) == sum(load.sent.values())
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(load.sent[partition]))
        assert [number for _, number in records] == list(range(load.sent[partition]))
    on_the_log = {
        (partition, offset): number
        for partition, records in found.items()
        for offset, number in records
    }
    assert on_the_log == load.acknowledged
