"""Fetch (1), version 17: replicate the cluster metadata log to brokers (KIP-595).

The only partition is `__cluster_metadata-0`. Each batch contains one commit. The response contains
complete batches. If the log has records at the fetch offset, the response contains at least one
batch. If the log has no such records, the request waits up to `max_wait_ms` for a metadata change.
If the requested batches are no longer available, the response contains the id of a snapshot, which
the broker reads with FetchSnapshot (KIP-630). The error is OFFSET_OUT_OF_RANGE if the fetch offset
is beyond the log end offset. There are no fetch sessions. Source:
`kafka.server.ControllerApis.handleFetch`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.controller import Controller
from broker_ref.controller.metadata_batches import (
    CONTROLLER_EPOCH,
    METADATA_PARTITION,
    METADATA_TOPIC_ID,
)
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    Wait,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import AclOperation

METADATA_CHANGED: Final = "metadata changed"
"""The purgatory key for fetches that are waiting for a metadata change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """The fetch offset and the size limit of a partition."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """The partitions of a topic, which is identified by its topic id."""

    topic_id: Uuid
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The broker id and broker epoch of the fetching broker."""

    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A Fetch request."""

    max_wait_ms: int
    topics: tuple[FetchTopic, ...]
    min_bytes: int = 1
    max_bytes: int = 2**31 - 1
    replica_state: ReplicaState = ReplicaState()
    forgotten_topics_data: tuple[FetchTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    """The id of a snapshot that contains all records below `end_offset`.

    Both fields are -1 if there is no snapshot.
    """

    end_offset: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """The record batches of a partition, a snapshot id, or an error."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    snapshot_id: SnapshotId = SnapshotId()
    aborted_transactions: tuple[SnapshotId, ...] | None = None
    records: bytes | None = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic:
    """The partition responses for a topic."""

    topic_id: Uuid
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """A Fetch response."""

    error_code: ErrorCode = ErrorCode.none
    session_id: int = 0
    responses: tuple[FetchedTopic, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingFetch:
    controller: Controller
    request: FetchRequest

    def try_complete(self, now_ms: int) -> FetchResponse | None:
        """Return the response if a partition has records, a snapshot id or an error."""
        del now_ms
        response = _response(self.controller, self.request)
        is_news = any(
            fetched.error_code is not ErrorCode.none
            or fetched.records
            or fetched.snapshot_id.end_offset >= 0
            for topic in response.responses
            for fetched in topic.partitions
        )
        return response if is_news else None

    def expire(self, now_ms: int) -> FetchResponse:
        """Return the response, even if it contains no records."""
        del now_ms
        return _response(self.controller, self.request)


def handle(context: ControllerContext, call: Call, request: FetchRequest) -> FetchResponse | Wait:
    """Return the response immediately, or a `Wait` if there are no new records."""
    waiting = _WaitingFetch(controller=context.controller, request=request)
    if request.max_wait_ms <= 0 or request.min_bytes <= 0 or not request.topics:
        return waiting.expire(call.now_ms)
    return waiting.try_complete(call.now_ms) or Wait(
        operation=waiting,
        keys=(METADATA_CHANGED,),
        deadline_ms=call.now_ms + request.max_wait_ms,
    )


def _response(controller: Controller, request: FetchRequest) -> FetchResponse:
    return FetchResponse(
        responses=tuple(
            FetchedTopic(
                topic_id=topic.topic_id,
                partitions=tuple(
                    _partition(controller, topic.topic_id, requested, request.max_bytes)
                    for requested in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _partition(
    controller: Controller, topic_id: Uuid, requested: FetchPartition, max_bytes: int
) -> FetchedPartition:
    index = requested.partition
    if topic_id != METADATA_TOPIC_ID:
        return FetchedPartition(partition_index=index, error_code=ErrorCode.unknown_topic_id)
    if index != METADATA_PARTITION:
        return FetchedPartition(
            partition_index=index, error_code=ErrorCode.unknown_topic_or_partition
        )
    end_offset = controller.metadata.end_offset
    if not 0 <= requested.fetch_offset <= end_offset:
        return FetchedPartition(
            partition_index=index,
            error_code=ErrorCode.offset_out_of_range,
            high_watermark=end_offset,
        )
    limit = min(max_bytes, requested.partition_max_bytes)
    records = controller.batches_from(requested.fetch_offset, limit)
    snapshot_id = SnapshotId()
    if records is None:
        snapshot_id = SnapshotId(end_offset=controller.snapshot()[0], epoch=CONTROLLER_EPOCH)
    return FetchedPartition(
        partition_index=index,
        high_watermark=end_offset,
        last_stable_offset=end_offset,
        log_start_offset=0,
        snapshot_id=snapshot_id,
        records=records or b"",
    )


API: Final = Api(
    key=1,
    versions=range(17, 18),
    request=FetchRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)
