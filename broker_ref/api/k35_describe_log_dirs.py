"""DescribeLogDirs (35), versions 1 to 5: the sizes of the logs on this broker (KIP-113).

Behaviour: this broker has one log directory. Null topics request all partitions; partitions without
a log here are omitted. The offset lag is the high watermark minus the log end offset, which is
positive on followers only. There are no future logs and no cordoned directories. Versions from 4 on
contain the size of the volume (KIP-827), -1 if it is unknown. Source:
`kafka.server.KafkaApis.handleDescribeLogDirsRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.replication.partition import Partition, PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The partitions of a topic."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    """A DescribeLogDirs request; None requests all partitions."""

    topics: tuple[RequestedTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPartition:
    """A log."""

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
    """A log directory."""

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
    asked = None
    if request.topics is not None:
        asked = {
            PartitionKey(topic=topic.topic, partition=index)
            for topic in request.topics
            for index in topic.partitions
        }
    selected = sorted(
        (each for each in broker.replicas.partitions() if asked is None or each.key in asked),
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


API: Final = Api(key=35, versions=range(1, 6), request=DescribeLogDirsRequest, handle=handle)
