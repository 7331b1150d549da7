"""Writing in one transaction with the engine `native`, under an id that was initialised before.

Purpose: `NativeProducer` for a producer id and epoch that are given, whose batches belong to a
transaction and whose every partition is a part of it. Invariant: nothing is written to a partition
before it is in the transaction; the transaction is never ended here, whatever goes wrong, and a
second epoch is never asked for. What it must not know: who decides what becomes of the transaction.

How a partition becomes a part of the transaction is a matter of its version. 1 (KIP-98): the
coordinator is asked to add it, before its first batch. 2 (KIP-890): its leader adds it, by a Produce
of version 12 or later; an older one would be refused. Leaders ask the coordinator in either version
(KIP-890), so that Produce may be answered as coordinators answer.

Source: `TransactionManager` and `Sender` of Apache Kafka, for which answers are final.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Self

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.delivery_errors import NOT_WRITTEN, DeliveryErrors
from pyspark_kafka.client.native.in_flight import Batch
from pyspark_kafka.client.native.leader_links import LeaderLinks
from pyspark_kafka.client.native.membership import Membership, is_final
from pyspark_kafka.client.native.produce_errors import (
    not_added,
    not_committed,
    refused,
)
from pyspark_kafka.client.native.producer import NativeProducer
from pyspark_kafka.client.native.producer_settings import ProducerSettings
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

KeepLinks = Callable[[LeaderLinks], None]

_NOWHERE: Final = -1


class NativeTransactionalProducer(NativeProducer):
    """See `client.transactional_port.TransactionalProducer`.

    Neither `close` nor `abort` ends the transaction; `abort` closes the connections.
    """

    _transactional_id: str

    def __init__(
        self,
        router: Router,
        settings: ProducerSettings,
        faults: DeliveryErrors,
        *,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        links: LeaderLinks | None = None,
        keep: KeepLinks = LeaderLinks.close,
    ) -> None:
        super().__init__(
            router,
            settings,
            faults,
            give_back=NativeProducer.end,
            transactional_id=transactional_id,
            producer_id=producer,
            links=links,
        )
        self._keep = keep
        self._producer = producer
        self._version = version
        self._membership = Membership()
        self._failed_additions = 0
        self._last_offsets: dict[TopicPartition, int] = {}

    @classmethod
    def begin(  # noqa: PLR0917 - what identifies a transaction, in its order
        cls,
        router: Router,
        settings: ProducerSettings,
        bootstrap_servers: str,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
        *,
        links: LeaderLinks | None = None,
        keep: KeepLinks = LeaderLinks.close,
    ) -> Self:
        """For the one transaction of this epoch, in which nothing has been written yet.

        `links` are connections to begin with, and `keep` gets those that are there when it is closed.
        """
        faults = DeliveryErrors(
            bootstrap_servers=bootstrap_servers, record_bytes_max=settings.request_bytes_max
        )
        return cls(
            router,
            settings,
            faults,
            transactional_id=transactional_id,
            producer=producer,
            version=version,
            links=links,
            keep=keep,
        )

    # --- the port ---

    @property
    def last_offsets(self) -> Mapping[TopicPartition, int]:
        """After `flush`: by partition, the last offset that a broker has named for a batch.

        It is that of the partition's last record, or of an earlier one of this transaction where
        the broker confirmed later batches without saying where they are. Either way the first
        control batch of this producer id behind it is the one that ends this transaction: an
        earlier transaction's was there before the first record, for an id is given out only when
        that is so.
        """
        return MappingProxyType(self._last_offsets)

    def flush(self) -> None:
        super().flush()
        for partition, offset in self._last_offsets.items():
            if offset == _NOWHERE:
                raise self._faults.not_written(
                    str(partition),
                    "the broker confirmed all that was sent as duplicates, and never said where "
                    "in the log they are",
                    NOT_WRITTEN,
                )

    def close(self) -> None:
        assert not self._has_work(), "flush goes first"
        self._failed = self._failed or DeliveryError("this producer was closed")
        self._keep(self._links.hand_over())

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._begin()
        asking = ClusterQueries(
            router=self._router,
            bootstrap_servers=self._faults.bootstrap_servers,
            api_timeout_s=self._settings.api_timeout_s,
            backoff=self._settings.backoff,
            reconnect_backoff=self._settings.backoff,
        )
        doing = f"committing offsets of group {group_id!r} as {self._transactional_id!r}"
        try:
            asking.retry(partial(self._send_offsets, group_id, offsets), doing)
        except PysparkKafkaError as error:
            self._failed = error
            raise
        self._left_at = self._clock.now()

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
        except ApiError as answer:
            if is_final(answer.code):
                raise not_committed(
                    self._faults,
                    answer,
                    group_id=group_id,
                    transactional_id=self._transactional_id,
                ) from None
            raise

    # --- hooks of `NativeProducer` ---

    def _ready(self, now: float) -> list[TopicPartition]:
        ready = super()._ready(now)
        if self._version == 1 and self._membership.missing(ready):
            # One question for all that wait, also those whose pause is not over.
            self._add(self._membership.missing(self._core.open_partitions()))
            outside = set(self._membership.missing(ready))
            return [partition for partition in ready if partition not in outside]
        return ready

    def _newest_produce(self, connection: Connection) -> int:
        if self._version == 1:
            return connection.versions.choose(
                Api.PRODUCE, at_most=FIRST_VERSION_ADDING_PARTITIONS - 1
            )
        return connection.versions.choose(Api.PRODUCE, at_least=FIRST_VERSION_ADDING_PARTITIONS)

    def _note_confirmed(self, batch: Batch, answer: ProducedPartition) -> None:
        partition, last_offset = batch.topic_partition, _NOWHERE
        if answer.base_offset != _NOWHERE:
            last_offset = answer.base_offset + batch.encoded.record_count - 1
        known = self._last_offsets.get(partition, _NOWHERE)
        self._last_offsets[partition] = max(known, last_offset)

    def _note_created_anew(self, topic: str) -> None:
        if any(partition.topic == topic for partition in self._last_offsets):
            raise self._faults.not_written(
                topic,
                "the topic was deleted and created again in the middle of the transaction",
                NOT_WRITTEN,
            )

    def _refused(self, answer: ProducedPartition, broker: Broker, batch: Batch) -> KafkaError:
        return refused(
            self._faults,
            answer,
            who=str(broker),
            batch=batch,
            transactional_id=self._transactional_id,
        )

    # --- adding partitions ---

    def _add(self, partitions: list[TopicPartition]) -> None:
        """Ask once for these; those that are not in by then are asked for again later."""
        deadline = self._first_deadline(self._clock.now() + self._try_s(self._failed_additions))

        def add(wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
            return add_partitions_to_txn(
                self._router, self._transactional_id, self._producer, wanted, deadline=deadline
            )

        try:
            refusals = self._membership.ask(partitions, add)
        except (ApiError, BrokerUnreachableError, ProtocolError) as error:
            if isinstance(error, ApiError) and is_final(error.code):
                raise self._not_added(partitions[0], error.code) from None
            troubles = dict.fromkeys(partitions, reason_of(error))
        else:
            for partition, code in refusals.items():
                if is_final(code):
                    raise self._not_added(partition, code)
            troubles = {
                partition: f"the coordinator of {self._transactional_id!r} said {format_code(code)}"
                for partition, code in refusals.items()
            }
        self._failed_additions = self._failed_additions + 1 if troubles else 0
        for partition, trouble in troubles.items():
            self._retry_later(partition, trouble, forget=False)

    def _not_added(self, partition: TopicPartition, code: ErrorCode) -> KafkaError:
        return not_added(self._faults, partition, code, transactional_id=self._transactional_id)
