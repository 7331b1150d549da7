"""DescribeTransactions (65), version 0: the state of transactional ids (KIP-664).

The response contains the state, producer, timeout and start time of each transactional id, and the
partitions of its transaction to which no marker has been written yet. The error is
TRANSACTIONAL_ID_NOT_FOUND for an unknown id, and INVALID_REQUEST for an empty id. Source:
`kafka.server.KafkaApis.handleDescribeTransactionsRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.transaction.partitions import by_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsRequest:
    """A DescribeTransactions request."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    """The partitions of a topic in a transaction."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    """The state of a transactional id, or an error."""

    transactional_id: str
    error_code: ErrorCode = ErrorCode.none
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: tuple[TopicData, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    """A DescribeTransactions response."""

    transaction_states: tuple[DescribedTransaction, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each transactional id once, even if the id is repeated in the request."""
    return DescribeTransactionsResponse(
        transaction_states=tuple(
            _describe(broker, call, name) for name in dict.fromkeys(request.transactional_ids)
        )
    )


def _describe(broker: Broker, call: Call, transactional_id: str) -> DescribedTransaction:
    try:
        call.auth.check(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        transaction, unmarked = broker.transactions.describe(transactional_id)
    except ApiError as error:
        return DescribedTransaction(transactional_id=transactional_id, error_code=error.error_code)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_timestamp_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=tuple(
            TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(unmarked).items()
            if call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        ),
    )


API: Final = Api(key=65, versions=range(1), request=DescribeTransactionsRequest, handle=handle)
