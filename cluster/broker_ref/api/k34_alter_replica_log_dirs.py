"""AlterReplicaLogDirs (34), versions 1 and 2: move logs to another log directory (KIP-113).

A broker has one log directory. A request for this directory succeeds, but no log is moved. If a
request contains a partition twice, the last directory is used. The errors are:

- LOG_DIR_NOT_FOUND: the directory is not the broker's log directory.
- REPLICA_NOT_AVAILABLE: the broker has no replica of the partition.
- INVALID_TOPIC_EXCEPTION: the topic's name is too long for the directory of a future log.

Source: `kafka.server.KafkaApis.handleAlterReplicaLogDirsRequest` and
`kafka.server.ReplicaManager.alterReplicaLogDirs`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_cluster
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.security.acls import AclOperation

_DIRECTORY_NAME_MAX: Final = 255
_FUTURE_SUFFIX_LENGTH: Final = len(".-future") + 32
"""The length of a future log's directory suffix, including an id of 32 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic."""

    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDirectory:
    """A log directory, and the partitions whose logs are to be moved to it."""

    path: str
    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsRequest:
    """An AlterReplicaLogDirs request."""

    dirs: tuple[RequestedDirectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The error code for a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The results for a topic."""

    topic_name: str
    partitions: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    """An AlterReplicaLogDirs response."""

    results: tuple[TopicResult, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Check whether each log is in the requested directory."""
    del call
    paths = {
        PartitionKey(topic=topic.name, partition=index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    ordered = sorted(paths, key=lambda key: (key.topic, key.partition))
    return AlterReplicaLogDirsResponse(
        results=tuple(
            TopicResult(
                topic_name=name,
                partitions=tuple(
                    PartitionResult(
                        partition_index=key.partition,
                        error_code=_error_code_of(broker, key, paths[key]),
                    )
                    for key in keys
                ),
            )
            for name, keys in groupby(ordered, key=lambda key: key.topic)
        )
    )


def _error_code_of(broker: Broker, key: PartitionKey, path: str) -> ErrorCode:
    """Return the error code for moving a log to `path`."""
    if len(f"{key.topic}-{key.partition}") + _FUTURE_SUFFIX_LENGTH > _DIRECTORY_NAME_MAX:
        return ErrorCode.invalid_topic_exception
    if path != broker.log_dir.path:
        return ErrorCode.log_dir_not_found
    try:
        broker.replicas.partition(key.topic, key.partition)
    except ApiError as error:
        if error.error_code == ErrorCode.not_leader_or_follower:
            return ErrorCode.replica_not_available
        return error.error_code
    return ErrorCode.none


API: Final = Api(
    key=34,
    versions=range(1, 3),
    request=AlterReplicaLogDirsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER),),
)
