"""Tests of fetch sessions: incremental responses and rejected requests (KIP-227)."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection, request
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.wire import MEBIBYTE, append, topic_id

TopicFactory = Callable[..., str]
Session = tuple[int, int]
Partition = tuple[str | uuid.UUID, int]
NEW: Session = (0, 0)


def session_request(
    session: Session,
    offsets: Mapping[Partition, int] | None = None,
    *,
    forget: tuple[Partition, ...] = (),
    version: int = 12,
    **fields: Any,
) -> Any:
    """Return a fetch request for these offsets; `forget` removes partitions from the session."""
    named = "topic_id" if version >= 13 else "topic"
    wanted = {"partition_max_bytes": MEBIBYTE}
    defaults = {"min_bytes": 1, "max_bytes": MEBIBYTE}
    if version < 15:
        defaults["replica_id"] = -1
    return request(
        "fetch",
        version,
        **{**defaults, **fields},
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            {named: topic, "partitions": [{"partition": index, "fetch_offset": offset, **wanted}]}
            for (topic, index), offset in (offsets or {}).items()
        ],
        forgotten_topics_data=[{named: topic, "partitions": [index]} for topic, index in forget],
    )


def returned(response: Any) -> dict[int, tuple[ErrorCode, int, bool]]:
    """Return (error code, high watermark, whether there are records) by partition."""
    assert response.error_code == ErrorCode.none, response
    return {
        answer.partition_index: (answer.error_code, answer.high_watermark, bool(answer.records))
        for topic in response.responses
        for answer in topic.partitions
    }


@pytest.fixture
def name(topic: TopicFactory) -> str:
    return topic(partitions=3)


def begin(raw: RawConnection, name: str | uuid.UUID, *, version: int = 12) -> int:
    """Open a session that fetches the three partitions from their start."""
    offsets = {(name, index): 0 for index in range(3)}
    response = raw.send(session_request(NEW, offsets, version=version))
    assert set(returned(response)) == {0, 1, 2}
    assert response.session_id > 0
    return int(response.session_id)


def write(raw: RawConnection, name: str, partition: int) -> None:
    append(raw, name, batch(values("a")), partition=partition)


def test_only_changed_partitions_are_returned(raw: RawConnection, name: str) -> None:
    session_id = begin(raw, name)
    response = raw.send(session_request((session_id, 1)))
    assert (returned(response), response.session_id) == ({}, session_id)
    write(raw, name, 1)
    assert returned(raw.send(session_request((session_id, 2)))) == {1: (ErrorCode.none, 1, True)}
    assert returned(raw.send(session_request((session_id, 3), {(name, 1): 1}))) == {}


def test_records_are_returned_until_the_offset_moves(raw: RawConnection, name: str) -> None:
    write(raw, name, 0)
    session_id = begin(raw, name)
    for epoch in (1, 2):
        assert returned(raw.send(session_request((session_id, epoch)))) == {
            0: (ErrorCode.none, 1, True)
        }
    assert returned(raw.send(session_request((session_id, 3), {(name, 0): 1}))) == {}


def test_errors_are_returned_every_time_and_their_end_once(raw: RawConnection, name: str) -> None:
    session_id = begin(raw, name)
    out_of_range = {2: (ErrorCode.offset_out_of_range, -1, False)}
    assert returned(raw.send(session_request((session_id, 1), {(name, 2): 9}))) == out_of_range
    assert returned(raw.send(session_request((session_id, 2)))) == out_of_range
    again = raw.send(session_request((session_id, 3), {(name, 2): 0}))
    assert returned(again) == {2: (ErrorCode.none, 0, False)}
    assert returned(raw.send(session_request((session_id, 4)))) == {}


def test_changed_log_start_is_returned(raw: RawConnection, name: str) -> None:
    write(raw, name, 0)
    session_id = begin(raw, name)
    assert returned(raw.send(session_request((session_id, 1), {(name, 0): 1}))) == {}
    partition = {"partition_index": 0, "offset": 1}
    raw.call(
        "delete_records", 2, timeout=30_000, topics=[{"name": name, "partitions": [partition]}]
    )
    assert returned(raw.send(session_request((session_id, 2)))) == {0: (ErrorCode.none, 1, False)}
    assert returned(raw.send(session_request((session_id, 3)))) == {}


def test_partitions_rotate(raw: RawConnection, name: str) -> None:
    for partition in range(3):
        write(raw, name, partition)
    session_id = begin(raw, name)
    served = []
    for epoch in range(1, 7):
        responses = returned(raw.send(session_request((session_id, epoch), max_bytes=1)))
        served += [index for index, (_, _, records) in responses.items() if records]
    assert sorted(served[:3]) == [0, 1, 2]
    assert served[3:] == served[:3]


def test_forgotten_partitions_are_not_returned(raw: RawConnection, name: str) -> None:
    session_id = begin(raw, name)
    for partition in range(3):
        write(raw, name, partition)
    response = raw.send(session_request((session_id, 1), forget=((name, 0), (name, 2))))
    assert set(returned(response)) == {1}


def test_session_without_partitions_is_closed(raw: RawConnection, name: str) -> None:
    session_id = begin(raw, name)
    everything = tuple((name, index) for index in range(3))
    response = raw.send(session_request((session_id, 1), forget=everything))
    assert (returned(response), response.session_id) == ({}, 0)
    gone = raw.send(session_request((session_id, 2)))
    assert gone.error_code == ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_ends_the_session_it_names(raw: RawConnection, name: str, epoch: int) -> None:
    session_id = begin(raw, name)
    response = raw.send(session_request((session_id, epoch), {(name, 0): 0}))
    assert returned(response) == {0: (ErrorCode.none, 0, False)}
    assert (response.session_id == 0) == (epoch == -1)
    gone = raw.send(session_request((session_id, 1)))
    assert gone.error_code == ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("epoch", [2, 2**31 - 1])
def test_session_epochs_must_be_consecutive(raw: RawConnection, name: str, epoch: int) -> None:
    session_id = begin(raw, name)
    refused = raw.send(session_request((session_id, epoch)))
    assert refused.error_code == ErrorCode.invalid_fetch_session_epoch
    assert (refused.session_id, refused.responses) == (0, ())
    assert returned(raw.send(session_request((session_id, 1)))) == {}
    repeated = raw.send(session_request((session_id, 1)))
    assert repeated.error_code == ErrorCode.invalid_fetch_session_epoch


def test_unknown_session(raw: RawConnection, name: str) -> None:
    session_id = begin(raw, name)
    raw.send(session_request((session_id, -1)))
    refused = raw.send(session_request((session_id, 1), {(name, 0): 0}))
    assert refused.error_code == ErrorCode.fetch_session_id_not_found
    assert (refused.session_id, refused.responses) == (0, ())


def test_session_cannot_switch_from_names_to_ids(raw: RawConnection, name: str) -> None:
    session_id = begin(raw, name)
    refused = raw.send(session_request((session_id, 1), version=13))
    assert refused.error_code == ErrorCode.fetch_session_topic_id_error
    session_id = begin(raw, topic_id(raw, name), version=13)
    refused = raw.send(session_request((session_id, 1)))
    assert refused.error_code == ErrorCode.fetch_session_topic_id_error


@pytest.mark.parametrize("version", [13, 17])
def test_sessions_with_topic_ids(raw: RawConnection, name: str, version: int) -> None:
    identifier = topic_id(raw, name)
    session_id = begin(raw, identifier, version=version)
    write(raw, name, 2)
    response = raw.send(session_request((session_id, 1), version=version))
    assert returned(response) == {2: (ErrorCode.none, 1, True)}
    assert [topic.topic_id for topic in response.responses] == [identifier]
    forgotten = raw.send(
        session_request((session_id, 2), forget=((identifier, 2),), version=version)
    )
    assert returned(forgotten) == {}


def test_unknown_topic_ids_in_a_session(raw: RawConnection, name: str) -> None:
    unknown = uuid.uuid4()
    offsets: dict[Partition, int] = {(unknown, 0): 0, (topic_id(raw, name), 1): 0}
    response = raw.send(session_request(NEW, offsets, version=13))
    expected = {0: (ErrorCode.unknown_topic_id, -1, False)}
    assert returned(response) == {1: (ErrorCode.none, 0, False), **expected}
    for epoch in (1, 2):
        assert (
            returned(raw.send(session_request((response.session_id, epoch), version=13)))
            == expected
        )


def test_waiting_session_is_woken_and_gets_only_changes(
    raw: RawConnection, raw_address: str, name: str
) -> None:
    session_id = begin(raw, name)
    waiting = session_request((session_id, 1), max_wait=20_000)
    raw.send_only(waiting)
    with RawConnection(raw_address) as other:
        write(other, name, 2)
    assert returned(raw.receive(waiting)) == {2: (ErrorCode.none, 1, True)}


def test_next_request_of_a_session_ends_the_previous_wait(
    raw: RawConnection, raw_address: str, name: str
) -> None:
    session_id = begin(raw, name)
    with RawConnection(raw_address) as other:
        waiting = session_request((session_id, 1), max_wait=20_000)
        other.send_only(waiting)
        # The broker rejects this request until it has read the request on the other connection.
        eventually(lambda: raw.send(session_request((session_id, 2))).error_code == ErrorCode.none)
        write(raw, name, 0)
        stale = other.receive(waiting)
    assert stale.error_code == ErrorCode.invalid_fetch_session_epoch
    assert stale.responses == ()
    assert returned(raw.send(session_request((session_id, 3)))) == {0: (ErrorCode.none, 1, True)}


def test_duplicate_partition_is_returned_once(raw: RawConnection, name: str) -> None:
    write(raw, name, 0)
    both = session_request((0, -1), {(name, 0): 0, (name, 1): 0})
    (first, second) = both.topics
    doubled = dataclasses.replace(both, topics=(first, second, first))
    response = raw.send(doubled)
    assert [p.partition_index for t in response.responses for p in t.partitions] == [0, 1]
