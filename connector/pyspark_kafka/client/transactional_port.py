"""The `TransactionalClient` interface, which only the `native` engine implements.

The interface separates the commit protocol (`sink.exactly_once`) from the engine. librdkafka cannot
implement the interface, because librdkafka cannot continue with a producer id that another process
initialized. Implementations retry retriable errors for `kafka.default.api.timeout.ms`, for example
while a coordinator moves or loads, a broker restarts, or transaction markers are being written.
Invariant: every call is bounded in time, and an unknown outcome is returned as unknown, never as
success or failure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.port import KafkaClient, Producer
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)


class TransactionalProducer(Producer, Protocol):
    """A producer for one transaction, which starts with the first row.

    The producer never ends the transaction: `abort` only closes the producer. In addition to the
    errors of `Producer`, it raises `ProducerFencedError`.
    """

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        """The offset of the last record written to each partition. Valid only after `flush`."""

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with this transaction (AddOffsetsToTxn, TxnOffsetCommit)."""


class TransactionalClient(KafkaClient, Protocol):
    """The requests of the commit protocol.

    Each request raises `AccessError` if the principal lacks a required ACL.
    """

    def transaction_version(self) -> TransactionVersion:
        """Return 2 if the finalized feature `transaction.version` is 2 or higher, otherwise 1."""

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """Fence other producers of this transactional id and end its transaction (InitProducerId).

        Returns only after the markers of that transaction are written. If `expected` is given
        (KIP-360), raises `ProducerFencedError` if another producer owns the transactional id. With
        transaction version 1, this error is also raised if the transactional id had an open
        transaction, which the coordinator aborts. Raises `OptionError` if the timeout exceeds the
        brokers' limit (INVALID_TRANSACTION_TIMEOUT).
        """

    def init_producer_ids(
        self, transactional_ids: Collection[str], *, timeout_ms: int
    ) -> Mapping[str, ProducerIdAndEpoch]:
        """Send InitProducerId requests for several transactional ids in parallel."""

    def end_transactions(
        self, ends: Collection[EndTransaction], *, timeout_ms: float | None = None
    ) -> Mapping[str, ErrorCode | None]:
        """Send EndTxn for all transactional ids in parallel. Return the final error code for each.

        Retriable error codes, such as CONCURRENT_TRANSACTIONS and NOT_COORDINATOR, are retried.
        None means that no final response arrived in time, so the outcome is unknown. No request is
        sent later than `timeout_ms` after the call.
        """

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        """Describe transactions. The result omits transactional ids that do not exist."""

    def list_transactions(
        self, id_prefix: str, *states: TransactionState
    ) -> Sequence[TransactionListing]:
        """List the transactions whose transactional id starts with `id_prefix`.

        If `states` are given, list only transactions in these states.

        The result contains the transactions of all brokers that respond. Brokers silently omit
        transactional ids for which the principal lacks the DESCRIBE ACL.
        """

    def transactional_producer(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
    ) -> TransactionalProducer:
        """Return a producer for one transaction. The transactional id must be initialized."""

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        """Yield all batches from `start_offset` to `end_offset` (exclusive).

        The result includes control batches and the batches of open and aborted transactions. Starts
        at the log start offset if that is higher than `start_offset`. Waits up to
        `kafkaConsumer.pollTimeoutMs` if `end_offset` is above the high watermark. Raises the same
        errors as `KafkaReadClient.fetch`.
        """

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> bool:
        """Create a topic and wait until it has leaders. Return False if it already exists."""

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """Return the effective configuration of a topic (DescribeConfigs)."""

    def broker_config(self) -> Mapping[str, str] | None:
        """Return the configuration of one broker.

        Returns None if the principal lacks the DESCRIBE_CONFIGS ACL.
        """

    def replication_of(self, topic: str) -> int:
        """Return the lowest replication factor of the topic's partitions."""

    def broker_count(self) -> int:
        """Return the number of live brokers."""
