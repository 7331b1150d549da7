"""Defines the client's reactions to Kafka's error codes, and the error class for each code.

The error class is used after the last retry. A reaction is defined for every code.
`Reader.error_code` maps unknown codes to UNKNOWN_SERVER_ERROR. After this error code, only fetches
and offset lookups are retried.

Sources: `RetriableException`, `InvalidMetadataException` and their subclasses in Kafka's clients.
kio's `ErrorCode.retriable` corresponds to `RetriableException`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerUnreachableError,
    CorruptBatchError,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)


class Reaction(Enum):
    """The client's reaction to an error code."""

    SUCCEED = auto()
    RETRY = auto()
    """Send the request to the same broker again after a backoff."""
    REFRESH_METADATA = auto()
    """Refresh the metadata and send the request to the broker in the new metadata."""
    FIND_COORDINATOR = auto()
    """Look up the coordinator again and send the request to it."""
    FAIL = auto()


_METADATA: Final = frozenset(
    {
        ErrorCode.election_not_needed,
        ErrorCode.eligible_leaders_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.listener_not_found,
        ErrorCode.network_exception,
        ErrorCode.not_controller,  # the metadata contains the controller
        ErrorCode.not_leader_or_follower,
        ErrorCode.preferred_leader_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
_COORDINATOR: Final = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})


def _reaction(code: ErrorCode) -> Reaction:
    if code is ErrorCode.none:
        return Reaction.SUCCEED
    if code in _METADATA:
        return Reaction.REFRESH_METADATA
    if code in _COORDINATOR:
        return Reaction.FIND_COORDINATOR
    return Reaction.RETRY if code.retriable else Reaction.FAIL


REACTIONS: Final[Mapping[ErrorCode, Reaction]] = {code: _reaction(code) for code in ErrorCode}

_CODES_BY_CLASS: Final[Mapping[type[KafkaError], tuple[ErrorCode, ...]]] = {
    BrokerUnreachableError: (
        ErrorCode.broker_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    ),
    LeaderNotAvailableError: (
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.listener_not_found,
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.unknown_leader_epoch,
    ),
    UnknownTopicOrPartitionError: (
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    ),
    OffsetOutOfRangeError: (ErrorCode.offset_out_of_range,),
    AuthenticationError: (
        ErrorCode.illegal_sasl_state,
        ErrorCode.sasl_authentication_failed,
        ErrorCode.unsupported_sasl_mechanism,
    ),
    AuthorizationError: (
        ErrorCode.cluster_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    ),
    CorruptBatchError: (ErrorCode.corrupt_message,),
    ProducerFencedError: (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced),
    UnsupportedVersionError: (ErrorCode.unsupported_version,),
}
_CLASS_BY_CODE: Final = {code: kind for kind, codes in _CODES_BY_CLASS.items() for code in codes}


def error_class(code: ErrorCode) -> type[KafkaError]:
    """Return the exception class for an error code that remains after the last retry."""
    return _CLASS_BY_CODE.get(code, KafkaError)


def format_code(code: ErrorCode) -> str:
    """Return the name and number of a code, for example `NOT_COORDINATOR (16)`."""
    return f"{code.name.upper()} ({int(code)})"
