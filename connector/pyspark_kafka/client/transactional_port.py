"""The port `TransactionalClient`, which only the engine `native` implements.

Purpose: separate the commit protocol (`sink.exactly_once`) from the engine. librdkafka cannot
continue with a producer id that another process initialized. Retriable errors (coordinators that
move or load, brokers that restart, transactions whose markers are being written) are retried here
for `kafka.default.api.timeout.ms`. Invariant: every call is bounded in time; an unknown outcome is
returned as unknown, never as success or failure. What it must not know: Spark, the commit protocol.
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
    TransactionVersion,
)


class TransactionalProducer(Producer, Protocol):
    """Writes in one transaction, which begins with the first row and which it never ends.

    Also raises `ProducerFencedError`. `abort` only closes the producer, not the transaction.
    """

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        """After `flush`: the offset of the last record written, by partition."""

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with this transaction (AddOffsetsToTxn, TxnOffsetCommit)."""


class TransactionalClient(KafkaClient, Protocol):
    """The requests of the commit protocol. All raise `AccessError` without the required ACL."""

    def transaction_version(self) -> TransactionVersion:
        """Return the cluster's finalized feature `transaction.version`, 1 or 2."""

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
        two_phase_commit: bool = False,
    ) -> ProducerIdAndEpoch:
        """Fence the id's other producers, and end its transaction; InitProducerId.

        Returns only when the markers of that transaction are written. With `expected` (KIP-360)
        raises `ProducerFencedError` if another producer owns the id, and in transactions of version
        1 also if its transaction was open, which is then aborted. Raises `OptionError` for a
        timeout above the brokers' limit (INVALID_TRANSACTION_TIMEOUT), and for `two_phase_commit`
        without support in the cluster.
        """

    def end_transactions(self, ends: Collection[EndTransaction]) -> Mapping[str, ErrorCode | None]:
        """Send EndTxn for all ids in parallel; return the final error codes by transactional id.

        Retriable codes (CONCURRENT_TRANSACTIONS, coordinators) are retried. None means that the
        outcome is unknown: no final answer arrived in time.
        """

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        """Describe the transactions of the ids that coordinators know."""

    def list_transactions(self, id_prefix: str) -> Sequence[TransactionListing]:
        """List the transactions of all ids with this prefix, from all brokers that answer.

        Brokers silently omit ids for which the principal lacks DESCRIBE.
        """

    def transactional_producer(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
    ) -> TransactionalProducer:
        """Return a producer for one transaction of an initialized id."""

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        """Yield all batches from `start_offset` to `end_offset` (exclusive), also control batches.

        Reads read_uncommitted from the leader, from the log start offset if that is higher. Waits
        for `kafkaConsumer.pollTimeoutMs` if `end_offset` is above the high watermark. Raises what
        `KafkaReads.fetch` raises.
        """

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> bool:
        """Create a topic and wait for its leaders; return False if it exists."""

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """Return the effective configuration of a topic (DescribeConfigs)."""

    def broker_config(self) -> Mapping[str, str] | None:
        """Return the configuration of one broker; None without the ACL DESCRIBE_CONFIGS."""

    def replication_of(self, topic: str) -> int:
        """Return the smallest number of replicas of the topic's partitions."""

    def broker_count(self) -> int:
        """Return the number of live brokers."""
