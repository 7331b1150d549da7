"""Adds a failpoint before and after each request from a client.

Tests use the failpoints to kill or stall the process, or to raise an error, between any two
requests. The failpoints are in a wrapper, so tests run the unchanged code of the protocol and the
client. Invariant: every call is forwarded to the wrapped client. The name of a failpoint contains
the name of the client's method, or `produce` for a producer's `send`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

import pyarrow as pa
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.port import Producer
from pyspark_kafka.client.transactional_port import TransactionalClient, TransactionalProducer
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from pyspark_kafka.sink.exactly_once.steps import request

_Producer = TypeVar("_Producer", bound=Producer)


class FailpointProducer(Generic[_Producer]):
    """A producer with a failpoint before and after each request."""

    def __init__(self, producer: _Producer) -> None:
        self._producer = producer

    def send(self, batch: pa.RecordBatch) -> None:
        with request("produce"):
            self._producer.send(batch)

    def flush(self) -> None:
        with request("flush"):
            self._producer.flush()

    def close(self) -> None:
        self._producer.close()

    def abort(self) -> None:
        self._producer.abort()


class FailpointTransactionalProducer(FailpointProducer[TransactionalProducer]):
    """A transactional producer with a failpoint before and after each request."""

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        return self._producer.last_offsets

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        with request("send_offsets"):
            self._producer.send_offsets(group_id, offsets)


class FailpointClient:
    """A `TransactionalClient` with a failpoint before and after each request."""

    def __init__(self, client: TransactionalClient) -> None:
        self._client = client

    def transaction_version(self) -> TransactionVersion:
        with request("transaction_version"):
            return self._client.transaction_version()

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        with request("init_producer_id"):
            return self._client.init_producer_id(
                transactional_id, timeout_ms=timeout_ms, expected=expected
            )

    def init_producer_ids(
        self, transactional_ids: Collection[str], *, timeout_ms: int
    ) -> Mapping[str, ProducerIdAndEpoch]:
        with request("init_producer_ids"):
            return self._client.init_producer_ids(transactional_ids, timeout_ms=timeout_ms)

    def end_transactions(
        self, ends: Collection[EndTransaction], *, timeout_ms: float | None = None
    ) -> Mapping[str, ErrorCode | None]:
        with request("end_transactions"):
            return self._client.end_transactions(ends, timeout_ms=timeout_ms)

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        with request("describe_transactions"):
            return self._client.describe_transactions(transactional_ids)

    def list_transactions(
        self, id_prefix: str, *states: TransactionState
    ) -> Sequence[TransactionListing]:
        with request("list_transactions"):
            return self._client.list_transactions(id_prefix, *states)

    def transactional_producer(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
    ) -> FailpointTransactionalProducer:
        return FailpointTransactionalProducer(
            self._client.transactional_producer(transactional_id, producer, version)
        )

    def producer(self) -> FailpointProducer[Producer]:
        return FailpointProducer(self._client.producer())

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        with request("read_log"):
            yield from self._client.read_log(partition, start_offset, end_offset)

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> bool:
        with request("create_topic"):
            return self._client.create_topic(
                topic,
                partition_count=partition_count,
                replication_factor=replication_factor,
                config=config,
            )

    def topic_config(self, topic: str) -> Mapping[str, str]:
        with request("topic_config"):
            return self._client.topic_config(topic)

    def broker_config(self) -> Mapping[str, str] | None:
        with request("broker_config"):
            return self._client.broker_config()

    def replication_of(self, topic: str) -> int:
        with request("replication_of"):
            return self._client.replication_of(topic)

    def broker_count(self) -> int:
        with request("broker_count"):
            return self._client.broker_count()

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        with request("commit_offsets"):
            self._client.commit_offsets(group_id, offsets)

    def list_topics(self) -> Collection[str]:
        with request("list_topics"):
            return self._client.list_topics()

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        with request("describe_topics"):
            return self._client.describe_topics(topics)

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        with request("list_offsets"):
            return self._client.list_offsets(queries, isolation_level)

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        with request("committed_offsets"):
            return self._client.committed_offsets(group_id, partitions)

    @property
    def checks_topic_ids(self) -> bool:
        return self._client.checks_topic_ids

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        with request("fetch"):
            yield from self._client.fetch(fetch_range, columns, isolation_level, topic_id=topic_id)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
