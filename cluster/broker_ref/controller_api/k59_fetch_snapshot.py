"""FetchSnapshot (59), versions 0 and 1: fetch part of a metadata snapshot (KIP-630).

The request contains a snapshot id from an earlier Fetch response. The response contains the bytes
of this snapshot, starting at `position`. If the controller has a different snapshot, the error is
SNAPSHOT_NOT_FOUND, and the broker fetches the metadata again. The error is POSITION_OUT_OF_RANGE if
the position is beyond the end of the snapshot, and INCONSISTENT_CLUSTER_ID if the request contains
the id of another cluster. Source: `kafka.server.ControllerApis.handleFetchSnapshot`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.metadata_batches import (
    CONTROLLER_EPOCH,
    METADATA_PARTITION,
    METADATA_TOPIC,
)
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.controller_api.k01_fetch import SnapshotId
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSnapshot:
    """The id of a snapshot, and the position of the first byte to return."""

    partition: int
    snapshot_id: SnapshotId
    position: int
    current_leader_epoch: int = CONTROLLER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested snapshots of a topic."""

    name: str
    partitions: tuple[RequestedSnapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """A FetchSnapshot request."""

    topics: tuple[RequestedTopic, ...]
    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The controller, which is the leader of the metadata partition."""

    leader_id: int = CONTROLLER_ID
    leader_epoch: int = CONTROLLER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """The bytes of a snapshot starting at `position`, or an error.

    `size` is the size of the snapshot.
    """

    index: int
    snapshot_id: SnapshotId
    error_code: ErrorCode = ErrorCode.none
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    size: int = 0
    position: int = 0
    unaligned_records: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The snapshot parts for a topic."""

    name: str
    partitions: tuple[SnapshotPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """A FetchSnapshot response."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[TopicResponse, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: FetchSnapshotRequest
) -> FetchSnapshotResponse:
    """Return a part of each requested snapshot."""
    del call
    if request.cluster_id not in {None, context.cluster_id}:
        return FetchSnapshotResponse(error_code=ErrorCode.inconsistent_cluster_id)
    return FetchSnapshotResponse(
        topics=tuple(
            TopicResponse(
                name=topic.name,
                partitions=tuple(
                    _part(context, topic.name, requested, request.max_bytes)
                    for requested in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _part(
    context: ControllerContext, topic: str, requested: RequestedSnapshot, max_bytes: int
) -> SnapshotPart:
    end_offset, data = context.controller.snapshot()
    error = ErrorCode.none
    if (topic, requested.partition) != (METADATA_TOPIC, METADATA_PARTITION):
        error = ErrorCode.unknown_topic_or_partition
    elif requested.snapshot_id != SnapshotId(end_offset=end_offset, epoch=CONTROLLER_EPOCH):
        error = ErrorCode.snapshot_not_found
    elif not 0 <= requested.position < len(data):
        error = ErrorCode.position_out_of_range
    if error is not ErrorCode.none:
        return SnapshotPart(
            index=requested.partition, snapshot_id=requested.snapshot_id, error_code=error
        )
    return SnapshotPart(
        index=requested.partition,
        snapshot_id=requested.snapshot_id,
        size=len(data),
        position=requested.position,
        unaligned_records=data[requested.position : requested.position + max(max_bytes, 1)],
    )


API: Final = Api(
    key=59,
    versions=range(2),
    request=FetchSnapshotRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)
