"""FetchSnapshot (59), versions 0 and 1: the metadata snapshot, in chunks (KIP-630).

Behaviour: returns the snapshot that a Fetch of the metadata named, from `position` on.
SNAPSHOT_NOT_FOUND: another snapshot, so that the broker fetches the metadata again;
POSITION_OUT_OF_RANGE: beyond the end; INCONSISTENT_CLUSTER_ID: another cluster's id. Source:
`kafka.server.ControllerApis.handleFetchSnapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.metadata_batches import (
    CONTROLLER_EPOCH,
    METADATA_PARTITION,
    METADATA_TOPIC,
)
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.controller_api.k01_fetch import SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSnapshot:
    """A snapshot and the position to read from."""

    partition: int
    snapshot_id: SnapshotId
    position: int
    current_leader_epoch: int = CONTROLLER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[WantedSnapshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """A FetchSnapshot request."""

    topics: tuple[WantedTopic, ...]
    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The controller that serves the snapshot."""

    leader_id: int = CONTROLLER_ID
    leader_epoch: int = CONTROLLER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """Bytes of a snapshot of `size` bytes, from `position` on, or an error."""

    index: int
    snapshot_id: SnapshotId
    error_code: ErrorCode = ErrorCode.none
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    size: int = 0
    position: int = 0
    unaligned_records: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[SnapshotPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """A FetchSnapshot response."""

    error_code: ErrorCode = ErrorCode.none
    topics: tuple[AnsweredTopic, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: FetchSnapshotRequest
) -> FetchSnapshotResponse:
    """Return chunks of the snapshot."""
    del call
    if request.cluster_id not in {None, context.cluster_id}:
        return FetchSnapshotResponse(error_code=ErrorCode.inconsistent_cluster_id)
    return FetchSnapshotResponse(
        topics=tuple(
            AnsweredTopic(
                name=topic.name,
                partitions=tuple(
                    _part(context, topic.name, wanted, request.max_bytes)
                    for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _part(
    context: ControllerContext, topic: str, wanted: WantedSnapshot, max_bytes: int
) -> SnapshotPart:
    end_offset, data = context.controller.snapshot()
    error = ErrorCode.none
    if (topic, wanted.partition) != (METADATA_TOPIC, METADATA_PARTITION):
        error = ErrorCode.unknown_topic_or_partition
    elif wanted.snapshot_id != SnapshotId(end_offset=end_offset, epoch=CONTROLLER_EPOCH):
        error = ErrorCode.snapshot_not_found
    elif not 0 <= wanted.position < len(data):
        error = ErrorCode.position_out_of_range
    if error is not ErrorCode.none:
        return SnapshotPart(
            index=wanted.partition, snapshot_id=wanted.snapshot_id, error_code=error
        )
    return SnapshotPart(
        index=wanted.partition,
        snapshot_id=wanted.snapshot_id,
        size=len(data),
        position=wanted.position,
        unaligned_records=data[wanted.position : wanted.position + max(max_bytes, 1)],
    )


API: Final = Api(key=59, versions=range(2), request=FetchSnapshotRequest, handle=handle)
