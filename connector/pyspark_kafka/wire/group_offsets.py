"""Sends OffsetFetch and OffsetCommit requests for one consumer group, without retries.

If a response does not contain exactly the requested partitions, an error is raised. If a
coordinator does not respond or has moved, the next attempt looks up the coordinator again. Sources:
OffsetFetchRequest.json and OffsetCommitRequest.json of Kafka; KIP-447 (stable offsets).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, ProtocolError, sentence
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.connection import Connection, Request, entity_request
from pyspark_kafka.wire.coordinators import CoordinatorKey
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

_FIRST_OF_MANY_GROUPS: Final = 8
_NO_MEMBER: Final = ""
_NO_GENERATION: Final = -1
"""The generation id in a commit from a client that is not a member of the group."""


def offset_fetch_operation(group_id: str) -> str:
    """Return the name of the `committed_offsets` operation for error messages."""
    return f"reading the committed offsets of {CoordinatorKey.group(group_id)}"


def offset_commit_operation(group_id: str) -> str:
    """Return the name of the `commit_offsets` operation for error messages."""
    return f"committing offsets of {CoordinatorKey.group(group_id)}"


def committed_offsets(
    router: Router, group_id: str, partitions: Collection[TopicPartition], *, deadline: float
) -> dict[TopicPartition, int | None]:
    """Send OffsetFetch and return the committed offsets. Raises `ApiError`.

    The value is None for a partition without a committed offset.
    """
    operation = offset_fetch_operation(group_id)
    key = CoordinatorKey.group(group_id)
    coordinator = router.coordinator(key, deadline=deadline)
    try:
        connection = router.connection(coordinator, deadline=deadline)
        response = router.call(
            connection, _offset_fetch(connection, group_id, partitions), deadline=deadline
        )
    except (BrokerUnreachableError, ProtocolError):
        router.invalidate_coordinator(key)
        raise
    found = response
    if response.__version__ >= _FIRST_OF_MANY_GROUPS:
        if [group.group_id for group in response.groups] != [group_id]:
            raise ProtocolError(
                f"{sentence(operation)} failed: the groups in the response from "
                f"{connection.broker} do not match the request.",
                group_id=group_id,
            )
        (found,) = response.groups
    if found.error_code is not ErrorCode.none:
        router.invalidate(found.error_code, key=key)
        raise ApiError(found.error_code, operation, group_id=group_id)
    offsets: dict[TopicPartition, int | None] = {}
    received: list[TopicPartition] = []
    for topic in found.topics:
        for result in topic.partitions:
            partition = TopicPartition(topic.name, result.partition_index)
            received.append(partition)
            if result.error_code is not ErrorCode.none:
                router.invalidate(result.error_code, topic=topic.name, key=key)
                raise ApiError(
                    result.error_code,
                    f"{operation} for {partition}",
                    topic=topic.name,
                    partition=partition.partition,
                    group_id=group_id,
                )
            committed = result.committed_offset
            offsets[partition] = committed if committed >= 0 else None
    if wrong := partition_mismatch(received, partitions):
        raise ProtocolError(
            f"{sentence(operation)} failed at {connection.broker}: {wrong}.", group_id=group_id
        )
    return offsets


def commit_offsets(
    router: Router, group_id: str, offsets: Mapping[TopicPartition, int], *, deadline: float
) -> None:
    """Send OffsetCommit for a group without members. Raises `ApiError` for the first error."""
    key = CoordinatorKey.group(group_id)
    coordinator = router.coordinator(key, deadline=deadline)
    try:
        connection = router.connection(coordinator, deadline=deadline)
        request = _offset_commit(connection, group_id, offsets)
        response = router.call(connection, request, deadline=deadline)
    except (BrokerUnreachableError, ProtocolError):
        router.invalidate_coordinator(key)
        raise
    check_commits(router, response, offsets, key=key, operation=offset_commit_operation(group_id))


def committed_topics(offsets: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """Return the `topics` field of an OffsetCommit or TxnOffsetCommit request."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.partition,
                "committed_offset": offset,
                "committed_metadata": "",
            }
        )
    return [{"name": name, "partitions": found} for name, found in topics.items()]


def check_commits(
    router: Router,
    response: Any,
    offsets: Mapping[TopicPartition, int],
    *,
    key: CoordinatorKey,
    operation: str,
) -> None:
    """Check an OffsetCommit or TxnOffsetCommit response. Raises `ApiError` or `ProtocolError`."""
    results = [
        (TopicPartition(topic.name, result.partition_index), result.error_code)
        for topic in response.topics
        for result in topic.partitions
    ]
    if wrong := partition_mismatch([partition for partition, _ in results], offsets):
        raise ProtocolError(f"{sentence(operation)} failed: {wrong}.", **key.error_fields)
    for partition, code in results:
        if code is not ErrorCode.none:
            router.invalidate(code, topic=partition.topic, key=key)
            raise ApiError(
                code,
                f"{operation} for {partition}",
                topic=partition.topic,
                partition=partition.partition,
                **key.error_fields,
            )


def partition_mismatch(
    received: Collection[TopicPartition], requested: Collection[TopicPartition]
) -> str | None:
    """Return a description of missing or unrequested partitions, or None if there are none."""
    if missing := set(requested) - set(received):
        return f"{min(missing)} is missing from the response"
    if len(received) > len(requested):
        return "the response contains partitions that were not requested"
    return None


def _offset_fetch(
    connection: Connection, group_id: str, partitions: Collection[TopicPartition]
) -> Request[Any]:
    indexes: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        indexes.setdefault(partition.topic, []).append(partition.partition)
    topics = [{"name": name, "partition_indexes": found} for name, found in indexes.items()]
    return entity_request(
        Api.OFFSET_FETCH,
        connection.versions.choose(Api.OFFSET_FETCH),
        group_id=group_id,
        topics=topics,
        groups=[{"group_id": group_id, "topics": topics}],
        require_stable=True,  # returns an error for offsets in open transactions
    )


def _offset_commit(
    connection: Connection, group_id: str, offsets: Mapping[TopicPartition, int]
) -> Request[Any]:
    return entity_request(
        Api.OFFSET_COMMIT,
        connection.versions.choose(Api.OFFSET_COMMIT),
        group_id=group_id,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id=_NO_MEMBER,
        topics=committed_topics(offsets),
    )
