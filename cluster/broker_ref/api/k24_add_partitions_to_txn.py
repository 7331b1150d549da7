"""AddPartitionsToTxn (24), versions 0 to 5: add partitions to a transaction.

Up to version 3, clients send this request before their first write to a partition. From version 4
on, brokers send it for several transactions (KIP-890). With `verify_only`, the coordinator checks
whether the transaction contains the partitions and returns NONE or TRANSACTION_ABORTABLE for each
partition. Otherwise, it adds the partitions.

Either all partitions of a transaction are added, or none are. The error for the valid partitions of
a transaction is OPERATION_NOT_ATTEMPTED if another partition does not exist
(UNKNOWN_TOPIC_OR_PARTITION) or if a client adds an internal topic (TOPIC_AUTHORIZATION_FAILED). The
broker responds when all in-sync replicas of the `__transaction_state` partition have replicated the
updated transaction. Before version 2, PRODUCER_FENCED is replaced with INVALID_PRODUCER_EPOCH.
Source: `kafka.server.KafkaApis.handleAddPartitionsToTxnRequest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.coordinator_replies import NEVER_MS
from broker_ref.api.fencing import producer_fenced_code
from broker_ref.controller.metadata import INTERNAL_TOPICS
from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass
from broker_ref.replication.partition import PartitionKey
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.transaction.add_partitions_to_txn_manager import (
    PartitionResult,
    TopicPartitions,
    TopicResult,
    TransactionPartitions,
    TransactionResult,
)
from broker_ref.transaction.request_validation import ProducerIdAndEpoch

FIRST_VERSION_OF_PRODUCER_FENCED: Final = 2
FIRST_VERSION_OF_BROKERS: Final = 4

CLIENTS_TRANSACTION_VERSION: Final = 0
BROKERS_TRANSACTION_VERSION: Final = 2
"""The lowest `transaction.version` at which brokers add partitions on behalf of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    """An AddPartitionsToTxn request. From version 4 on, it contains `transactions`."""

    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = -1
    v3_and_below_producer_epoch: int = -1
    v3_and_below_topics: tuple[TopicPartitions, ...] = ()
    transactions: tuple[TransactionPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    """An AddPartitionsToTxn response."""

    error_code: ErrorCode = ErrorCode.none
    results_by_transaction: tuple[TransactionResult, ...] = ()
    results_by_topic_v3_and_below: tuple[TopicResult, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


Codes = Mapping[PartitionKey, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """The requested partitions of a transaction, with their error codes in `codes`.

    If `reply` is set, its error code applies to all partitions, and `codes` is not used.
    """

    transactional_id: str
    partitions: tuple[PartitionKey, ...]
    codes: Codes
    reply: Reply[ErrorCode] | None = None

    @property
    def outcome(self) -> Codes | None:
        """Return the error codes, or None if the coordinator has not replied."""
        if self.reply is None:
            return self.codes
        if self.reply.result is None:
            return None
        return dict.fromkeys(self.partitions, self.reply.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedAdditions:
    """A request that is waiting until the coordinator has logged the added partitions."""

    additions: tuple[Addition, ...]
    respond: Callable[[list[tuple[str, Codes]]], AddPartitionsToTxnResponse]

    def try_complete(self, now_ms: int) -> AddPartitionsToTxnResponse | None:
        """Return the response if the coordinator has sent all replies."""
        del now_ms
        results = []
        for addition in self.additions:
            outcome = addition.outcome
            if outcome is None:
                return None
            results.append((addition.transactional_id, outcome))
        return self.respond(results)

    def expire(self, now_ms: int) -> AddPartitionsToTxnResponse:
        """Raise AssertionError.

        The coordinator completes every write, so the wait cannot expire.
        """
        raise AssertionError(
            f"A wait without a deadline expired at {now_ms} ms, before the partitions were added."
        )


def handle(broker: Broker, call: Call, request: AddPartitionsToTxnRequest) -> object:
    """Add or verify the partitions of each transaction."""
    transactions = request.transactions
    if call.version < FIRST_VERSION_OF_BROKERS:
        transactions = (
            TransactionPartitions(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                verify_only=False,
                topics=request.v3_and_below_topics,
            ),
        )
    elif not call.auth.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.cluster_authorization_failed)
    additions = tuple(_add(broker, call, each) for each in transactions)
    delayed = DelayedAdditions(
        additions=additions, respond=lambda results: _response(results, call.version)
    )
    response = delayed.try_complete(call.now_ms)
    if response is not None:
        return response
    replies = tuple(addition.reply for addition in additions if addition.reply is not None)
    return Wait(operation=delayed, keys=replies, deadline_ms=NEVER_MS)


def _add(broker: Broker, call: Call, transaction: TransactionPartitions) -> Addition:
    partitions = tuple(
        PartitionKey(topic=topic.name, partition=partition)
        for topic in transaction.topics
        for partition in topic.partitions
    )
    name = transaction.transactional_id
    is_client = call.version < FIRST_VERSION_OF_BROKERS
    if is_client and not call.auth.allows(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        unauthorized = ErrorCode.transactional_id_authorization_failed
        codes = dict.fromkeys(partitions, unauthorized)
        return Addition(transactional_id=name, partitions=partitions, codes=codes)
    codes = {key: _check(broker, call, key, is_client=is_client) for key in partitions}
    if any(code is not ErrorCode.none for code in codes.values()):
        return Addition(
            transactional_id=name,
            partitions=partitions,
            codes={
                key: ErrorCode.operation_not_attempted if code is ErrorCode.none else code
                for key, code in codes.items()
            },
        )
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        codes = dict(broker.transactions.verify_partitions(name, producer, partitions))
        return Addition(transactional_id=name, partitions=partitions, codes=codes)
    reply = broker.transactions.add_partitions(
        name,
        producer,
        partitions,
        client_transaction_version=(
            CLIENTS_TRANSACTION_VERSION if is_client else BROKERS_TRANSACTION_VERSION
        ),
        now_ms=call.now_ms,
    )
    return Addition(transactional_id=name, partitions=partitions, codes=codes, reply=reply)


def _check(broker: Broker, call: Call, key: PartitionKey, *, is_client: bool) -> ErrorCode:
    if is_client and (
        key.topic in INTERNAL_TOPICS
        or not call.auth.allows(AclOperation.WRITE, ResourceType.TOPIC, key.topic)
    ):
        return ErrorCode.topic_authorization_failed
    if broker.metadata.partition(key.topic, key.partition) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _response(results: Iterable[tuple[str, Codes]], version: int) -> AddPartitionsToTxnResponse:
    responses = [
        TransactionResult(transactional_id=name, topic_results=_topic_results(codes, version))
        for name, codes in results
    ]
    if version < FIRST_VERSION_OF_BROKERS:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=responses[0].topic_results)
    return AddPartitionsToTxnResponse(results_by_transaction=tuple(responses))


def _topic_results(codes: Codes, version: int) -> tuple[TopicResult, ...]:
    by_topic: dict[str, list[PartitionResult]] = {}
    for key, code in codes.items():
        error_code = producer_fenced_code(
            code, version=version, first_version=FIRST_VERSION_OF_PRODUCER_FENCED
        )
        by_topic.setdefault(key.topic, []).append(
            PartitionResult(partition_index=key.partition, partition_error_code=error_code)
        )
    return tuple(
        TopicResult(name=name, results_by_partition=tuple(results))
        for name, results in by_topic.items()
    )


API: Final = Api(key=24, versions=range(6), request=AddPartitionsToTxnRequest, handle=handle)
