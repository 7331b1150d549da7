"""Clients and records for the tests of the client and the sink.

The records are read and written with confluent-kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from pyspark_kafka.client import port
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.native.producer_pool import ProducerPool
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.columns import PRODUCE_SCHEMA
from pyspark_kafka.options.values import ClientOptions, EngineOption
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.transport import Address, Transport, connect

TIMEOUT_S = 30.0
ENGINE: EngineOption = "librdkafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    value: bytes | None = None
    key: bytes | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0


def options(
    bootstrap_servers: str,
    *,
    poll_timeout_ms: int = 30_000,
    engine: EngineOption = "auto",
    **kafka: str,
) -> ClientOptions:
    """Return client options; `delivery_timeout_ms="1"` sets `kafka.delivery.timeout.ms`."""
    settings = {name.replace("_", "."): value for name, value in kafka.items()}
    return ClientOptions(
        bootstrap_servers=bootstrap_servers,
        kafka={"bootstrap.servers": bootstrap_servers, **settings},
        group_id="pyspark-kafka-tests",
        engine=engine,
        poll_timeout_ms=poll_timeout_ms,
        fetch_offset_retry_interval_ms=100,
    )


def reading(
    bootstrap_servers: str, *, poll_timeout_ms: int = 30_000, **kafka: str
) -> KafkaReadClient:
    """Return a client of the engine that the fixture `engine` selects."""
    wanted = options(bootstrap_servers, poll_timeout_ms=poll_timeout_ms, engine=ENGINE, **kafka)
    return open_client(wanted)


class Writes(Protocol):
    """The write methods of `KafkaClient`."""

    def producer(self) -> port.Producer: ...


@dataclass(frozen=True, slots=True)
class _NativeWrites:
    producers: ProducerPool

    def producer(self) -> port.Producer:
        return self.producers.lend()


@contextmanager
def writing(
    bootstrap_servers: str, *, via: str | None = None, clock: Any = None, **kafka: Any
) -> Iterator[Writes]:
    """Yield a client for writing, of the engine that the fixture `engine` selects.

    `via` is the address to which a native client connects, and `clock` is its `Clock`.
    """
    wanted = options(bootstrap_servers, engine=ENGINE, **kafka)
    if via is None and clock is None:
        with open_client(wanted, role="producer") as client:
            yield client
        return
    bootstrap = [Address.parse(each) for each in bootstrap_servers.split(",")]

    def connect_via(address: Address, timeout_s: float) -> Transport:
        return connect(address if via is None else Address.parse(via), timeout_s)

    opening = Dialer(client_id="tests", clock=clock or Clock(), connect=connect_via)
    router = Router(bootstrap, opening)
    settings = ProducerSettings.of(wanted.kafka, NativeSettings.of(wanted, "producer"))
    producers = ProducerPool(router=router, settings=settings, bootstrap_servers=bootstrap_servers)
    try:
        yield _NativeWrites(producers)
    finally:
        producers.close()
        router.close()


def rows(topic: str, values: Sequence[bytes | None], **columns: Sequence[Any]) -> pa.RecordBatch:
    """Return rows for a producer, with columns of `PRODUCE_SCHEMA`."""
    data = {"value": values, "topic": [topic] * len(values), **columns}
    types = {name: PRODUCE_SCHEMA.field(name).type for name in data}
    return pa.RecordBatch.from_pydict({n: pa.array(data[n], types[n]) for n in types})


def producer(bootstrap_servers: str, **properties: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
            "linger.ms": 0,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
    )


def put(one: Producer, topic: str, records: Sequence[Record]) -> None:
    failures: list[Any] = []
    for record in records:
        one.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert one.flush(TIMEOUT_S) == 0
    assert not failures


def write(bootstrap_servers: str, topic: str, records: Sequence[Record], **properties: Any) -> None:
    put(producer(bootstrap_servers, **properties), topic, records)


def read_all(bootstrap_servers: str, topic: str, *, partitions: int = 1) -> list[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 2,
            "group.id": "pyspark-kafka-tests-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    records: list[Record] = []
    ended = 0
    try:
        while ended < partitions:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no message arrived within {TIMEOUT_S} s"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            records.append(_record(message))
    finally:
        consumer.close()
    return sorted(records, key=lambda record: record.partition)


def _record(message: Any) -> Record:
    return Record(
        value=message.value(),
        key=message.key(),
        partition=message.partition(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
    )
