"""WriteTxnMarkers (27), versions 1 and 2: write transaction markers to partitions.

Transaction coordinators and `kafka-transactions.sh abort` send this request to the leaders of a
transaction's partitions. Each marker is appended with acks=all, and the result is known when the
high watermark has passed the marker. Markers for `__consumer_offsets` are passed to the group
coordinator, which replies when it has applied or removed the offsets of the transaction.

The errors for a partition are:

- UNKNOWN_TOPIC_OR_PARTITION: this broker has no such partition.
- NOT_LEADER_OR_FOLLOWER: another broker is the leader, or the group coordinator is still loading
  its groups. The sender retries the request.
- TRANSACTION_COORDINATOR_FENCED: the coordinator epoch is too old.
- INVALID_PRODUCER_EPOCH: the producer epoch is too old.

From version 2 on, the request contains the transaction version. With transaction version 2, the
epoch of the marker must be higher than the epoch of the transaction's records (KIP-1228). Results
are grouped by producer id. As in Apache Kafka, the whole request fails with UNKNOWN_SERVER_ERROR if
a marker has producer id or epoch -1. Source: `kafka.server.KafkaApis.handleWriteTxnMarkersRequest`.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Broker, Call, Wait, on_cluster
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass
from broker_ref.log.batch import NO_PRODUCER_ID
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.errors import LogError
from broker_ref.log.producer_state import NO_PRODUCER_EPOCH
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PendingReplication
from broker_ref.security.acls import AclOperation
from broker_ref.transaction.marker_messages import (
    MarkerResult,
    PartitionResult,
    TopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)

TIMEOUT_MS: Final = 30_000
"""The timeout for the replication of markers (Kafka's `request.timeout.ms`)."""

_NOT_LOADED: Final = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)
"""Group coordinator errors that are replaced with NOT_LEADER_OR_FOLLOWER."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class MarkerStatus:
    """A marker for one partition. `outcome` is an error code or the pending operation."""

    producer_id: int
    topic: str
    partition: int
    outcome: ErrorCode | PendingReplication | Reply[ErrorCode] = ErrorCode.none

    @property
    def error_code(self) -> ErrorCode | None:
        """Return the error code, or None if the outcome is not yet known."""
        outcome = self.outcome
        if isinstance(outcome, PendingReplication):
            return outcome.outcome
        if isinstance(outcome, Reply):
            outcome = outcome.result if outcome.result is not None else outcome
        if isinstance(outcome, Reply):
            return None
        return ErrorCode.not_leader_or_follower if outcome in _NOT_LOADED else outcome

    @property
    def key(self) -> Hashable | None:
        """Return the key to wait for, if any."""
        outcome = self.outcome
        return outcome.partition.key if isinstance(outcome, PendingReplication) else outcome


@dataclass(slots=True, kw_only=True)
class DelayedMarkers:
    """Markers that are waiting for replication."""

    statuses: tuple[MarkerStatus, ...]

    def try_complete(self, now_ms: int) -> WriteTxnMarkersResponse | None:
        """Return the response if the outcomes of all markers are known.

        An outcome that is known is stored and does not change.
        """
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
        """Return the response, with REQUEST_TIMED_OUT for markers with an unknown outcome."""
        done = self.try_complete(now_ms)
        if done is not None:
            return done
        for status in self.statuses:
            if status.error_code is None:
                status.outcome = ErrorCode.request_timed_out
        return _response(self.statuses)

    def keys(self) -> tuple[Hashable, ...]:
        """Return the keys that the request is waiting for."""
        return tuple(status.key for status in self.statuses if status.error_code is None)


def handle(broker: Broker, call: Call, request: WriteTxnMarkersRequest) -> object:
    """Append all markers and respond when they have been replicated."""
    without_producer = [marker for marker in request.markers if not _has_producer(marker)]
    if without_producer:
        logger.warning(
            "Rejecting a WriteTxnMarkers request, because these markers have a producer id or "
            "producer epoch of -1: %s",
            without_producer,
        )
    delayed = DelayedMarkers(
        statuses=tuple(
            MarkerStatus(
                producer_id=marker.producer_id,
                topic=topic.name,
                partition=index,
                outcome=ErrorCode.unknown_server_error
                if without_producer
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


def _has_producer(marker: WrittenMarker) -> bool:
    return marker.producer_id != NO_PRODUCER_ID and marker.producer_epoch != NO_PRODUCER_EPOCH


def _append(
    broker: Broker, call: Call, marker: WrittenMarker, topic: str, index: int
) -> ErrorCode | PendingReplication | Reply[ErrorCode]:
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
    return PendingReplication(partition=partition, required_offset=result.last_offset + 1)


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


API: Final = Api(
    key=27,
    versions=range(1, 3),
    request=WriteTxnMarkersRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION, alternative=AclOperation.ALTER),),
)
