"""The committed offsets of a group, one try each.

Purpose: OffsetFetch and OffsetCommit. Invariant: a response has exactly the requested partitions. A
coordinator that does not respond, or is not the coordinator, is looked up again by the next try.
What it must not know: which errors are retriable. Sources: OffsetFetchRequest.json and
OffsetCommitRequest.json of Kafka; KIP-447 (stable offsets).
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
"""The generation of a commit to a group without members, by a client that is not a member."""


def reading_commits(group_id: str) -> str:
    """Return the operation of `committed_offsets`, for errors."""
    return f"reading the committed offsets of {CoordinatorKey.group(group_id)}"


def committing(group_id: str) -> str:
    """Return the operation of `commit_offsets`, for errors."""
    return f"committing offsets of {CoordinatorKey.group(group_id)}"


def committed_offsets(
    router: Router, group_id: str, partitions: Collection[TopicPartition], *, deadline: float
) -> dict[TopicPartition, int | None]:
    """Send OffsetFetch; None is a partition without a committed offset. Raises `ApiError`."""
    operation = reading_commits(group_id)
    key = CoordinatorKey.group(group_id)
    coordinator = router.coordinator(key, deadline=deadline)
    try:
        connection = router.connection(coordinator, deadline=deadline)
        response = router.call(
            connection, _offset_fetch(connection, group_id, partitions), deadline=deadline
        )
    except (BrokerUnreachableError, ProtocolError):
        router.forget_coordinator(key)
        raise
    found = response
    if response.__version__ >= _FIRST_OF_MANY_GROUPS:
        if [group.group_id for group in response.groups] != [group_id]:
            raise ProtocolError(
                f"{sentence(operation)} failed: the response of {connection.broker} is for another "
                "group.",
                group_id=group_id,
            )
        (found,) = response.groups
    if found.error_code is not ErrorCode.none:
        router.invalidate(found.error_code, key=key)
        raise ApiError(found.error_code, operation, group_id=group_id)
    offsets: dict[TopicPartition, int | None] = {}
    received: list[TopicPartition] = []
    for topic in found.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            received.append(partition)
            if answer.error_code is not ErrorCode.none:
                router.invalidate(answer.error_code, topic=topic.name, key=key)
                raise ApiError(
                    answer.error_code,
                    f"{operation} for {partition}",
                    topic=topic.name,
                    partition=partition.partition,
                    group_id=group_id,
                )
            committed = answer.committed_offset
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
        router.forget_coordinator(key)
        raise
    check_commits(router, response, offsets, key=key, operation=committing(group_id))


def committed_topics(offsets: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """Return the field `topics` of OffsetCommit and TxnOffsetCommit."""
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
    """Check an OffsetCommit or TxnOffsetCommit response; raise `ApiError` or `ProtocolError`."""
    answers = [
        (TopicPartition(topic.name, answer.partition_index), answer.error_code)
        for topic in response.topics
        for answer in topic.partitions
    ]
    if wrong := partition_mismatch([partition for partition, _ in answers], offsets):
        raise ProtocolError(f"{sentence(operation)} failed: {wrong}.", **key.error_fields)
    for partition, code in answers:
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
    """Return how a response differs from the requested partitions, None if it does not."""
    if missing := set(requested) - set(received):
        return f"{min(missing)} is missing in the response"
    if len(received) > len(requested):
        return "the response has partitions that were not requested"
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
        require_stable=True,  # no offsets of an open transaction, as in Kafka's client
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
