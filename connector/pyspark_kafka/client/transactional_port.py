"""The port `TransactionalClient`: all that writing exactly once asks of a Kafka client.

Purpose: one seam between the protocol (`sink.exactly_once`) and the engine `native`; librdkafka
cannot take up a producer id that another process began with, so there is no second engine. What
may pass by itself (coordinators that move or load, brokers that restart, transactions whose markers
are still being written) is tried again in here until `kafka.default.api.timeout.ms` is over.
Invariant: every call is bounded in time; an answer that leaves open whether something was done is
told as such, never taken for success or failure. What it must not know: Spark, the protocol.
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
    """Writes in one transaction, which begins with its first row and which it never ends.

    Also raises `ProducerFencedError` where brokers say that another one has its id by now. `abort` only
    gives it up: the transaction stays as it is.
    """

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        """After `flush`: the offset of the last record in every partition that was written to."""

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with this transaction (AddOffsetsToTxn, TxnOffsetCommit)."""


class TransactionalClient(KafkaClient, Protocol):
    """What the protocol asks. Refusals of the principal are `AccessError` everywhere."""

    def transaction_version(self) -> TransactionVersion:
        """Of the cluster, as its brokers' finalized features say."""

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
        two_phase_commit: bool = False,
    ) -> ProducerIdAndEpoch:
        """Take the id: fences who had it, and waits until its transaction is ended.

        Returns only when the markers of that are written. With `expected` (KIP-360) raises
        `ProducerFencedError` where somebody else has it by now; in transactions of version 1 also where
        its transaction was open, which is aborted then. Raises `OptionError` for a timeout above
        the brokers' limit (INVALID_TRANSACTION_TIMEOUT) and for `two_phase_commit` where the
        cluster has none.
        """

    def end_transactions(self, ends: Collection[EndTransaction]) -> Mapping[str, ErrorCode | None]:
        """EndTxn of every one, side by side: the last answer by transactional id.

        Asked again while it may pass (CONCURRENT_TRANSACTIONS, coordinators); NONE and codes that
        are final are handed over; None where no final answer came in time: not known.
        """

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        """Those that exist; an id that no coordinator knows is left out of the answer."""

    def list_transactions(self, id_prefix: str) -> Sequence[TransactionListing]:
        """The transactions of all ids that begin so, of all brokers that answer.

        Ids for which the principal lacks DESCRIBE are left out by the brokers without a word.
        """

    def transactional_producer(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
    ) -> TransactionalProducer:
        """A producer for one transaction of an id that was initialised."""

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        """Every batch that overlaps `start_offset <= offset < end_offset`, control batches too.

        From the leader, read_uncommitted and up to `end_offset`, which has to lie below the high
        watermark: else it waits for `kafkaConsumer.pollTimeoutMs`. Starts at the log start offset
        where that is higher. Raises what `KafkaReads.fetch` raises.
        """

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> bool:
        """Create a topic and wait until it can be written; False where it exists already."""

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """DescribeConfigs of a topic: every setting that is in force."""

    def broker_config(self) -> Mapping[str, str] | None:
        """DescribeConfigs of one broker; None where the principal may not ask."""

    def replication_of(self, topic: str) -> int:
        """The fewest replicas that a partition of the topic has."""

    def broker_count(self) -> int:
        """Brokers that are there now."""
