"""DescribeLogDirs (35), versions 1 to 5: the sizes of the logs on this broker (KIP-113).

A broker has one log directory. If `topics` is null, all partitions are described. Partitions
without a log on this broker are omitted. The offset lag is the high watermark minus the log end
offset, but at least 0. It is positive only on followers. There are no future logs and no cordoned
directories. From version 4 on, the response contains the total and usable size of the volume
(KIP-827), or -1 if the size is unknown. Source:
`kafka.server.KafkaApis.handleDescribeLogDirsRequest`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_cluster
from broker_ref.frozen import dataclass
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    """A DescribeLogDirs request. If `topics` is None, all partitions are requested."""

    topics: tuple[RequestedTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPartition:
    """The size and the offset lag of a log."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTopic:
    """The logs of a topic."""

    name: str
    partitions: tuple[DescribedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedLogDir:
    """A log directory, its logs and the size of its volume."""

    log_dir: str
    topics: tuple[DescribedTopic, ...]
    total_bytes: int
    usable_bytes: int
    error_code: ErrorCode = ErrorCode.none
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    """A DescribeLogDirs response."""

    results: tuple[DescribedLogDir, ...]
    error_code: ErrorCode = ErrorCode.none
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Describe the requested logs."""
    del call
    requested = None
    if request.topics is not None:
        requested = {
            PartitionKey(topic=topic.topic, partition=index)
            for topic in request.topics
            for index in topic.partitions
        }
    selected = sorted(
        (
            each
            for each in broker.replicas.partitions()
            if requested is None or each.key in requested
        ),
        key=lambda partition: (partition.key.topic, partition.key.partition),
    )
    space = broker.log_dir.space()
    log_dir = DescribedLogDir(
        log_dir=broker.log_dir.path,
        topics=tuple(
            DescribedTopic(name=name, partitions=tuple(map(_describe, partitions)))
            for name, partitions in groupby(selected, key=lambda each: each.key.topic)
        ),
        total_bytes=space.total_bytes,
        usable_bytes=space.usable_bytes,
    )
    return DescribeLogDirsResponse(results=(log_dir,))


def _describe(partition: Partition) -> DescribedPartition:
    return DescribedPartition(
        partition_index=partition.key.partition,
        partition_size=partition.log.size_bytes,
        offset_lag=max(partition.high_watermark - partition.log.log_end_offset, 0),
    )


API: Final = Api(
    key=35,
    versions=range(1, 6),
    request=DescribeLogDirsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.DESCRIBE),),
)
