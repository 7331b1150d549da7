"""WriteTxnMarkers (27), versions 1 and 2: end transactions in partitions, as coordinators decide.

Behaviour: coordinators send it to the leaders of a transaction's partitions, and the Java tool that
aborts hanging transactions does. Each marker is appended under acks=all, and answered when the
high watermark has passed it: a transaction is complete only once its end cannot be lost. Those for
`__consumer_offsets` go to the group coordinator, which answers when the offsets of the transaction
are what its groups read. A partition that is not here is UNKNOWN_TOPIC_OR_PARTITION, one that is
led elsewhere, or whose groups are not loaded, NOT_LEADER_OR_FOLLOWER: to be sent again. A marker of
an older coordinator is TRANSACTION_COORDINATOR_FENCED, one of an older producer epoch
INVALID_PRODUCER_EPOCH. From version 2 on it says by which transaction version the transaction has
run: with 2 its epoch must be above all that was written (KIP-1228). The results of markers of the
same producer come together. Producer id or epoch -1 is of nobody: as in Apache Kafka, everything in
such a request is answered UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Broker, Call, Wait
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.coordination.replies import Reply
from broker_ref.log.batch import NO_PRODUCER_ID
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.errors import LogError
from broker_ref.log.producer_state import NO_PRODUCER_EPOCH
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Appended
from broker_ref.transaction.marker_messages import (
    MarkerResult,
    PartitionResult,
    TopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)

TIMEOUT_MS: Final = 30_000
"""How long markers may take to be replicated (Kafka's request.timeout.ms)."""

_NOT_LOADED: Final = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)
"""What a group coordinator says that is not ready: transaction coordinators do not know these."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class MarkerStatus:
    """A marker for one partition, and what is known of it."""

    producer_id: int
    topic: str
    partition: int
    outcome: ErrorCode | Appended | Reply[ErrorCode] = ErrorCode.none

    @property
    def error_code(self) -> ErrorCode | None:
        """What came of it; None: not known yet."""
        outcome = self.outcome
        if isinstance(outcome, Appended):
            return outcome.outcome
        if isinstance(outcome, Reply):
            outcome = outcome.result if outcome.result is not None else outcome
        if isinstance(outcome, Reply):
            return None
        return ErrorCode.not_leader_or_follower if outcome in _NOT_LOADED else outcome

    @property
    def key(self) -> Hashable | None:
        """What its outcome waits for."""
        outcome = self.outcome
        return outcome.partition.key if isinstance(outcome, Appended) else outcome


@dataclass(slots=True, kw_only=True)
class DelayedMarkers:
    """Markers that are not all replicated."""

    statuses: tuple[MarkerStatus, ...]

    def try_complete(self, now_ms: int) -> WriteTxnMarkersResponse | None:
        """The response once every outcome is known; a known one stays."""
        del now_ms
        waiting = False
        for status in self.statuses:
            error_code = status.error_code
            if error_code is None:
                waiting = True
            else:
                status.outcome = error_code
        return None if waiting else _response(self.statuses)

    def expire(self, now_ms: int) -> WriteTxnMarkersResponse:
        """The response with REQUEST_TIMED_OUT for what is not known."""
        done = self.try_complete(now_ms)
        if done is not None:
            return done
        for status in self.statuses:
            if status.error_code is None:
                status.outcome = ErrorCode.request_timed_out
        return _response(self.statuses)

    def keys(self) -> tuple[Hashable, ...]:
        """What is waited for."""
        return tuple(status.key for status in self.statuses if status.error_code is None)


def handle(broker: Broker, call: Call, request: WriteTxnMarkersRequest) -> object:
    """Append every marker, and answer when all are replicated."""
    nobodys = [marker for marker in request.markers if not _is_of_a_producer(marker)]
    if nobodys:
        logger.warning("Markers of no producer or no epoch are refused, with others: %s", nobodys)
    delayed = DelayedMarkers(
        statuses=tuple(
            MarkerStatus(
                producer_id=marker.producer_id,
                topic=topic.name,
                partition=index,
                outcome=ErrorCode.unknown_server_error
                if nobodys
                else _append(broker, call, marker, topic.name, index),
            )
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        )
    )
    done = delayed.try_complete(call.now_ms)
    if done is not None:
        return done
    return Wait(operation=delayed, keys=delayed.keys(), deadline_ms=call.now_ms + TIMEOUT_MS)


def _is_of_a_producer(marker: WrittenMarker) -> bool:
    return marker.producer_id != NO_PRODUCER_ID and marker.producer_epoch != NO_PRODUCER_EPOCH


def _append(
    broker: Broker, call: Call, marker: WrittenMarker, topic: str, index: int
) -> ErrorCode | Appended | Reply[ErrorCode]:
    end = EndTransactionMarker(
        marker=Marker.COMMIT if marker.transaction_result else Marker.ABORT,
        coordinator_epoch=marker.coordinator_epoch,
    )
    try:
        partition = broker.replicas.partition(topic, index)
    except ApiError:
        return ErrorCode.unknown_topic_or_partition
    if topic == OFFSETS_TOPIC:
        return broker.groups.end_transaction(
            index,
            end,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_version=marker.transaction_version,
            now_ms=call.now_ms,
        )
    try:
        result = partition.append_end_marker(
            end,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_version=marker.transaction_version,
            now_ms=call.now_ms,
        )
    except (ApiError, LogError) as error:
        return error.error_code
    return Appended(partition=partition, required_offset=result.last_offset + 1)


def _response(statuses: tuple[MarkerStatus, ...]) -> WriteTxnMarkersResponse:
    found: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for status in statuses:
        error_code = status.error_code
        assert error_code is not None
        topics = found.setdefault(status.producer_id, {})
        topics.setdefault(status.topic, {})[status.partition] = error_code
    return WriteTxnMarkersResponse(
        markers=tuple(
            MarkerResult(
                producer_id=producer_id,
                topics=tuple(
                    TopicResult(
                        name=name,
                        partitions=tuple(
                            PartitionResult(partition_index=index, error_code=error_code)
                            for index, error_code in partitions.items()
                        ),
                    )
                    for name, partitions in topics.items()
                ),
            )
            for producer_id, topics in found.items()
        )
    )


API: Final = Api(key=27, versions=range(1, 3), request=WriteTxnMarkersRequest, handle=handle)
