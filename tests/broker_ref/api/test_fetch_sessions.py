"""Tests of fetch sessions: the cache, incremental responses, and eviction.

They also limit the cost of waking up a waiting fetch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api.partition_reader import PartitionReader
from broker_ref.config import BrokerConfig
from broker_ref.log.partition_log import PartitionLog
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.fetch_session_cache import (
    INVALID_SESSION_ID,
    MIN_EVICTION_MS,
    CachedPartition,
    FetchPartition,
    FetchSession,
    FetchSessionCache,
    PartitionPlace,
    next_epoch,
)
from broker_ref.replication.partition import Partition, PartitionKey
from integration.raw import request
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.node.driver import NodeDriver, only_response
from tests.broker_ref.node.requests import batch, create_topic, produce

READER, WRITER = 1, 2
MAGIC_POSITION = 16


# The cache


def partitions(count: int) -> dict[PartitionPlace, CachedPartition]:
    made: dict[PartitionPlace, CachedPartition] = {}
    for index in range(count):
        requested = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
        made["t", index] = CachedPartition(
            place=("t", index), topic="t", topic_id=ZERO_UUID, requested=requested
        )
    return made


class Cache:
    """A cache that assigns the ids 1, 2, 3, and so on."""

    def __init__(self, slots: int) -> None:
        self._drawn = 0
        self.sessions = FetchSessionCache(slots=slots, random_bytes=self._draw, wake=lambda _: None)

    def _draw(self, length: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(length)

    def create(self, size: int = 1, *, at_ms: int = 0, privileged: bool = False) -> int:
        return self.sessions.create(
            partitions(size), privileged=privileged, by_topic_id=False, now_ms=at_ms
        )

    def resume(
        self,
        session_id: int,
        epoch: int = 1,
        *,
        forgotten: Iterable[PartitionPlace] = (),
        at_ms: int = 0,
    ) -> FetchSession | None:
        return self.sessions.resume(
            session_id, epoch, by_topic_id=False, requested={}, forgotten=forgotten, now_ms=at_ms
        )

    def has(self, session_id: int) -> bool:
        try:
            self.resume(session_id, epoch=99)
        except ApiError as error:
            return error.error_code is ErrorCode.invalid_fetch_session_epoch
        raise AssertionError("no session has this epoch")


def test_ids_are_never_zero_or_taken() -> None:
    drawn = iter([0, 5, 1 << 31, 5, 6])
    sessions = FetchSessionCache(
        slots=9, random_bytes=lambda length: next(drawn).to_bytes(length), wake=lambda _: None
    )
    made = [
        sessions.create(partitions(1), privileged=False, by_topic_id=False, now_ms=0)
        for _ in range(2)
    ]
    assert made == [5, 6]


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(0).create() == INVALID_SESSION_ID


def test_recent_consumer_sessions_are_not_evicted() -> None:
    cache = Cache(2)
    first, second = cache.create(size=1), cache.create(size=2)
    assert cache.create(size=100, at_ms=MIN_EVICTION_MS) == INVALID_SESSION_ID
    assert cache.has(first)
    assert cache.has(second)


def test_the_least_recently_used_stale_session_is_evicted() -> None:
    cache = Cache(2)
    first, second = cache.create(size=9), cache.create(size=1)
    cache.resume(first, at_ms=10)
    made = cache.create(size=1, at_ms=MIN_EVICTION_MS + 1)
    assert made != INVALID_SESSION_ID
    assert (cache.has(first), cache.has(second)) == (True, False)


def test_an_old_session_is_evicted_for_a_larger_one() -> None:
    cache = Cache(2)
    small, large = cache.create(size=2), cache.create(size=4)
    later = MIN_EVICTION_MS + 1
    cache.resume(small, at_ms=later)
    cache.resume(large, at_ms=later)
    assert cache.create(size=1, at_ms=later) == INVALID_SESSION_ID
    assert cache.create(size=3, at_ms=later) != INVALID_SESSION_ID
    assert (cache.has(small), cache.has(large)) == (False, True)


def test_a_follower_evicts_the_smallest_recent_consumer_session() -> None:
    cache = Cache(2)
    large, small = cache.create(size=5), cache.create(size=2)
    assert cache.create(size=1, privileged=True) != INVALID_SESSION_ID
    assert (cache.has(large), cache.has(small)) == (True, False)


def test_consumers_do_not_evict_followers() -> None:
    cache = Cache(1)
    follower = cache.create(size=1, privileged=True)
    later = MIN_EVICTION_MS + 1
    cache.resume(follower, at_ms=later)
    assert cache.create(size=100, at_ms=later) == INVALID_SESSION_ID
    assert cache.has(follower)


def test_a_follower_does_not_evict_a_recent_follower() -> None:
    cache = Cache(1)
    cache.create(size=1, privileged=True)
    assert cache.create(size=9, privileged=True) == INVALID_SESSION_ID


def test_forgotten_partitions_are_not_watched() -> None:
    cache = Cache(1)
    session_id = cache.create(size=3)
    session = cache.resume(session_id)
    assert session is not None
    for index, key in enumerate(["recreated", "recreated", "other"]):
        cache.sessions.watch(session, ("t", index), key)
    cache.resume(session_id, epoch=2, forgotten=[("t", 0), ("t", 2)])
    assert cache.sessions.partitions_changed(["other"]) == []
    assert len(cache.sessions.partitions_changed(["recreated"])) == 1
    assert session.watched == {("t", 1): "recreated"}


def test_session_epochs_wrap_to_one() -> None:
    assert [next_epoch(epoch) for epoch in (-1, 0, 1, 2**31 - 1)] == [-1, 1, 2, 1]


# Sessions of a node


@pytest.fixture
def driver() -> NodeDriver:
    made = NodeDriver()
    create_topic(made, "t", 3)
    return made


def session_request(
    offsets: dict[int, int] | None = None,
    *,
    session: tuple[int, int],
    topic: str = "t",
    forget: tuple[int, ...] = (),
    **fields: Any,
) -> Any:
    """Return a Fetch request of version 12 in a session, with offsets by partition."""
    wanted = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for index, offset in (offsets or {}).items()
    ]
    return request(
        "fetch",
        12,
        **{"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields},
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic": topic, "partitions": wanted}] if wanted else [],
        forgotten_topics_data=[{"topic": topic, "partitions": forget}] if forget else [],
    )


def returned(response: Any) -> dict[int, tuple[int, bool]]:
    """Return (high watermark, whether there are records) by partition, in order."""
    assert response.error_code is ErrorCode.none
    return {
        answer.partition_index: (answer.high_watermark, bool(answer.records))
        for topic in response.responses
        for answer in topic.partitions
    }


def begin(driver: NodeDriver, *indexes: int, **fields: Any) -> int:
    response = driver.call(session_request(dict.fromkeys(indexes, 0), session=(0, 0), **fields))
    assert response.session_id > 0
    return int(response.session_id)


def write(driver: NodeDriver, partition: int) -> list[Any]:
    effects = driver.send(produce(batch("a"), partition=partition), connection_id=WRITER)
    return [effect for effect in effects if effect.connection_id != WRITER]


def test_incremental_responses_contain_changes_only(driver: NodeDriver) -> None:
    session_id = begin(driver, 0, 1, 2)
    assert returned(driver.call(session_request(session=(session_id, 1)))) == {}
    write(driver, 1)
    assert returned(driver.call(session_request(session=(session_id, 2)))) == {1: (1, True)}
    assert returned(driver.call(session_request({1: 1}, session=(session_id, 3)))) == {}


def test_errors_are_repeated_until_they_end(driver: NodeDriver) -> None:
    session_id = begin(driver, 0)
    for epoch in (1, 2):
        (topic,) = driver.call(session_request({1: 5}, session=(session_id, epoch))).responses
        assert [(p.partition_index, p.error_code) for p in topic.partitions] == [
            (1, ErrorCode.offset_out_of_range)
        ]
    assert returned(driver.call(session_request({1: 0}, session=(session_id, 3)))) == {
        1: (0, False)
    }
    assert returned(driver.call(session_request(session=(session_id, 4)))) == {}


def test_a_partition_with_records_moves_to_the_end(driver: NodeDriver) -> None:
    for partition in range(3):
        for _ in range(2):
            write(driver, partition)
    session_id = begin(driver, 0, 1, 2, max_bytes=1)
    served = []
    for epoch in range(1, 7):
        responses = returned(driver.call(session_request(session=(session_id, epoch), max_bytes=1)))
        # The client already knows the state of the partitions whose records did not fit.
        ((index, (_, has_records)),) = responses.items()
        assert has_records
        served.append(index)
    assert served == [0, 1, 2, 0, 1, 2]


def test_forgotten_partitions_are_not_returned(driver: NodeDriver) -> None:
    session_id = begin(driver, 0, 1)
    write(driver, 0)
    write(driver, 1)
    assert returned(driver.call(session_request(session=(session_id, 1), forget=(0,)))) == {
        1: (1, True)
    }
    last = driver.call(session_request(session=(session_id, 2), forget=(1,)))
    assert (returned(last), last.session_id) == ({}, 0)
    gone = driver.call(session_request(session=(session_id, 3)))
    assert gone.error_code is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_its_session(driver: NodeDriver, epoch: int) -> None:
    session_id = begin(driver, 0)
    response = driver.call(session_request({0: 0}, session=(session_id, epoch)))
    assert returned(response) == {0: (0, False)}
    assert (response.session_id == 0) == (epoch == -1)
    assert response.session_id != session_id
    gone = driver.call(session_request(session=(session_id, 1)))
    assert gone.error_code is ErrorCode.fetch_session_id_not_found


def test_session_epochs_must_be_consecutive(driver: NodeDriver) -> None:
    session_id = begin(driver, 0)
    for epoch in (2, 7):
        refused = driver.call(session_request(session=(session_id, epoch)))
        assert refused.error_code is ErrorCode.invalid_fetch_session_epoch
        assert (refused.session_id, refused.responses) == (0, ())
    assert returned(driver.call(session_request(session=(session_id, 1)))) == {}
    again = driver.call(session_request(session=(session_id, 1)))
    assert again.error_code is ErrorCode.invalid_fetch_session_epoch


def test_a_session_that_advanced_while_a_request_waited(driver: NodeDriver) -> None:
    session_id = begin(driver, 0)
    waiting = session_request(session=(session_id, 1), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    assert (
        returned(
            driver.call(
                session_request(session=(session_id, 2)),
            )
        )
        == {}
    )
    stale = only_response(waiting, write(driver, 0))
    assert stale.error_code is ErrorCode.invalid_fetch_session_epoch
    assert returned(driver.call(session_request(session=(session_id, 3)))) == {0: (1, True)}


def test_a_session_is_created_with_its_first_response(driver: NodeDriver) -> None:
    waiting = session_request({0: 0, 1: 0}, session=(0, 0), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    assert len(driver.broker.fetch_sessions) == 0
    first = only_response(waiting, write(driver, 1))
    assert returned(first) == {0: (0, False), 1: (1, True)}
    assert returned(driver.call(session_request({1: 1}, session=(first.session_id, 1)))) == {}


def test_a_waiting_fetch_in_a_session_returns_changes(driver: NodeDriver) -> None:
    session_id = begin(driver, 0, 1, 2)
    size = len(batch("a"))
    waiting = session_request(session=(session_id, 1), max_wait=500, min_bytes=3 * size)
    assert driver.send(waiting, connection_id=READER) == []
    assert write(driver, 2) == []
    assert write(driver, 2) == []
    response = only_response(waiting, write(driver, 0))
    assert returned(response) == {0: (1, True), 2: (2, True)}


@pytest.mark.parametrize("in_session", [True, False])
def test_damage_at_the_high_watermark_is_reported_immediately(in_session: bool) -> None:
    driver = NodeDriver()
    create_topic(driver, "t")
    write(driver, 0)
    partition = driver.broker.replicas.partition("t", 0)
    # A second replica is in sync, but has no records.
    partition.apply_metadata(
        dataclasses.replace(
            partition.metadata,
            replicas=(1, 2),
            isr=(1, 2),
            partition_epoch=partition.metadata.partition_epoch + 1,
        ),
        driver.now_ms,
    )
    driver.call(produce(batch("a"), acks=1))
    assert (partition.high_watermark, partition.log.log_end_offset) == (1, 2)
    session = (
        (driver.call(session_request({0: 1}, session=(0, 0))).session_id, 1)
        if in_session
        else (0, -1)
    )
    storage = driver.storage
    assert isinstance(storage, MemoryStorage)
    storage.overwrite(f"t-0/{0:020d}.log", len(batch("a")) + MAGIC_POSITION, b"\x07")
    requested = session_request({} if in_session else {0: 1}, session=session, max_wait=500)
    (topic,) = driver.call(requested).responses
    assert [p.error_code for p in topic.partitions] == [ErrorCode.corrupt_message]


def test_the_number_of_sessions_is_configurable() -> None:
    driver = NodeDriver(BrokerConfig(max_incremental_fetch_session_cache_slots=1))
    create_topic(driver, "t", 2)
    assert begin(driver, 0)
    assert driver.call(session_request({0: 0}, session=(0, 0))).session_id == 0


@pytest.mark.parametrize("removal", ["evicted", "closed", "emptied"])
def test_a_waiting_fetch_completes_when_its_session_is_removed(removal: str) -> None:
    driver = NodeDriver(BrokerConfig(max_incremental_fetch_session_cache_slots=1))
    create_topic(driver, "t", 2)
    session_id = begin(driver, 0)
    waiting = session_request(session=(session_id, 1), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    requested = {
        "evicted": session_request({1: 0}, session=(0, 0), replica_id=9),
        "closed": session_request({}, session=(session_id, -1)),
        "emptied": session_request({}, session=(session_id, 2), forget=(0,)),
    }[removal]
    effects = driver.send(requested, connection_id=WRITER)
    other = only_response(requested, [each for each in effects if each.connection_id == WRITER])
    assert other.error_code is ErrorCode.none
    assert (other.session_id > 0) == (removal == "evicted")
    ended = only_response(waiting, [each for each in effects if each.connection_id == READER])
    assert (returned(ended), ended.session_id) == ({}, session_id)
    gone = driver.call(session_request(session=(session_id, 2)))
    assert gone.error_code is ErrorCode.fetch_session_id_not_found


# Sessions with topic ids


def session_request_by_id(
    topic_id: Uuid | None,
    *,
    session: tuple[int, int],
    forget: Uuid | None = None,
    version: int = 17,
) -> Any:
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    return request(
        "fetch",
        version,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic_id": topic_id, "partitions": wanted}] if topic_id else [],
        forgotten_topics_data=[{"topic_id": forget, "partitions": [0]}] if forget else [],
    )


def errors(response: Any) -> dict[Any, ErrorCode]:
    assert response.error_code is ErrorCode.none, response.error_code
    return {
        topic.topic_id: answer.error_code
        for topic in response.responses
        for answer in topic.partitions
    }


def test_a_session_keeps_to_names_or_ids(driver: NodeDriver) -> None:
    named = begin(driver, 0)
    refused = driver.call(session_request_by_id(None, session=(named, 1)))
    assert refused.error_code is ErrorCode.fetch_session_topic_id_error
    topic_id = driver.broker.metadata.topics["t"].topic_id
    identified = driver.call(session_request_by_id(topic_id, session=(0, 0))).session_id
    refused = driver.call(session_request(session=(identified, 1)))
    assert refused.error_code is ErrorCode.fetch_session_topic_id_error


def test_an_unknown_topic_id_is_resolved_later(driver: NodeDriver) -> None:
    metadata = driver.broker.metadata
    topic_id = metadata.topics["t"].topic_id
    topic = metadata.topics_by_id.pop(topic_id)
    first = driver.call(session_request_by_id(topic_id, session=(0, 0)))
    assert errors(first) == {topic_id: ErrorCode.unknown_topic_id}
    again = driver.call(session_request_by_id(None, session=(first.session_id, 1)))
    assert errors(again) == {topic_id: ErrorCode.unknown_topic_id}
    metadata.topics_by_id[topic_id] = topic
    known = driver.call(session_request_by_id(None, session=(first.session_id, 2)))
    assert errors(known) == {topic_id: ErrorCode.none}
    assert driver.call(session_request_by_id(None, session=(first.session_id, 3))).responses == ()


def test_a_recreated_topic_is_not_the_sessions_topic(driver: NodeDriver) -> None:
    topic_id = driver.broker.metadata.topics["t"].topic_id
    session_id = driver.call(session_request_by_id(topic_id, session=(0, 0))).session_id
    driver.call(request("delete_topics", 5, topic_names=["t"]))
    gone = driver.call(session_request_by_id(None, session=(session_id, 1)))
    assert errors(gone) == {topic_id: ErrorCode.unknown_topic_or_partition}
    create_topic(driver, "t", 1)
    other = driver.call(session_request_by_id(None, session=(session_id, 2)))
    assert errors(other) == {topic_id: ErrorCode.inconsistent_topic_id}


# Sessions of followers


def test_a_followers_position_is_updated_once_before_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = NodeDriver()
    create_topic(driver, "t", 2)
    write(driver, 0)
    noted: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        Partition,
        "check_fetcher",
        lambda self, _replica_id, _replica_epoch, epoch: self.check_leader(epoch),
    )

    def note(
        self: Partition, replica_id: int, replica_epoch: int, *, fetch_offset: int, **_: object
    ) -> None:
        noted.append((self.key.partition, replica_id, fetch_offset))

    monkeypatch.setattr(Partition, "update_follower_fetch_state", note)
    first = driver.call(session_request({0: 0, 1: 0}, session=(0, 0), replica_id=9))
    assert noted == [(0, 9, 0), (1, 9, 0)]
    noted.clear()
    waiting = session_request({0: 1}, session=(first.session_id, 1), replica_id=9, max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    assert sorted(noted) == [(0, 9, 1), (1, 9, 0)]
    noted.clear()
    assert returned(only_response(waiting, write(driver, 1))) == {1: (1, True)}
    assert noted == []
    refused = driver.call(session_request({0: 7}, session=(first.session_id, 2), replica_id=9))
    (out_of_range,) = (p for t in refused.responses for p in t.partitions if p.partition_index == 0)
    assert out_of_range.error_code is ErrorCode.offset_out_of_range
    assert [index for index, _, _ in noted] == [1]


# Cost


def test_a_waiting_fetch_checks_changed_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200
    driver = NodeDriver()
    create_topic(driver, "t", count)
    session_id = begin(driver, *range(count))
    waiting = session_request(session=(session_id, 1), max_wait=500, min_bytes=1 << 19)
    looked: list[PartitionKey] = []
    read: list[str] = []
    locate = PartitionReader.locate
    read_log = PartitionLog.read

    def spy_locate(self: PartitionReader, cached: CachedPartition) -> Partition:
        partition = locate(self, cached)
        looked.append(partition.key)
        return partition

    def spy_read(self: PartitionLog, *args: Any, **kwargs: Any) -> bytes:
        read.append(self.directory)
        return read_log(self, *args, **kwargs)

    monkeypatch.setattr(PartitionReader, "locate", spy_locate)
    monkeypatch.setattr(PartitionLog, "read", spy_read)
    assert driver.send(waiting, connection_id=READER) == []
    assert read == []
    looked.clear()
    for _ in range(3):
        assert write(driver, 7) == []
    assert looked == [PartitionKey(topic="t", partition=7)] * 3
    (effect,) = driver.advance(500)
    assert returned(only_response(waiting, [effect])) == {7: (3, True)}
    assert read == ["t-7"]
