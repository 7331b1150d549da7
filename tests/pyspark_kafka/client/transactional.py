"""Transactional producers of the native engine, and functions that read their records.

The clients use both versions of Kafka's transactions. confluent-kafka reads the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as RdTopicPartition
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.native.client import NativeReadClient
from pyspark_kafka.client.native.producer_pool import ProducerPool
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.transactional_client import NativeTransactionalClient
from pyspark_kafka.client.native.transactional_producer import NativeTransactionalProducer
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.transport import Address, Transport, connect
from tests.conformance.eventually import eventually
from tests.pyspark_kafka.client.records import TIMEOUT_S, options

TRANSACTION_TIMEOUT_MS = 60_000


@dataclass(slots=True, kw_only=True)
class Transaction:
    """One transaction of an initialized transactional id, and its producer."""

    client: NativeTransactionalClient
    transactional_id: str
    owner: ProducerIdAndEpoch
    version: TransactionVersion
    producer: NativeTransactionalProducer

    def end(self, *, is_commit: bool) -> ErrorCode | None:
        end = EndTransaction(
            transactional_id=self.transactional_id,
            producer=self.owner,
            is_commit=is_commit,
            version=self.version,
        )
        return self.client.end_transactions([end])[self.transactional_id]

    def commit(self) -> None:
        assert self.end(is_commit=True) is ErrorCode.none

    def abort(self) -> None:
        assert self.end(is_commit=False) is ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Transactions in one cluster; `settings` are `kafka.*` options with `_` instead of dots."""

    client: NativeTransactionalClient
    version: TransactionVersion
    bootstrap: str
    settings: ProducerSettings
    _routers: list[Router] = field(default_factory=list)
    _producers: list[NativeTransactionalProducer] = field(default_factory=list)

    def begin(
        self,
        transactional_id: str,
        *,
        via: str | None = None,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> Transaction:
        """Initialize the id and begin a transaction; `via` is the producer's bootstrap address."""
        owner = self.client.init_producer_id(transactional_id, timeout_ms=timeout_ms)
        if via is None:
            producer = self.client.transactional_producer(transactional_id, owner, self.version)
        else:
            producer = NativeTransactionalProducer.begin(
                self._router(via),
                self.settings,
                self.bootstrap,
                transactional_id,
                owner,
                self.version,
            )
        self._producers.append(producer)
        return Transaction(
            client=self.client,
            transactional_id=transactional_id,
            owner=owner,
            version=self.version,
            producer=producer,
        )

    def _router(self, via: str) -> Router:
        def connect_via(_: Address, timeout_s: float) -> Transport:
            return connect(Address.parse(via), timeout_s)

        opening = Dialer(client_id="tests", clock=Clock(), connect=connect_via)
        router = Router([Address.parse(via)], opening)
        self._routers.append(router)
        return router

    def close(self) -> None:
        """Close producers and connections, and leave the transactions as they are."""
        for producer in self._producers:
            producer.abort()
        for router in self._routers:
            router.close()


@contextmanager
def transactions(
    bootstrap: str, version: TransactionVersion, *, clock: Clock | None = None, **kafka: Any
) -> Iterator[Transactions]:
    """Yield `Transactions` in this cluster, which has this version of transactions."""
    wanted = options(bootstrap, engine="native", **kafka)
    settings = NativeSettings.of(wanted, "producer")
    producing = ProducerSettings.of(wanted.kafka, settings)
    reads = NativeReadClient.of(settings, clock)
    producers = ProducerPool(router=reads.router, settings=producing, bootstrap_servers=bootstrap)
    with NativeTransactionalClient(
        router=reads.router, queries=reads.queries, settings=settings, producers=producers
    ) as client:
        made = Transactions(client=client, version=version, bootstrap=bootstrap, settings=producing)
        try:
            yield made
        finally:
            made.close()


Log = list[tuple[int, bytes | None]]
"""Offsets and values of one partition."""


def stored(
    bootstrap: str, topic: str, *, partitions: int = 1, isolation_level: str = "read_uncommitted"
) -> list[Log]:
    """Return the log of each partition as a consumer with this isolation level reads it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "group.id": "pyspark-kafka-tests-log",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([RdTopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Log] = [[] for _ in range(partitions)]
    ended = 0
    try:
        while ended < partitions:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no message arrived within {TIMEOUT_S} s"
            error = message.error()
            if error is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                found[partition].append((offset, message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                assert error.retriable(), error
    finally:
        consumer.close()
    return found


def seen(bootstrap: str, topic: str, *, partitions: int = 1) -> list[list[bytes | None]]:
    """Return the values of each partition that a `read_committed` consumer reads."""
    logs = stored(bootstrap, topic, partitions=partitions, isolation_level="read_committed")
    return [[value for _, value in log] for log in logs]


def await_seen(bootstrap: str, topic: str, *expected: Sequence[bytes | None]) -> None:
    """Wait until a `read_committed` consumer reads these values from the partitions.

    The markers are written after the response to EndTxn, and a new leader needs fetches of its
    followers before it knows the high watermark.
    """
    last: list[list[bytes | None]] = []

    def so() -> bool:
        last[:] = seen(bootstrap, topic, partitions=len(expected))
        return [len(values) for values in last] == [len(values) for values in expected]

    try:
        eventually(so)
    finally:
        assert last == [list(values) for values in expected]


def ends(bootstrap: str, topic: str, *, partitions: int = 1) -> dict[TopicPartition, int]:
    """Return the offset of the last record of each partition that has records."""
    logs = stored(bootstrap, topic, partitions=partitions)
    return {TopicPartition(topic, number): log[-1][0] for number, log in enumerate(logs) if log}
