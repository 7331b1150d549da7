"""Tests that a follower adds a limited number of partitions per request, and loses none."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.protocol.identifiers import Uuid
from broker_ref.replication.fetch_session_handler import (
    ADDED_PER_REQUEST,
    FetchLimits,
    FetchSessionHandler,
)
from broker_ref.replication.follower_messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ReplicaState,
)

TOPIC_ID = Uuid(int=1000)
COUNT = 2 * ADDED_PER_REQUEST + 1
WAIT_MS = 500


def state(partition: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        current_leader_epoch=0,
        fetch_offset=offset,
        last_fetched_epoch=0,
        log_start_offset=0,
        partition_max_bytes=1,
    )


def sent(handler: FetchSessionHandler, session_id: int = 7) -> FetchRequest:
    """Build a request and process a response without records."""
    request = handler.build_request(
        ReplicaState(replica_id=1, replica_epoch=1),
        FetchLimits(max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=1),
    )
    assert handler.handle_response(
        FetchResponse(error_code=ErrorCode.none, session_id=session_id, responses=())
    )
    return request


def partitions(request: FetchRequest) -> list[int]:
    return [each.partition for topic in request.topics for each in topic.partitions]


@pytest.fixture
def handler() -> FetchSessionHandler:
    handler = FetchSessionHandler()
    for partition in range(COUNT):
        handler.add((TOPIC_ID, partition), state(partition))
    return handler


@pytest.mark.parametrize("is_after_error", [False, True])
def test_partitions_are_added_in_several_requests(
    handler: FetchSessionHandler, is_after_error: bool
) -> None:
    if is_after_error:
        sent(handler)
        handler.handle_error()
    requests = [sent(handler) for _ in range(4)]
    assert [len(partitions(request)) for request in requests] == [
        ADDED_PER_REQUEST, ADDED_PER_REQUEST, 1, 0,
    ]  # fmt: skip
    assert [request.max_wait_ms for request in requests] == [0, 0, WAIT_MS, WAIT_MS]
    assert [request.session_epoch for request in requests] == [0, 1, 2, 3]
    assert len(handler.session_partitions) == COUNT


def test_changes_of_added_partitions_are_not_delayed(handler: FetchSessionHandler) -> None:
    sent(handler)
    for partition in range(ADDED_PER_REQUEST):
        handler.add((TOPIC_ID, partition), state(partition, offset=9))
    handler.remove((TOPIC_ID, COUNT - 1))
    request = sent(handler)
    assert set(partitions(request)) == set(range(2 * ADDED_PER_REQUEST))
    assert partitions(sent(handler)) == []


def test_requests_without_a_session_contain_all_partitions(handler: FetchSessionHandler) -> None:
    sent(handler, session_id=0)
    for _ in range(2):
        assert partitions(sent(handler, session_id=0)) == list(range(COUNT))


def test_changed_partitions_move_to_the_end() -> None:
    handler = FetchSessionHandler()
    keys = [(TOPIC_ID, 0), (TOPIC_ID, 1), (Uuid(int=2000), 2), (TOPIC_ID, 3)]

    def order(*offsets: int) -> list[int]:
        for key, offset in zip(keys, offsets, strict=True):
            handler.add(key, state(key[1], offset))
        return partitions(sent(handler, session_id=0))

    assert order(0, 0, 0, 0) == [0, 1, 2, 3]
    assert order(9, 0, 0, 9) == [1, 2, 0, 3]
    assert order(9, 9, 0, 9) == [2, 0, 3, 1]
