"""Creates and changes the topics of the suite.

Invariant: when a function returns, both connectors see the changed topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from integration.clusters.topics import create_topic, grow_topic
from integration.parity.topics import Batch, Topic

_TIMEOUT_S: Final = 60.0
_POLL_INTERVAL_S: Final = 0.05
_TRANSACTION_TIMEOUT_MS: Final = 900_000


class TopicFiller:
    """Creates, fills and changes topics of one cluster.

    The producers of open transactions stay in memory until the process ends.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._first_server = bootstrap_servers.split(",", maxsplit=1)[0]
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
        self._open: list[Producer] = []

    def create(self, topic: Topic, name: str) -> None:
        """Create a topic with this name and fill it."""
        create_topic(self._first_server, name, partitions=topic.partitions, configs=topic.configs)
        for batch in topic.batches:
            self.append(name, batch)
        if topic.deleted_before:
            self.delete_records(name, topic.deleted_before)

    def append(self, topic: str, batch: Batch) -> None:
        """Append a batch. If `batch` ends a transaction, wait for the transaction marker."""
        producer = self._producer(batch)
        if batch.transaction is not None:
            producer.init_transactions(_TIMEOUT_S)
            producer.begin_transaction()
        failed: list[object] = []

        def on_delivery(error: object, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        for record in batch.records:
            producer.produce(
                topic,
                record.value,
                record.key,
                batch.partition,
                on_delivery=on_delivery,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        if producer.flush(_TIMEOUT_S) or failed:
            raise RuntimeError(f"Records were not written to {topic}: {failed}")
        if batch.transaction == "open":
            self._open.append(producer)
        elif batch.transaction is not None:
            end = self._end_offset(topic, batch.partition) + 1  # the control record
            if batch.transaction == "committed":
                producer.commit_transaction(_TIMEOUT_S)
            else:
                producer.abort_transaction(_TIMEOUT_S)
            _await(lambda: self._last_stable_offset(topic, batch.partition) == end)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for future in self._admin.delete_records(offsets).values():
            future.result(_TIMEOUT_S)

    def add_partitions(self, topic: str, count: int) -> None:
        grow_topic(self._first_server, topic, partitions=count)

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(_TIMEOUT_S)
        _await(lambda: topic not in self._admin.list_topics(timeout=_TIMEOUT_S).topics)

    def await_compaction(self, topic: Topic) -> None:
        """Wait until compaction has removed at least `topic.gaps` records."""
        appended = sum(len(batch.records) for batch in topic.batches)
        _await(lambda: len(self.read(topic.name)) <= appended - topic.gaps)

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        consumer = self._consumer(group)
        committed = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        consumer.commit(offsets=committed, asynchronous=False)
        consumer.close()

    def read(self, topic: str) -> list[Message]:
        """Return all records of a topic, including those of aborted and open transactions."""
        consumer = self._consumer(f"parity-{uuid4()}")
        partitions = self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        ends = {number: self._end_offset(topic, number) for number in partitions}
        ends = {number: end for number, end in ends.items() if end}
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        found: list[Message] = []
        deadline_s = time.monotonic() + _TIMEOUT_S
        while any(end > _position(consumer, topic, number) for number, end in ends.items()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Topic {topic} was not read to its end.")
            message = consumer.poll(_POLL_INTERVAL_S)
            if message is not None:
                if message.error() is not None:
                    raise RuntimeError(f"Topic {topic} cannot be read: {message.error()}")
                found.append(message)
        consumer.close()
        return found

    def _producer(self, batch: Batch) -> Producer:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap_servers,
            "log_level": 2,
            "linger.ms": 0,
            "compression.type": batch.codec,
        }
        if batch.transaction is not None:
            settings["transactional.id"] = f"parity-{uuid4()}"
            settings["transaction.timeout.ms"] = _TRANSACTION_TIMEOUT_MS
        return Producer(settings)

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "log_level": 2,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": "earliest",
            }
        )

    def _end_offset(self, topic: str, partition: int) -> int:
        return self._latest(topic, partition, IsolationLevel.READ_UNCOMMITTED)

    def _last_stable_offset(self, topic: str, partition: int) -> int:
        return self._latest(topic, partition, IsolationLevel.READ_COMMITTED)

    def _latest(self, topic: str, partition: int, level: IsolationLevel) -> int:
        key = TopicPartition(topic, partition)
        query = {key: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        return int(self._admin.list_offsets(query, isolation_level=level)[key].result(30).offset)


def _position(consumer: Consumer, topic: str, partition: int) -> int:
    (found,) = consumer.position([TopicPartition(topic, partition)])
    return found.offset


def _await(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError("The cluster did not apply a change in time.")
        time.sleep(_POLL_INTERVAL_S)
