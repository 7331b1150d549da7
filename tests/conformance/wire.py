"""Requests for one topic and one partition, with defaults for all other fields.

Functions return the result of the single partition, group or resource, so that tests need not
unpack nested responses. The default versions are the newest that use topic names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.static.constants import EntityType
from kio.static.protocol import RequestPayload

from integration.raw import RawConnection, api_key, request

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
MEBIBYTE = 1024 * 1024


def served(raw: RawConnection, api: str) -> list[int]:
    """Return the versions of an API that both the broker and kio support; at least one."""
    by_key = {entry.api_key: entry for entry in raw.call("api_versions", 3, **_SOFTWARE).api_keys}
    entry = by_key[api_key(api)]
    known = [v for v, types in schema_name_map[api].items() if EntityType.request in types]
    versions = [v for v in sorted(known) if entry.min_version <= v <= entry.max_version]
    assert versions, f"{api}: the broker serves {entry.min_version} to {entry.max_version}"
    return versions


_SOFTWARE = {"client_software_name": "conformance", "client_software_version": "1"}


def only(items: Sequence[Any]) -> Any:
    assert len(items) == 1, items
    return items[0]


def topic_id(raw: RawConnection, topic: str) -> uuid.UUID:
    found = only(describe_topics(raw, topic, version=12).topics)
    assert found.error_code == ErrorCode.none
    assert isinstance(found.topic_id, uuid.UUID)
    return found.topic_id


def describe_topics(raw: RawConnection, *topics: str, version: int = 12) -> Any:
    return raw.call(
        "metadata",
        version,
        topics=[{"name": topic} for topic in topics],
        allow_auto_topic_creation=False,
    )


def partitions_led(address: str, topic: str) -> int:
    """Return the number of partitions with a leader in the metadata of one broker."""
    with RawConnection(address) as raw:
        found = only(describe_topics(raw, topic).topics)
    return sum(partition.leader_id >= 0 for partition in found.partitions)


def produce_request(
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = 12,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> RequestPayload:
    data = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
    return request(
        "produce",
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=timeout_ms,
        topic_data=[data],
    )


def produce(raw: RawConnection, topic: str, records: bytes | None, **options: Any) -> Any:
    """Produce to one partition and return the result; `options` are those of `produce_request`."""
    response = raw.send(produce_request(topic, records, **options))
    return only(only(response.responses).partition_responses)


def append(raw: RawConnection, topic: str, records: bytes, *, partition: int = 0) -> int:
    """Produce records, which must be accepted, and return the base offset."""
    response = produce(raw, topic, records, partition=partition)
    assert response.error_code == ErrorCode.none, response
    return int(response.base_offset)


def fetch_request(
    topics: Mapping[str | uuid.UUID, Sequence[Mapping[str, Any]]],
    *,
    version: int = 12,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 50 * MEBIBYTE,
    isolation_level: int = READ_UNCOMMITTED,
    session_id: int = 0,
    session_epoch: int = -1,
    rack_id: str = "",
) -> RequestPayload:
    """Return a fetch request; each partition is a mapping of the schema's fields."""
    by_id = version >= 13
    fields: dict[str, Any] = {
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "topics": [
            {
                "topic_id" if by_id else "topic": topic,
                "partitions": [
                    {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MEBIBYTE, **p}
                    for p in partitions
                ],
            }
            for topic, partitions in topics.items()
        ],
    }
    if version >= 7:
        fields |= {"session_id": session_id, "session_epoch": session_epoch}
    if version >= 11:
        fields["rack_id"] = rack_id
    if version < 15:
        fields["replica_id"] = -1
    return request("fetch", version, **fields)


def fetch(raw: RawConnection, topic: str | uuid.UUID, offset: int = 0, **options: Any) -> Any:
    """Fetch one partition and return the result.

    `options` are those of `fetch_request` and the fields of a partition.
    """
    of_request = set(fetch_request.__annotations__) & options.keys()
    partition = {k: v for k, v in options.items() if k not in of_request}
    requested = {topic: [{"fetch_offset": offset, **partition}]}
    response = raw.send(fetch_request(requested, **{k: options[k] for k in of_request}))
    return only(only(response.responses).partitions)


def list_offset(
    raw: RawConnection,
    topic: str,
    timestamp_ms: int,
    *,
    partition: int = 0,
    version: int = 9,
    isolation_level: int = READ_UNCOMMITTED,
    leader_epoch: int = -1,
) -> Any:
    requested: dict[str, Any] = {"partition_index": partition, "timestamp": timestamp_ms}
    fields: dict[str, Any] = {
        "replica_id": -1,
        "topics": [{"name": topic, "partitions": [requested]}],
    }
    if version >= 2:
        fields["isolation_level"] = isolation_level
    if version >= 4:
        requested["current_leader_epoch"] = leader_epoch
    return only(only(raw.call("list_offsets", version, **fields).topics).partitions)
