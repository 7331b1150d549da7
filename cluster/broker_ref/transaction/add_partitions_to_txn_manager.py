"""Asks transaction coordinators to verify that a transaction contains a partition (KIP-890).

The broker sends a verification before the first batch of a transaction is appended to a partition.
For clients that use transaction version 2, the verification also adds the partition to the
transaction. Invariants: each coordinator has at most one request in flight. A request contains at
most one verification per transactional id. Each verification completes exactly once. Source:
Kafka's `AddPartitionsToTxnManager`. In Kafka, a new verification of a transactional id causes the
waiting verification to fail. In this broker, the new verification also waits, and the oldest
verification fails only if too many verifications are waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.events import Channel
from broker_ref.frozen import dataclass
from broker_ref.outbox import Outbox
from broker_ref.replication.partition import PartitionKey

ADD_PARTITIONS_TO_TXN: Final = 24
VERSION: Final = 5
PURPOSE: Final = "transactions-of-partitions"

REQUEST_TIMEOUT_MS: Final = 30_000
WAITING_PER_ID_MAX: Final = 5
"""A producer that waits for its responses has at most a few verifications."""

PartitionErrorCodes = Mapping[PartitionKey, ErrorCode]
"""The error code of each partition. NONE means that the transaction contains the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """The partitions of a topic."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPartitions:
    """A transaction and the partitions to verify or to add."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    """The verifications that a broker requests. Each transactional id occurs at most once."""

    transactions: tuple[TransactionPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The error code of a partition."""

    partition_index: int
    partition_error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The partition results of a topic."""

    name: str
    results_by_partition: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResult:
    """The topic results of a transaction."""

    transactional_id: str
    topic_results: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    """The results for all transactions, or the error code for the whole request."""

    error_code: ErrorCode
    results_by_transaction: tuple[TransactionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verification:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionKey, ...]
    add: bool
    complete: Callable[[PartitionErrorCodes], None]


class AddPartitionsToTxnManager:
    """The verification requests from a broker to transaction coordinators.

    `coordinator` returns the coordinator of a transactional id, or None if it is unknown. `wake` is
    called with each completed reply.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        metadata: ClusterMetadata,
        coordinator: Callable[[str], int | None],
        wake: Wake,
    ) -> None:
        self._outbox = outbox
        self._metadata = metadata
        self._coordinator = coordinator
        self._wake = wake
        self._waiting: dict[int, dict[str, deque[_Verification]]] = {}
        self._in_flight: set[int] = set()

    def add_or_verify_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: tuple[PartitionKey, ...],
        *,
        add: bool,
    ) -> Reply[PartitionErrorCodes]:
        """Verify that a transaction contains the partitions. If `add` is True, add them.

        The result contains the coordinator's error code for each partition. PRODUCER_FENCED is
        replaced with INVALID_PRODUCER_EPOCH. The caller must replace TRANSACTION_ABORTABLE for
        clients that do not support that error code. The error code is COORDINATOR_NOT_AVAILABLE if
        the coordinator is unknown. The error code is NETWORK_EXCEPTION if the coordinator cannot be
        reached, or if too many newer verifications of the transactional id are waiting.
        """
        reply: Reply[PartitionErrorCodes] = Reply(self._wake)
        verification = _Verification(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions,
            add=add,
            complete=reply.complete,
        )
        self._enqueue(verification)
        return reply

    def _enqueue(self, verification: _Verification) -> None:
        coordinator = self._coordinator(verification.transactional_id)
        broker = None if coordinator is None else self._metadata.brokers.get(coordinator)
        if coordinator is None or broker is None or broker.is_fenced:
            _fail(verification, ErrorCode.coordinator_not_available)
            return
        waiting = self._waiting.setdefault(coordinator, {})
        queue = waiting.setdefault(verification.transactional_id, deque())
        queue.append(verification)
        if len(queue) > WAITING_PER_ID_MAX:
            _fail(queue.popleft(), ErrorCode.network_exception)
        self._send(coordinator)

    def _send(self, coordinator: int) -> None:
        """Send the queued verifications to a coordinator, unless a request is in flight."""
        if coordinator in self._in_flight or coordinator not in self._waiting:
            return
        queues = self._waiting.pop(coordinator)
        sent = {transactional_id: queue.popleft() for transactional_id, queue in queues.items()}
        later = {transactional_id: queue for transactional_id, queue in queues.items() if queue}
        if later:
            self._waiting[coordinator] = later
        broker = self._metadata.brokers.get(coordinator)
        if broker is None:
            _fail_all(sent, ErrorCode.coordinator_not_available)
            self._send(coordinator)
            return
        self._in_flight.add(coordinator)
        self._outbox.send(
            Channel(node_id=coordinator, host=broker.host, port=broker.port, purpose=PURPOSE),
            api_key=ADD_PARTITIONS_TO_TXN,
            version=VERSION,
            request=AddPartitionsToTxnRequest(transactions=tuple(map(_transaction, sent.values()))),
            response=AddPartitionsToTxnResponse,
            on_response=lambda response: self._handle_response(coordinator, sent, response),
            on_failure=lambda _: self._handle_failure(coordinator, sent),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )

    def _handle_response(
        self, coordinator: int, sent: dict[str, _Verification], response: AddPartitionsToTxnResponse
    ) -> None:
        self._in_flight.discard(coordinator)
        if response.error_code is ErrorCode.cluster_authorization_failed:
            # With this error code, the client would assume that its principal lacks a permission.
            _fail_all(sent, ErrorCode.invalid_txn_state)
        elif response.error_code is not ErrorCode.none:
            _fail_all(sent, response.error_code)
        else:
            results = {
                result.transactional_id: _error_codes(result)
                for result in response.results_by_transaction
            }
            for transactional_id, verification in sent.items():
                said = results.get(transactional_id, {})
                verification.complete(
                    {
                        key: said.get(key, ErrorCode.unknown_server_error)
                        for key in verification.partitions
                    }
                )
        self._send(coordinator)

    def _handle_failure(self, coordinator: int, sent: dict[str, _Verification]) -> None:
        self._in_flight.discard(coordinator)
        _fail_all(sent, ErrorCode.network_exception)
        self._send(coordinator)


def _fail_all(sent: Mapping[str, _Verification], error_code: ErrorCode) -> None:
    for verification in sent.values():
        _fail(verification, error_code)


def _fail(verification: _Verification, error_code: ErrorCode) -> None:
    verification.complete(dict.fromkeys(verification.partitions, error_code))


def _transaction(verification: _Verification) -> TransactionPartitions:
    by_topic: dict[str, list[int]] = {}
    for key in verification.partitions:
        by_topic.setdefault(key.topic, []).append(key.partition)
    return TransactionPartitions(
        transactional_id=verification.transactional_id,
        producer_id=verification.producer_id,
        producer_epoch=verification.producer_epoch,
        verify_only=not verification.add,
        topics=tuple(
            TopicPartitions(name=name, partitions=tuple(partitions))
            for name, partitions in by_topic.items()
        ),
    )


def _error_codes(result: TransactionResult) -> dict[PartitionKey, ErrorCode]:
    return {
        PartitionKey(topic=topic.name, partition=partition.partition_index): (
            ErrorCode.invalid_producer_epoch
            if partition.partition_error_code is ErrorCode.producer_fenced
            else partition.partition_error_code
        )
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
