"""Asking the coordinator of a transaction whether partitions are part of it (KIP-890).

Purpose: a leader asks before it lets a producer begin a transaction in a partition; for clients of
transaction version 2 the question makes the partition part of the transaction, too. Invariant: one
request at a time to each coordinator, with as many questions as there are, one of each
transactional id; every question gets one answer. What it must not know: logs, and who asks.
Source: AddPartitionsToTxnManager of Apache Kafka, which fails an older question of the same
transactional id where here it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.events import Channel
from broker_ref.outbox import Outbox
from broker_ref.replication.partition import PartitionKey

ADD_PARTITIONS_TO_TXN: Final = 24
VERSION: Final = 5
PURPOSE: Final = "transactions-of-partitions"

REQUEST_TIMEOUT_MS: Final = 30_000
Answer = Mapping[PartitionKey, ErrorCode]
"""What was said of each partition; NONE: it is part of the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of a topic."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPartitions:
    """A transaction and partitions that are to be part of it, or to be made so."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    """The questions of a broker; no transactional id is in it twice."""

    transactions: tuple[TransactionPartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What is said of a partition."""

    partition_index: int
    partition_error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What is said of a topic's partitions."""

    name: str
    results_by_partition: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResult:
    """What is said of a transaction's partitions."""

    transactional_id: str
    topic_results: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    """The answers, or why there are none."""

    error_code: ErrorCode
    results_by_transaction: tuple[TransactionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionKey, ...]
    add: bool
    tell: Callable[[Answer], None]


class Verifications:
    """The questions of one broker.

    `coordinator` is which broker coordinates a transactional id, None where that is not known;
    `wake` is told of every reply that is complete.
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
        self._waiting: dict[int, list[_Question]] = {}
        self._under_way: set[int] = set()

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: tuple[PartitionKey, ...],
        *,
        add: bool,
    ) -> Reply[Answer]:
        """Ask whether partitions are part of a producer's transaction; with `add`, make them so.

        What the coordinator says of each is given on, but INVALID_PRODUCER_EPOCH for
        PRODUCER_FENCED, as producers know it here; TRANSACTION_ABORTABLE is for clients that know
        it. COORDINATOR_NOT_AVAILABLE where none is known, NETWORK_EXCEPTION where it cannot be
        asked.
        """
        reply: Reply[Answer] = Reply(self._wake)
        question = _Question(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions,
            add=add,
            tell=reply.complete,
        )
        self._ask(question)
        return reply

    def _ask(self, question: _Question) -> None:
        coordinator = self._coordinator(question.transactional_id)
        broker = None if coordinator is None else self._metadata.brokers.get(coordinator)
        if coordinator is None or broker is None or broker.is_fenced:
            question.tell(dict.fromkeys(question.partitions, ErrorCode.coordinator_not_available))
            return
        self._waiting.setdefault(coordinator, []).append(question)
        self._send(coordinator)

    def _send(self, coordinator: int) -> None:
        """Ask what waits for a broker, unless it has not answered what it was asked before."""
        if coordinator in self._under_way or coordinator not in self._waiting:
            return
        asked: dict[str, _Question] = {}
        later = [
            question
            for question in self._waiting.pop(coordinator)
            if asked.setdefault(question.transactional_id, question) is not question
        ]
        if later:
            self._waiting[coordinator] = later
        broker = self._metadata.brokers.get(coordinator)
        if broker is None:
            self._answer_all(asked, ErrorCode.coordinator_not_available)
            self._send(coordinator)
            return
        self._under_way.add(coordinator)
        self._outbox.send(
            Channel(node_id=coordinator, host=broker.host, port=broker.port, purpose=PURPOSE),
            api_key=ADD_PARTITIONS_TO_TXN,
            version=VERSION,
            request=AddPartitionsToTxnRequest(
                transactions=tuple(map(_transaction, asked.values()))
            ),
            response=AddPartitionsToTxnResponse,
            on_response=lambda response: self._answered(coordinator, asked, response),
            on_failure=lambda _: self._failed(coordinator, asked),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )

    def _answered(
        self, coordinator: int, asked: dict[str, _Question], response: AddPartitionsToTxnResponse
    ) -> None:
        self._under_way.discard(coordinator)
        if response.error_code is not ErrorCode.none:
            self._answer_all(asked, response.error_code)
        else:
            results = {
                result.transactional_id: _said(result) for result in response.results_by_transaction
            }
            for transactional_id, question in asked.items():
                said = results.get(transactional_id, {})
                question.tell(
                    {
                        key: said.get(key, ErrorCode.unknown_server_error)
                        for key in question.partitions
                    }
                )
        self._send(coordinator)

    def _failed(self, coordinator: int, asked: dict[str, _Question]) -> None:
        self._under_way.discard(coordinator)
        self._answer_all(asked, ErrorCode.network_exception)
        self._send(coordinator)

    def _answer_all(self, asked: dict[str, _Question], error_code: ErrorCode) -> None:
        for question in asked.values():
            question.tell(dict.fromkeys(question.partitions, error_code))


def _transaction(question: _Question) -> TransactionPartitions:
    by_topic: dict[str, list[int]] = {}
    for key in question.partitions:
        by_topic.setdefault(key.topic, []).append(key.partition)
    return TransactionPartitions(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=not question.add,
        topics=tuple(
            TopicPartitions(name=name, partitions=tuple(partitions))
            for name, partitions in by_topic.items()
        ),
    )


def _said(result: TransactionResult) -> dict[PartitionKey, ErrorCode]:
    return {
        PartitionKey(topic=topic.name, partition=partition.partition_index): (
            ErrorCode.invalid_producer_epoch
            if partition.partition_error_code is ErrorCode.producer_fenced
            else partition.partition_error_code
        )
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
