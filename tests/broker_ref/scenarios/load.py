"""A background producer with acks=all, and a check that no acknowledged record is lost.

`Load` numbers its records per partition. An acknowledged record must be in the log once, at its
offset and in order. The log may or may not contain a failed record.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import confluent_kafka

PADDING: Final = b"." * 200
IN_FLIGHT_MAX: Final = 500
DELIVERY_TIMEOUT_S: Final = 60.0
FOREIGN: Final = -1
"""The number of a record that was not written by a load."""
POLL_S: Final = 0.005

Number = int
Place = tuple[int, int]
"""Partition and offset."""


class Load:
    """A producer that writes records to the partitions of `topic` in turn, until `stop`."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.acknowledged: dict[Place, Number] = {}
        self.acknowledged_somewhere = 0
        self.failures: list[str] = []
        self.sent = dict.fromkeys(range(partitions), 0)
        self._progress = threading.Condition()
        self._is_stopped = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
                "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
                "log_level": 2,  # The tests cause disconnections.
            }
        )

    def run(self) -> None:
        while not self._is_stopped.is_set():
            for partition in self.sent:
                if len(self._producer) < IN_FLIGHT_MAX:
                    self._send(partition)
            self._producer.poll(POLL_S)
        left = self._producer.flush(DELIVERY_TIMEOUT_S)
        if left:
            self.failures.append(f"{left} records have no result")

    def stop(self) -> None:
        self._is_stopped.set()

    def await_more(self, count: int, *, timeout_s: float = DELIVERY_TIMEOUT_S) -> None:
        with self._progress:
            target = len(self.acknowledged) + count
            reached = self._progress.wait_for(
                lambda: len(self.acknowledged) >= target or bool(self.failures), timeout_s
            )
        assert not self.failures, f"{len(self.failures)} failures: {self.failures[:3]}"
        assert reached, f"{len(self.acknowledged)} of {target} records are acknowledged"

    def _send(self, partition: int) -> None:
        number = self.sent[partition]
        self.sent[partition] += 1

        def delivered(
            error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
        ) -> None:
            with self._progress:
                self._record(partition, number, error, message.offset())
                self._progress.notify_all()

        value = struct.pack(">q", number) + PADDING
        self._producer.produce(self.topic, value, partition=partition, on_delivery=delivered)

    def _record(
        self,
        partition: int,
        number: Number,
        error: confluent_kafka.KafkaError | None,
        offset: int | None,
    ) -> None:
        if error is None and offset is None:
            # A later batch was acknowledged, so this one was too; librdkafka has no offset for it.
            self.acknowledged_somewhere += 1
        elif error is not None or offset is None:
            self.failures.append(f"record {number} of partition {partition}: {error}")
        elif (partition, offset) in self.acknowledged:
            self.failures.append(f"offset {offset} of partition {partition} was returned twice")
        else:
            self.acknowledged[partition, offset] = number


@contextmanager
def under_load(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[Load]:
    """Run a load in a thread; at the end all its records are acknowledged."""
    load = Load(bootstrap_servers, topic, partitions)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.stop()
        thread.join(DELIVERY_TIMEOUT_S + 10)
    assert not thread.is_alive()
    assert not load.failures, f"{len(load.failures)} failures: {load.failures[:3]}"


def read_all(bootstrap_servers: str, topic: str, partitions: int) -> dict[Place, Number]:
    """Read all records of the topic, and check the order within each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 2,
        }
    )
    found: dict[Place, Number] = {}
    offsets: dict[int, list[int]] = defaultdict(list)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
        unfinished = set(range(partitions))
        deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
        while unfinished:
            assert time.monotonic() < deadline_s, f"the log ends of {unfinished} were not reached"
            for message in consumer.consume(10_000, timeout=0.5):
                partition, offset, error = message.partition(), message.offset(), message.error()
                value = message.value()
                assert partition is not None
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    unfinished.discard(partition)
                    continue
                assert offset is not None
                assert value is not None
                offsets[partition].append(offset)
                found[partition, offset] = struct.unpack_from(">q", value)[0]
    finally:
        consumer.close()
    for each in offsets.values():
        assert each == list(range(len(each)))
    return found


def await_all_read(load: Load, read: Callable[[], dict[Place, Number]]) -> None:
    """Wait until each acknowledged record is found once, at its offset and in order.

    The high watermark of a newly elected leader may temporarily be lower than its predecessor's.
    """
    assert len(load.acknowledged) + load.acknowledged_somewhere == sum(load.sent.values())
    deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
    while lost := load.acknowledged.items() - (found := read()).items():
        assert time.monotonic() < deadline_s, f"lost or moved: {sorted(lost)[:5]} of {len(lost)}"
    for partition, sent in load.sent.items():
        numbers = [found[place] for place in sorted(found) if place[0] == partition]
        assert [number for number in numbers if number != FOREIGN] == list(range(sent))
