"""What Kafka's error codes ask of us, as tables.

Purpose: for each code whether to try again and what to look up before, and which of our errors it
is when it stays. Invariant: every code has a reaction; a code that kio does not know is one of the
server's, and final. What it must not know: who asked what.

Sources: `RetriableException`, `InvalidMetadataException` and their subclasses of Kafka's clients;
kio carries the first of the two with each code.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    CorruptBatchError,
    KafkaError,
    LeaderNotAvailable,
    OffsetOutOfRange,
    ProducerFenced,
    ProtocolError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)


class Reaction(Enum):
    """What to do about a code."""

    SUCCEED = auto()
    RETRY = auto()
    """Ask the same broker again in a while."""
    REFRESH_METADATA = auto()
    """Ask again whoever the metadata names by then."""
    FIND_COORDINATOR = auto()
    """Ask again whoever is the coordinator by then."""
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
        ErrorCode.not_controller,  # the metadata names the controller
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
    BrokerUnreachable: (
        ErrorCode.broker_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    ),
    LeaderNotAvailable: (
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.listener_not_found,
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.unknown_leader_epoch,
    ),
    UnknownTopicOrPartition: (
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    ),
    OffsetOutOfRange: (ErrorCode.offset_out_of_range,),
    AuthenticationFailed: (
        ErrorCode.cluster_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.illegal_sasl_state,
        ErrorCode.sasl_authentication_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unsupported_sasl_mechanism,
    ),
    CorruptBatchError: (ErrorCode.corrupt_message,),
    ProducerFenced: (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced),
    UnsupportedVersion: (ErrorCode.unsupported_version,),
}
_CLASS_BY_CODE: Final = {code: kind for kind, codes in _CODES_BY_CLASS.items() for code in codes}

_REMEDIES: Final[Mapping[type[KafkaError], str]] = {
    AuthenticationFailed: "check 'kafka.security.protocol', the 'kafka.sasl.*' and 'kafka.ssl.*' "
    "options, and the rights of this principal",
    BrokerUnreachable: "check 'kafka.bootstrap.servers', that the brokers run, and that this "
    "machine reaches the addresses they advertise",
    CorruptBatchError: "the record batch is damaged on the broker's disk or on the way; read the "
    "other offsets around it, or delete it with DeleteRecords",
    LeaderNotAvailable: "start a broker that has an in-sync replica of it",
    ProducerFenced: "another producer has taken this transactional id over, or a broker ended its "
    "transaction: what was written in it will not be seen; begin anew",
    ProtocolError: "check that this is a Kafka broker, and what stands between; see its log",
    UnknownTopicOrPartition: "create it, or correct its name; without the right to DESCRIBE a "
    "topic the broker says the same",
}


def error_class(code: ErrorCode) -> type[KafkaError]:
    """Which of our errors a code is when it stays."""
    return _CLASS_BY_CODE.get(code, KafkaError)


def remedy(kind: type[KafkaError]) -> str:
    """What to do next, for a reader of the error."""
    return _REMEDIES.get(kind, "see the broker's log")


def said(code: ErrorCode) -> str:
    """A code as Kafka's documentation writes it: `NOT_COORDINATOR (16)`."""
    return f"{code.name.upper()} ({int(code)})"
