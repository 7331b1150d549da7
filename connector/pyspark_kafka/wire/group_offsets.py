"""The offsets of groups: read and committed, one try each.

Purpose: OffsetFetch and OffsetCommit of one group. Invariant: an answer is about the partitions
that were asked for and no others; a coordinator that does not answer, or says that it is none, is
found anew by the next try. What it must not know: which answers are worth another try. Sources:
OffsetFetchRequest.json and OffsetCommitRequest.json of Kafka; KIP-447 (stable offsets).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import BrokerUnreachableError, ProtocolError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.connection import Connection, Request, entity_request
from pyspark_kafka.wire.coordinators import CoordinatorKey
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.versions import Api

_FIRST_OF_MANY_GROUPS: Final = 8
_NO_MEMBER: Final = ""
_NO_GENERATION: Final = -1
"""So commits who is no member, to a group that has none."""


def reading_commits(group_id: str) -> str:
    """What `committed_offsets` does, for errors."""
    return f"reading the committed offsets of {CoordinatorKey.group(group_id)}"


def committing(group_id: str) -> str:
    """What `commit_offsets` does, for errors."""
    return f"committing offsets of {CoordinatorKey.group(group_id)}"


def committed_offsets(
    router: Router, group_id: str, partitions: Collection[TopicPartition], *, deadline: float
) -> dict[TopicPartition, int | None]:
    """OffsetFetch; None where the group has committed none. Raises `ApiError`."""
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
                f"{operation} failed: {connection.broker} answered for other groups"
            )
        (found,) = response.groups
    if found.error_code is not ErrorCode.none:
        router.invalidate(found.error_code, key=key)
        raise ApiError(found.error_code, operation)
    offsets: dict[TopicPartition, int | None] = {}
    answered: list[TopicPartition] = []
    for topic in found.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            answered.append(partition)
            if answer.error_code is not ErrorCode.none:
                router.invalidate(answer.error_code, topic=topic.name, key=key)
                raise ApiError(answer.error_code, f"{operation}, {partition},")
            committed = answer.committed_offset
            offsets[partition] = committed if committed >= 0 else None
    if wrong := partition_mismatch(answered, partitions):
        raise ProtocolError(f"{operation} failed: {connection.broker} answered, but {wrong}")
    return offsets


def commit_offsets(
    router: Router, group_id: str, offsets: Mapping[TopicPartition, int], *, deadline: float
) -> None:
    """OffsetCommit of a group without members. Raises `ApiError` for the first that is refused."""
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
    """The topics of OffsetCommit and TxnOffsetCommit."""
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
    """The answer to OffsetCommit or TxnOffsetCommit: raises `ApiError` or `ProtocolError`."""
    answers = [
        (TopicPartition(topic.name, answer.partition_index), answer.error_code)
        for topic in response.topics
        for answer in topic.partitions
    ]
    if wrong := partition_mismatch([partition for partition, _ in answers], offsets):
        raise ProtocolError(f"{operation} failed: {wrong}")
    for partition, code in answers:
        if code is not ErrorCode.none:
            router.invalidate(code, topic=partition.topic, key=key)
            raise ApiError(code, f"{operation}, {partition},")


def partition_mismatch(
    answered: Collection[TopicPartition], asked: Collection[TopicPartition]
) -> str | None:
    """What is wrong with an answer about these partitions, if anything."""
    if left_out := set(asked) - set(answered):
        return f"the answer leaves out {min(left_out)}."
    if len(answered) > len(asked):
        return "the answer is about more than what was asked."
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
        require_stable=True,  # offsets of an open transaction are waited for, as in Kafka's client
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
