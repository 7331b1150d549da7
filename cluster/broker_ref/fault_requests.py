"""The properties of a request that a `Faults` rule can match.

This module uses Kafka's field names to extract the topics, partitions and sender of any request
message. If a message has no field for topics, the result contains no topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from broker_ref.faults import RequestInfo
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid

INTER_NODE_APIS: Final = frozenset({56, 58, 59, 62, 63, 67})
"""The APIs that only brokers and controllers call: AlterPartition, Envelope, FetchSnapshot,
BrokerRegistration, BrokerHeartbeat, AllocateProducerIds."""

_REPLICA_APIS: Final = frozenset({1, 2, 23, 59})
"""The APIs whose requests contain a replica id, which is -1 if the sender is a client."""

_TOPICS: Final = (
    "topics", "topic_data", "topic_partitions", "topic_names", "v3_and_below_topics"
)  # fmt: skip
_TOPICS_WITHIN: Final = ("dirs", "groups", "transactions", "markers")
_PARTITIONS: Final = ("partitions", "partition_data", "partition_indexes")
_PARTITION: Final = ("partition_index", "partition", "index")
_TOPIC: Final = ("name", "topic")

_RESOURCE_IS_TOPIC: Final = 2
"""Kafka's `ConfigResource.Type.TOPIC`."""

TopicNameOf = Callable[[Uuid], str | None]


def request_info(
    request: object,
    *,
    node_id: int,
    api_key: int,
    version: int,
    client_id: str | None,
    topic_name: TopicNameOf,
) -> RequestInfo:
    """Return the properties of a request. `topic_name` resolves topic ids to names.

    A request in a fetch session contains only the partitions that were added or changed, so only
    these partitions are returned.
    """
    topics: set[str] = set()
    partitions: set[tuple[str, int]] = set()
    for topic in _topics_of(request):
        name = _name_of(topic, topic_name)
        if name is not None:
            topics.add(name)
            partitions.update((name, partition) for partition in _partitions_of(topic))
    topics.update(_topics_configured(request))
    sender_id = _sender_of(request, api_key)
    return RequestInfo(
        node_id=node_id,
        api_key=api_key,
        version=version,
        client_id=client_id,
        sender_id=sender_id,
        is_between_nodes=sender_id is not None or api_key in INTER_NODE_APIS,
        topics=frozenset(topics),
        partitions=frozenset(partitions),
    )


def _topics_of(request: object) -> Iterator[Any]:
    for array in _TOPICS:
        yield from getattr(request, array, None) or ()
    for array in _TOPICS_WITHIN:
        for element in getattr(request, array, None) or ():
            yield from getattr(element, "topics", None) or ()


def _name_of(topic: Any, topic_name: TopicNameOf) -> str | None:
    if isinstance(topic, str):
        return topic
    for field in _TOPIC:
        name = getattr(topic, field, None)
        if name:
            return str(name)
    topic_id = getattr(topic, "topic_id", None)
    return topic_name(topic_id) if topic_id not in {None, ZERO_UUID} else None


def _partitions_of(topic: Any) -> Iterator[int]:
    for array in _PARTITIONS:
        for partition in getattr(topic, array, None) or ():
            if isinstance(partition, int):
                yield partition
                continue
            for field in _PARTITION:
                if hasattr(partition, field):
                    yield int(getattr(partition, field))


def _topics_configured(request: object) -> Iterator[str]:
    for resource in getattr(request, "resources", None) or ():
        if resource.resource_type == _RESOURCE_IS_TOPIC:
            yield resource.resource_name


def _sender_of(request: object, api_key: int) -> int | None:
    if api_key in _REPLICA_APIS:
        state = getattr(request, "replica_state", None)
        ids = (getattr(state, "replica_id", -1), getattr(request, "replica_id", -1))
        return max(ids) if max(ids) >= 0 else None
    if api_key in INTER_NODE_APIS:
        return getattr(request, "broker_id", None)
    return None
