"""A producer for one transaction, with a producer id and producer epoch from the caller.

Invariant: no record is written to a partition before the partition is added to the transaction. The
producer never ends the transaction and never requests another producer epoch.

The transaction version determines how a partition is added. With version 1 (KIP-98), the producer
sends AddPartitionsToTxn before the first batch. With version 2 (KIP-890), the leader adds the
partition when it receives a Produce request of version 12 or later, and rejects requests of earlier
versions. With both versions, leaders verify the transaction with the coordinator, so Produce can
return the coordinator's error codes.

The classification of error codes follows `TransactionManager` and `Sender` in Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Self

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.delivery_errors import DeliveryErrors
from pyspark_kafka.client.native.batch_queues import ProducerBatch
from pyspark_kafka.client.native.leader_connections import LeaderConnections
from pyspark_kafka.client.native.produce_errors import (
    batch_rejected,
    offsets_not_committed,
    partition_not_added,
)
from pyspark_kafka.client.native.producer import NativeProducer
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.transaction_partitions import TransactionPartitions, is_final
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    DeliveryError,
    KafkaError,
    ProtocolError,
    PysparkKafkaError,
    reason_of,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.wire.cluster_queries import ClusterQueries
from pyspark_kafka.wire.connection import Connection
from pyspark_kafka.wire.error_codes import format_code
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.produce import FIRST_VERSION_ADDING_PARTITIONS, ProducedPartition
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.transaction_requests import (
    add_partitions_to_txn,
    send_offsets_to_transaction,
)
from pyspark_kafka.wire.versions import Api

KeepConnections = Callable[[LeaderConnections], None]

_UNKNOWN_OFFSET: Final = -1


class NativeTransactionalProducer(NativeProducer):
    """Implements `client.transactional_port.TransactionalProducer`.

    `close` and `abort` do not end the transaction. `abort` closes the connections.
    """

    _transactional_id: str

    def __init__(
        self,
        router: Router,
        settings: ProducerSettings,
        errors: DeliveryErrors,
        *,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        connections: LeaderConnections | None = None,
        keep: KeepConnections = LeaderConnections.close,
    ) -> None:
        super().__init__(
            router,
            settings,
            errors,
            give_back=NativeProducer.end,
            transactional_id=transactional_id,
            producer_id=producer,
            connections=connections,
        )
        self._keep = keep
        self._producer = producer
        self._version = version
        self._partitions = TransactionPartitions()
        self._failed_additions = 0
        self._last_offsets: dict[TopicPartition, int] = {}

    @classmethod
    def begin(  # noqa: PLR0917, the parameters that identify a transaction are positional
        cls,
        router: Router,
        settings: ProducerSettings,
        bootstrap_servers: str,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        *,
        connections: LeaderConnections | None = None,
        keep: KeepConnections = LeaderConnections.close,
    ) -> Self:
        """Create the producer for a transaction that does not contain any partitions yet.

        `connections` are open connections to reuse. When the producer is closed, it passes its open
        connections to `keep`.
        """
        errors = DeliveryErrors(
            bootstrap_servers=bootstrap_servers, record_bytes_max=settings.request_bytes_max
        )
        return cls(
            router,
            settings,
            errors,
            transactional_id=transactional_id,
            producer=producer,
            version=version,
            connections=connections,
            keep=keep,
        )

    # --- TransactionalProducer ---

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        """The highest offset that a broker returned for each partition, after `flush`.

        The offset belongs to the partition's last record, or to an earlier record of this
        transaction if the broker acknowledged later batches without an offset. In both cases, the
        next control batch with this producer id in the partition ends this transaction. Markers of
        earlier transactions precede the offset, because InitProducerId returns only after these
        markers are written.
        """
        return MappingProxyType(self._last_offsets)

    def flush(self) -> None:
        super().flush()
        for partition, offset in self._last_offsets.items():
            if offset == _UNKNOWN_OFFSET:
                raise self._errors.not_written(
                    partition.topic,
                    partition.partition,
                    "the broker acknowledged all batches as duplicates, but did not return their "
                    "offsets",
                )

    def close(self) -> None:
        assert not self._has_work(), "flush must be called before close"
        self._failed = self._failed or DeliveryError("The producer is closed.", advice="")
        self._keep(self._connections.hand_over())

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._resume()
        queries = ClusterQueries(
            router=self._router,
            bootstrap_servers=self._errors.bootstrap_servers,
            api_timeout_s=self._settings.api_timeout_s,
            backoff=self._settings.backoff,
            reconnect_backoff=self._settings.backoff,
        )
        doing = (
            f"committing offsets of group {group_id!r} with transactional id "
            f"{self._transactional_id!r}"
        )
        try:
            queries.retry(partial(self._send_offsets, group_id, offsets), doing)
        except PysparkKafkaError as error:
            self._failed = error
            raise
        self._returned_at = self._clock.now()

    def _send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], deadline: float
    ) -> None:
        try:
            send_offsets_to_transaction(
                self._router,
                self._transactional_id,
                self._producer,
                group_id,
                offsets,
                version=self._version,
                deadline=deadline,
            )
        except ApiError as error:
            if is_final(error.code):
                raise offsets_not_committed(
                    self._errors,
                    error,
                    group_id=group_id,
                    transactional_id=self._transactional_id,
                ) from None
            raise

    # --- hooks of `NativeProducer` ---

    def _ready(self, now: float) -> list[TopicPartition]:
        ready = super()._ready(now)
        if self._version == 1 and self._partitions.missing(ready):
            # One request adds all partitions, including those that are backing off.
            self._add(self._partitions.missing(self._queues.open_partitions()))
            missing = set(self._partitions.missing(ready))
            return [partition for partition in ready if partition not in missing]
        return ready

    def _produce_version(self, connection: Connection) -> int:
        if self._version == 1:
            return connection.versions.choose(
                Api.PRODUCE, at_most=FIRST_VERSION_ADDING_PARTITIONS - 1
            )
        return connection.versions.choose(Api.PRODUCE, at_least=FIRST_VERSION_ADDING_PARTITIONS)

    def _note_acknowledged(
        self, batch: ProducerBatch, partition_response: ProducedPartition
    ) -> None:
        partition, last_offset = batch.topic_partition, _UNKNOWN_OFFSET
        if partition_response.base_offset != _UNKNOWN_OFFSET:
            last_offset = partition_response.base_offset + batch.encoded.record_count - 1
        known = self._last_offsets.get(partition, _UNKNOWN_OFFSET)
        self._last_offsets[partition] = max(known, last_offset)

    def _note_recreated(self, topic: str) -> None:
        if any(partition.topic == topic for partition in self._last_offsets):
            raise self._errors.not_written(
                topic,
                None,
                "the topic was deleted and recreated during the transaction",
                advice="Run the task again.",
            )

    def _rejected(
        self, partition_response: ProducedPartition, broker: Broker, batch: ProducerBatch
    ) -> KafkaError:
        return batch_rejected(
            self._errors,
            partition_response,
            broker=str(broker),
            batch=batch,
            transactional_id=self._transactional_id,
        )

    # --- adding partitions ---

    def _add(self, partitions: list[TopicPartition]) -> None:
        """Send one request to add partitions. Back off for partitions that were not added."""
        deadline = self._first_deadline(
            self._clock.now() + self._request_timeout_s(self._failed_additions)
        )

        def add(missing: Collection[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
            return add_partitions_to_txn(
                self._router, self._transactional_id, self._producer, missing, deadline=deadline
            )

        try:
            failed = self._partitions.try_add(partitions, add)
        except (ApiError, BrokerUnreachableError, ProtocolError) as error:
            if isinstance(error, ApiError) and is_final(error.code):
                raise self._not_added(partitions[0], error.code) from None
            failures = dict.fromkeys(partitions, reason_of(error))
        else:
            for partition, code in failed.items():
                if is_final(code):
                    raise self._not_added(partition, code)
            failures = {
                partition: f"the coordinator returned {format_code(code)} for AddPartitionsToTxn"
                for partition, code in failed.items()
            }
        self._failed_additions = self._failed_additions + 1 if failures else 0
        self._retry_later(failures, invalidate=False)

    def _not_added(self, partition: TopicPartition, code: ErrorCode) -> KafkaError:
        return partition_not_added(
            self._errors, partition, code, transactional_id=self._transactional_id
        )
