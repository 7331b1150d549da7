"""Group coordinators and committed offsets, for consumers without group membership."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.wire import only, topic_id

GROUP = 0
_NAMES_MAX = 200
_NOT_READY = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
}


def find_coordinator(
    raw: RawConnection, *keys: str, version: int = 4, key_type: int = GROUP
) -> Any:
    """Send FindCoordinator until the offsets topic exists, and return the response."""
    responses: list[Any] = []

    def answered() -> bool:
        fields: dict[str, Any] = {"coordinator_keys": list(keys), "key_type": key_type}
        if version < 4:
            fields = {"key": only(keys)} | ({"key_type": key_type} if version >= 1 else {})
        responses.append(raw.call("find_coordinator", version, **fields))
        found = responses[-1].coordinators if version >= 4 else [responses[-1]]
        return all(c.error_code != ErrorCode.coordinator_not_available for c in found)

    eventually(answered)
    return responses[-1]


def group_coordinated_by(raw: RawConnection, broker_id: int, names: Callable[[], str]) -> str:
    """Return the first group id from `names` that this broker coordinates.

    `raw` must be connected to that broker. The coordinator has loaded the group.
    """
    for _ in range(_NAMES_MAX):
        name = names()
        if only(find_coordinator(raw, name).coordinators).node_id == broker_id:
            await_coordinator(raw, name)
            return name
    raise AssertionError(f"broker {broker_id} coordinates none of {_NAMES_MAX} groups")


def await_coordinator(raw: RawConnection, group: str) -> None:
    """Wait until the coordinator has loaded the group; `raw` is connected to it."""
    find_coordinator(raw, group)
    eventually(lambda: fetch_offsets(raw, group, None).error_code not in _NOT_READY)


def commit(
    raw: RawConnection,
    group: str,
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    version: int = 9,
    metadata: str | None = "",
    leader_epoch: int = -1,
    **member: Any,
) -> ErrorCode:
    """Commit one partition and return the error code; `member` has the fields of a group member."""
    requested: dict[str, Any] = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_metadata": metadata,
    }
    if version >= 6:
        requested["committed_leader_epoch"] = leader_epoch
    by = {"topic_id": topic_id(raw, topic)} if version >= 10 else {"name": topic}
    fields: dict[str, Any] = {"generation_id_or_member_epoch": -1, **member}
    if 2 <= version <= 4:
        fields["retention_time"] = -1
    response = raw.call(
        "offset_commit",
        version,
        group_id=group,
        topics=[{**by, "partitions": [requested]}],
        **fields,
    )
    code = only(only(response.topics).partitions).error_code
    assert isinstance(code, ErrorCode)
    return code


def committed(
    raw: RawConnection, group: str, topic: str, *partitions: int, version: int = 9
) -> list[tuple[int, str | None, int]]:
    """Return (offset, metadata, leader epoch) of these partitions, in order."""
    found = fetch_offsets(raw, group, {topic: list(partitions or (0,))}, version=version)
    assert found.error_code == ErrorCode.none
    responses = only(found.topics).partitions
    assert all(p.error_code == ErrorCode.none for p in responses)
    return [(p.committed_offset, p.metadata, p.committed_leader_epoch) for p in responses]


def fetch_offsets(
    raw: RawConnection, group: str, topics: dict[str, list[int]] | None, *, version: int = 9
) -> Any:
    """Return the OffsetFetch result of one group; `topics` None requests all topics."""
    requested = (
        None
        if topics is None
        else [{"name": t, "partition_indexes": indexes} for t, indexes in topics.items()]
    )
    if version >= 8:
        groups = [{"group_id": group, "topics": requested}]
        return only(raw.call("offset_fetch", version, groups=groups).groups)
    return raw.call("offset_fetch", version, group_id=group, topics=requested)
