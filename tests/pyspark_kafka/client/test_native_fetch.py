"""Tests of the native engine with unusual Fetch responses."""

from __future__ import annotations

import logging
import struct
import time
import weakref
from itertools import pairwise
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.native import fetch as fetch_module
from pyspark_kafka.client.native.client import NativeReadClient
from pyspark_kafka.client.native.fetch import LastBatch, last_batch
from pyspark_kafka.client.native.fetch_sizes import (
    DECODED_BYTES_MAX,
    FETCH_BYTES_MAX,
    WHOLE_BATCH_BYTES_MAX,
    FetchSizes,
)
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    CorruptBatchError,
    FetchTimeoutError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.wire.connection import Connection, InFlightRequest
from pyspark_kafka.wire.fetch import FetchPartition
from pyspark_kafka.wire.metadata import topic_id_text
from pyspark_kafka.wire.retry import Clock
from tests.pyspark_kafka.client.records import options
from tests.pyspark_kafka.client.test_fetch import fetch_range
from tests.pyspark_kafka.records.batches import plain
from tests.pyspark_kafka.wire.scripted import (
    ALL_VERSIONS,
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
    frame,
)
from tests.pyspark_kafka.wire.test_router import cluster

COMMITTED = IsolationLevel.READ_COMMITTED
BATCH = plain([b"a", b"b", b"c"])


def fetched(records: bytes = b"", **fields: Any) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 3,
        "last_stable_offset": 3,
        "aborted_transactions": (),
        "preferred_read_replica": -1,
        "records": records,
    }
    return {"responses": [{"topic": "t", "partitions": [partition | fields]}]}


def listed(offset: int) -> dict[str, Any]:
    partition = {"partition_index": 0, "error_code": 0, "offset": offset}
    return {"topics": [{"name": "t", "partitions": [partition]}]}


def opened(broker: ScriptedBroker, **kafka: Any) -> NativeReadClient:
    return NativeReadClient.of(
        NativeSettings.of(options(broker.address, poll_timeout_ms=5_000, **kafka))
    )


def offsets(
    client: NativeReadClient, start: int = 0, end: int = 3, *, topic_id: UUID | None = None
) -> list[int]:
    batches = client.fetch(
        fetch_range("t", start, end),
        ("offset",),
        COMMITTED,
        topic_id=None if topic_id is None else topic_id_text(topic_id),
    )
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def read(*brokers: ScriptedBroker) -> list[int]:
    with opened(brokers[0]) as client:
        return offsets(client)


def identified(metadata: dict[str, Any], topic_id: UUID) -> dict[str, Any]:
    """Return the metadata with this topic id."""
    return metadata | {"topics": [topic | {"topic_id": topic_id} for topic in metadata["topics"]]}


def fetched_by_id(topic_id: UUID, records: bytes = b"", **fields: Any) -> dict[str, Any]:
    (topic,) = fetched(records, **fields)["responses"]
    return {"responses": [{"topic_id": topic_id, "partitions": topic["partitions"]}]}


def test_the_replica_that_the_leader_names_is_read() -> None:
    leader = ScriptedResponses(metadata=[], fetch=[fetched(preferred_read_replica=2)])
    replica = ScriptedResponses(fetch=[fetched(BATCH)])
    with ScriptedBroker(leader) as one, ScriptedBroker(replica) as two:
        leader.by_api["metadata"] = [cluster(one, two, leader_id=1)]
        assert read(one, two) == [0, 1, 2]
    assert (leader.count("fetch"), replica.count("fetch")) == (1, 1)


def test_the_leader_confirms_the_end_that_a_replica_reports() -> None:
    """The read of the replica from tiered storage may have timed out (KIP-405)."""

    def lead(peer: Peer, received: ReceivedRequest) -> None:
        has_rack = b"rack-1" in received.rest
        found = fetched(preferred_read_replica=2) if has_rack else fetched(BATCH)
        peer.respond(received, "fetch", **found)

    leader = ScriptedResponses(metadata=[], fetch=[lead, lead], list_offsets=[listed(0)])
    replica = ScriptedResponses(fetch=[fetched()])
    with ScriptedBroker(leader) as one, ScriptedBroker(replica) as two:
        leader.by_api["metadata"] = [cluster(one, two, leader_id=1)]
        with opened(one, client_rack="rack-1") as client:
            assert offsets(client) == [0, 1, 2]
    assert (leader.count("fetch"), replica.count("fetch")) == (2, 1)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param({"responses": []}, id="empty, as when throttled"),
        pytest.param(fetched(high_watermark=0, last_stable_offset=0), id="no records yet"),
        pytest.param(fetched(error_code=int(ErrorCode.not_leader_or_follower)), id="not leader"),
        pytest.param(fetched(error_code=int(ErrorCode.unknown_server_error)), id="tiered storage"),
    ],
)
def test_retriable_error_is_retried(first: dict[str, Any]) -> None:
    responses = ScriptedResponses(metadata=[], fetch=[first, fetched(BATCH)])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        assert read(broker) == [0, 1, 2]
    assert responses.count("fetch") == 2


def test_range_without_visible_records_is_complete() -> None:
    responses = ScriptedResponses(metadata=[], fetch=[fetched()], list_offsets=[listed(0)])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        assert read(broker) == []


@pytest.mark.parametrize(
    ("data", "following"),
    [
        (b"", -1),
        (BATCH, 3),
        (BATCH[:-1], -1),
        (BATCH + plain([b"d"], base_offset=7), 8),
        (BATCH + plain([b"d"], base_offset=7)[:-1], 3),
        (BATCH + b"\0" * 100, 3),
    ],
)
def test_the_next_offset_is_known_from_headers(data: bytes, following: int) -> None:
    assert last_batch(memoryview(data)).next_offset == following


OLD, NEW = UUID(int=1), UUID(int=2)
UNKNOWN_ID = int(ErrorCode.unknown_topic_id)


def test_topic_recreated_during_the_read_is_an_error() -> None:
    responses = ScriptedResponses(
        fetch=[
            fetched_by_id(OLD, BATCH, high_watermark=9, last_stable_offset=9),
            fetched_by_id(OLD, error_code=UNKNOWN_ID),
            fetched_by_id(NEW, BATCH),
        ]
    )
    with ScriptedBroker(responses) as broker, opened(broker, retry_backoff_ms="1") as client:
        known = cluster(broker)
        responses.by_api["metadata"] = [identified(known, OLD), identified(known, NEW)]
        with pytest.raises(
            UnknownTopicOrPartitionError, match=rf"'t'.*{topic_id_text(OLD)}.*{topic_id_text(NEW)}"
        ):
            offsets(client, 0, 6)
    assert responses.count("fetch") == 2


def test_metadata_of_an_earlier_topic_is_refreshed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pyspark_kafka")
    responses = ScriptedResponses(fetch=[fetched_by_id(OLD, BATCH), fetched_by_id(NEW, BATCH)])
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        known = cluster(broker)
        responses.by_api["metadata"] = [identified(known, OLD), identified(known, NEW)]
        assert offsets(client, topic_id=OLD) == [0, 1, 2]
        assert offsets(client, topic_id=NEW) == [0, 1, 2]
    assert responses.received == ["metadata", "fetch", "metadata", "fetch"]
    assert caplog.messages == [], "no try failed"


def test_topic_id_is_checked_before_a_fetch_by_name() -> None:
    by_name = {**ALL_VERSIONS, 1: (4, 12)}
    responses = ScriptedResponses(fetch=[fetched(BATCH)])

    def old(peer: Peer) -> None:
        peer.negotiate(by_name)
        responses.serve(peer)

    with ScriptedBroker(old) as broker, opened(broker, retry_backoff_ms="1") as client:
        known = cluster(broker)
        responses.by_api["metadata"] = [identified(known, OLD), identified(known, NEW)]
        with pytest.raises(
            UnknownTopicOrPartitionError, match=rf"'t'.*{topic_id_text(OLD)}.*{topic_id_text(NEW)}"
        ):
            offsets(client, topic_id=OLD)
    assert responses.count("fetch") == 0


def test_a_short_range_is_one_request_once_the_topic_is_known() -> None:
    more = fetched_by_id(OLD, BATCH, high_watermark=9, last_stable_offset=9)
    responses = ScriptedResponses(fetch=[more])
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [identified(cluster(broker), OLD)]
        for _ in range(3):
            assert offsets(client, topic_id=OLD) == [0, 1, 2]
        assert broker.connections == 1
    assert responses.received == ["metadata", "fetch", "fetch", "fetch"]


def test_connection_closed_while_idle_is_reopened_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pyspark_kafka")
    responses = ScriptedResponses(fetch=[fetched(BATCH)])
    closed = Event()

    def serve_once(peer: Peer) -> None:
        peer.negotiate()
        for api in ("metadata", "fetch"):
            peer.respond(peer.read(), api, **responses.by_api[api][0])
        peer.close()
        closed.set()

    with ScriptedBroker(serve_once, responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [cluster(broker)]
        assert offsets(client) == [0, 1, 2]
        assert closed.wait(5)
        caplog.clear()
        assert offsets(client) == [0, 1, 2]
        assert broker.connections == 2
    assert caplog.messages == []


def test_a_connection_idle_for_longer_than_the_client_keeps_it_is_not_used() -> None:
    responses = ScriptedResponses(fetch=[fetched(BATCH)])
    now_s = [0.0]
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        settings = NativeSettings.of(options(broker.address, connections_max_idle_ms="60000"))
        with NativeReadClient.of(settings, Clock(now=lambda: now_s[0])) as client:
            for at_s, connections in ((0, 1), (59, 1), (118, 1), (179, 2)):
                now_s[0] = at_s
                assert offsets(client) == [0, 1, 2]
                assert broker.connections == connections


def test_reader_closed_with_a_request_in_flight_keeps_the_connection() -> None:
    first = fetched(BATCH, high_watermark=9, last_stable_offset=9)
    behind = fetched(plain([b"d"], base_offset=3), high_watermark=9, last_stable_offset=9)
    responses = ScriptedResponses(fetch=[first, behind, fetched(BATCH)])
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [cluster(broker)]
        reading: Any = client.fetch(fetch_range("t", 0, 9), ("offset",), COMMITTED)
        assert next(reading).num_rows == 3
        reading.close()
        assert offsets(client) == [0, 1, 2]
        assert broker.connections == 1
    assert responses.count("fetch") == 3


def test_fetch_sent_ahead_is_used_only_at_the_next_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = iter([4, 6])
    monkeypatch.setattr(fetch_module, "last_batch", lambda _: LastBatch(next(said), 0))
    ends = {"high_watermark": 6, "last_stable_offset": 6}
    rest = plain([b"d", b"e", b"f"], base_offset=3)
    responses = ScriptedResponses(
        fetch=[fetched(BATCH, **ends), fetched(rest, **ends), fetched(rest, **ends)]
    )
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [cluster(broker)]
        assert offsets(client, 0, 6) == [0, 1, 2, 3, 4, 5]
    assert responses.count("fetch") == 3


def test_tiered_storage_that_takes_too_long_is_no_end() -> None:
    """KIP-405: the broker then returns no records, although the log has them."""
    responses = ScriptedResponses(fetch=[fetched(), fetched(BATCH)], list_offsets=[listed(3)])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        assert read(broker) == [0, 1, 2]


def test_metadata_is_refreshed_when_the_leader_is_unreachable() -> None:
    """The connection breaks during a read, and nothing listens on the address."""

    def answer_once(peer: Peer) -> None:
        peer.negotiate()
        peer.respond(peer.read(), "fetch", **fetched(BATCH))
        peer.until_closed()

    gone = ScriptedBroker(answer_once)
    responses = ScriptedResponses(fetch=[fetched(plain([b"d", b"e", b"f"], base_offset=3))])
    with ScriptedBroker(responses) as left, opened(left) as client:
        with gone:
            both = cluster(left, gone, leader_id=2, leader_epoch=5)
            responses.by_api["metadata"] = [both, both, cluster(left, leader_epoch=6)]
            reading: Any = client.fetch(fetch_range("t", 0, 6), ("offset",), COMMITTED)
            assert next(reading)["offset"].to_pylist() == [0, 1, 2]
        assert next(reading)["offset"].to_pylist() == [3, 4, 5]


def test_a_broker_that_falls_silent_does_not_take_all_the_time() -> None:
    """The client has two connections to the silent broker, by bootstrap and advertised address."""
    silent = ScriptedResponses(metadata=[], fetch=[lambda peer, _: peer.hang()])
    responses = ScriptedResponses(metadata=[], fetch=[fetched(BATCH)])
    with ScriptedBroker(silent) as one, ScriptedBroker(responses) as two:
        silent.by_api["metadata"] = [cluster(one, two), lambda peer, _: peer.hang()]
        responses.by_api["metadata"] = [cluster(one, two, leader_id=2, leader_epoch=6)]
        found = options(f"localhost:{one.port}", poll_timeout_ms=60_000, request_timeout_ms="500")
        with NativeReadClient.of(NativeSettings.of(found)) as client:
            assert offsets(client) == [0, 1, 2]
    assert (silent.count("metadata"), one.connections) == (2, 2)


def test_silent_leader_does_not_use_the_whole_timeout() -> None:
    responses = ScriptedResponses(metadata=[], fetch=[fetched(BATCH)])
    setup = {"socket_connection_setup_timeout_ms": "100"}
    with ScriptedBroker(responses) as one, ScriptedBroker(Peer.hang) as stopped:
        responses.by_api["metadata"] = [
            cluster(one, stopped, leader_id=2),
            cluster(one, stopped, leader_epoch=6),
        ]
        with opened(one, **setup) as client:
            assert offsets(client) == [0, 1, 2]
        assert stopped.connections == 1


def test_rows_in_hand_do_not_wait_until_throttling_is_over() -> None:
    rest = fetched(plain([b"d", b"e", b"f"], base_offset=3))
    responses = ScriptedResponses(
        metadata=[], fetch=[fetched(BATCH) | {"throttle_time": 3_000}, rest]
    )
    slept_s: list[float] = []
    started_s = time.monotonic()

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    clock = Clock(now=lambda: time.monotonic() - started_s + sum(slept_s), sleep=sleep)
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        with NativeReadClient.of(NativeSettings.of(options(broker.address)), clock) as client:
            reading = client.fetch(fetch_range("t", 0, 6), ("offset",), COMMITTED)
            assert next(reading)["offset"].to_pylist() == [0, 1, 2]
            assert slept_s == []
            assert next(reading)["offset"].to_pylist() == [3, 4, 5]
    assert slept_s == pytest.approx([3.0], abs=0.5)


def test_a_quota_is_not_evaded_by_a_new_connection() -> None:
    throttled = fetched(BATCH) | {"throttle_time": 60_000}
    responses = ScriptedResponses(
        metadata=[], fetch=[throttled, fetched(plain([b"d"], base_offset=3))]
    )
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        found = options(broker.address, poll_timeout_ms=300, default_api_timeout_ms="100")
        with NativeReadClient.of(NativeSettings.of(found)) as client:
            reading = client.fetch(fetch_range("t", 0, 4), ("offset",), COMMITTED)
            assert next(reading).num_rows == 3
            with pytest.raises(BrokerUnreachableError, match=r"\b[1-6]\d(\.\d*)? s\b"):
                next(reading)
        assert broker.connections == 1
    assert responses.received == ["metadata", "fetch"]


def test_malformed_response_fails_before_the_timeout() -> None:
    def garble(peer: Peer, received: ReceivedRequest) -> None:
        peer.send(frame(struct.pack(">i", received.correlation_id) + b"garbled"))

    responses = ScriptedResponses(metadata=[], fetch=[garble])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        with opened(broker, retry_backoff_ms="1") as client:
            with pytest.raises(ProtocolError) as caught:
                offsets(client)
            error = caught.value
            assert (error.topic, error.partition, error.offset) == ("t", 0, 0)
    assert responses.count("fetch") == 5


@pytest.mark.parametrize(
    ("code", "offset"),
    [(ErrorCode.unknown_leader_epoch, listed(9)), (ErrorCode.kafka_storage_error, None)],
)
def test_persistent_error_code_is_in_the_error(
    code: ErrorCode, offset: dict[str, Any] | None
) -> None:
    def refuse(peer: Peer, received: ReceivedRequest) -> None:
        peer.respond(received, "fetch", **fetched(error_code=int(code)))

    partition = {"partition_index": 0, "error_code": int(code)}
    refused = {"topics": [{"name": "t", "partitions": [partition]}]}
    responses = ScriptedResponses(metadata=[], fetch=[refuse], list_offsets=[offset or refused])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        found = options(broker.address, poll_timeout_ms=200, default_api_timeout_ms="200")
        with (
            NativeReadClient.of(NativeSettings.of(found)) as client,
            pytest.raises(FetchTimeoutError, match=code.name.upper()),
        ):
            offsets(client)


def test_a_topic_deleted_under_the_read_is_noticed_soon() -> None:
    more = fetched_by_id(OLD, BATCH, high_watermark=9, last_stable_offset=9)
    responses = ScriptedResponses(
        metadata=[], fetch=[more, fetched_by_id(OLD, error_code=UNKNOWN_ID)]
    )
    with ScriptedBroker(responses) as broker:
        known = identified(cluster(broker), OLD)
        code = int(ErrorCode.unknown_topic_or_partition)
        gone = {"topics": [{"name": "t", "error_code": code, "partitions": ()}]}
        responses.by_api["metadata"] = [known, {**known, **gone}]
        with (
            opened(broker, retry_backoff_ms="1") as client,
            pytest.raises(UnknownTopicOrPartitionError, match=f"'t'.*{broker.address}"),
        ):
            offsets(client, 0, 6)
    assert responses.count("metadata") == 1 + 4 + 1, "one request per attempt and a final one"


def test_a_topic_that_may_not_be_described_fails_at_once() -> None:
    stale = fetched(error_code=int(ErrorCode.not_leader_or_follower))
    responses = ScriptedResponses(metadata=[], fetch=[stale])
    with ScriptedBroker(responses) as broker:
        known = cluster(broker)
        code = int(ErrorCode.topic_authorization_failed)
        denied = {"topics": [{"name": "t", "error_code": code, "partitions": ()}]}
        responses.by_api["metadata"] = [known, {**known, **denied}]
        with opened(broker) as client, pytest.raises(AuthorizationError) as caught:
            offsets(client)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 0)
    assert responses.count("metadata") == 2


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[FetchPartition]:
    """Record the partitions that fetches request."""
    noted: list[FetchPartition] = []

    def note(**fields: Any) -> FetchPartition:
        noted.append(FetchPartition(**fields))
        return noted[-1]

    monkeypatch.setattr(fetch_module, "FetchPartition", note)
    return noted


def of_epoch(epoch: int, batch: bytes) -> bytes:
    return batch[:12] + struct.pack(">i", epoch) + batch[16:]


ENDS: dict[str, Any] = {"high_watermark": 9, "last_stable_offset": 9}
CUT = fetched(diverging_epoch={"epoch": 3, "end_offset": 2}, **ENDS)


def test_truncated_log_is_detected(
    requested: list[FetchPartition],
) -> None:
    """KIP-320: the new log has the requested offsets, but not the records before them."""
    batches = of_epoch(3, BATCH) + of_epoch(4, plain([b"d"], base_offset=3))
    responses = ScriptedResponses(
        metadata=[], fetch=[fetched(batches, **ENDS), CUT], list_offsets=[listed(9)]
    )
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [cluster(broker)]
        reading = client.fetch(fetch_range("t", 0, 9), ("offset",), COMMITTED)
        assert next(reading).num_rows == 4
        with pytest.raises(OffsetOutOfRangeError, match=r"\b4 to 9\b.*\b2\b"):
            next(reading)
    assert [(one.fetch_offset, one.last_fetched_epoch) for one in requested] == [(0, -1), (4, 4)]


def test_a_follower_that_lags_does_not_make_a_log_cut_short() -> None:
    rest = fetched(plain([b"d"], base_offset=3), **ENDS)
    leader = ScriptedResponses(metadata=[], fetch=[fetched(preferred_read_replica=2), rest])
    replica = ScriptedResponses(fetch=[fetched(BATCH, **ENDS), CUT])
    with ScriptedBroker(leader) as one, ScriptedBroker(replica) as two, opened(one) as client:
        leader.by_api["metadata"] = [cluster(one, two)]
        assert offsets(client, 0, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("next_offset", [4, 9])
def test_last_fetched_epoch_is_sent_only_if_the_headers_were_right(
    next_offset: int, requested: list[FetchPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "last_batch", lambda _: LastBatch(next_offset, 7))
    rest = plain([b"d", b"e", b"f"], base_offset=3)
    responses = ScriptedResponses(metadata=[], fetch=[fetched(BATCH), fetched(rest), fetched(rest)])
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [cluster(broker)]
        assert offsets(client, 0, 6) == [0, 1, 2, 3, 4, 5]
    assert [one.last_fetched_epoch for one in requested if one.fetch_offset == 3] == [-1]


def test_leader_in_the_response_saves_a_metadata_request() -> None:
    """KIP-951: the new leader is not in the metadata of the client yet."""
    old = ScriptedResponses(metadata=[], fetch=[])
    new = ScriptedResponses(fetch=[fetched_by_id(OLD, BATCH)])
    with ScriptedBroker(old) as one, ScriptedBroker(new) as two, opened(one) as client:
        refusal = fetched_by_id(
            OLD,
            error_code=int(ErrorCode.not_leader_or_follower),
            current_leader={"leader_id": 2, "leader_epoch": 6},
        )
        endpoint = {"node_id": 2, "host": "127.0.0.1", "port": two.port, "rack": None}
        old.by_api["fetch"] = [refusal | {"node_endpoints": [endpoint]}]
        old.by_api["metadata"] = [identified(cluster(one), OLD)]
        assert offsets(client) == [0, 1, 2]
    assert old.received == ["metadata", "fetch"]


def test_response_is_freed_before_the_next_one_is_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[memoryview]] = []
    receive = Connection.receive

    def look(records: memoryview) -> LastBatch:
        held.append(weakref.ref(records))
        return last_batch(records)

    def wait(connection: Connection, pending: InFlightRequest[Any], *, deadline: float) -> Any:
        assert all(answer() is None for answer in held)
        return receive(connection, pending, deadline=deadline)

    monkeypatch.setattr(fetch_module, "last_batch", look)
    monkeypatch.setattr(Connection, "receive", wait)
    responses = ScriptedResponses(
        fetch=[fetched(plain([b"v"], base_offset=n), **ENDS) for n in range(4)]
    )
    with ScriptedBroker(responses) as broker, opened(broker) as client:
        responses.by_api["metadata"] = [cluster(broker)]
        assert offsets(client, 0, 4) == [0, 1, 2, 3]
    assert len(held) == 4


def test_unknown_preferred_replica_is_ignored() -> None:
    def name_it_to_who_is_there(peer: Peer, received: ReceivedRequest) -> None:
        is_there = b"here" in received.rest
        answer = fetched(preferred_read_replica=9) if is_there else fetched(BATCH)
        peer.respond(received, "fetch", **answer)

    responses = ScriptedResponses(fetch=[name_it_to_who_is_there])
    with ScriptedBroker(responses) as broker, opened(broker, client_rack="here") as client:
        responses.by_api["metadata"] = [cluster(broker)]
        assert offsets(client) == [0, 1, 2]
    assert responses.received == ["metadata", "fetch", "fetch"]


def test_fetch_size_shrinks_after_a_slow_response(
    requested: list[FetchPartition],
) -> None:
    responses = ScriptedResponses(fetch=[lambda peer, _: peer.hang(), fetched(BATCH)])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        with opened(broker, request_timeout_ms="50", fetch_max_wait_ms="50") as client:
            reading: Any = client.fetch(fetch_range("t", 0, 10**9), ("offset",), COMMITTED)
            assert next(reading).num_rows == 3
            reading.close()
        assert broker.connections == 2
    assert [one.partition_bytes_max for one in requested[:2]] == [
        FETCH_BYTES_MAX,
        FETCH_BYTES_MAX // 4,
    ]


def test_a_batch_that_no_fetch_returns_completely_is_an_error(
    requested: list[FetchPartition],
) -> None:
    responses = ScriptedResponses(fetch=[fetched(BATCH[:-1])])
    with ScriptedBroker(responses) as broker:
        responses.by_api["metadata"] = [cluster(broker)]
        with pytest.raises(CorruptBatchError) as caught:
            read(broker)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 0)
    sizes = [each.partition_bytes_max for each in requested]
    assert all(size == 2 * before for before, size in pairwise(sizes))
    assert WHOLE_BATCH_BYTES_MAX <= sizes[-1] < 2 * WHOLE_BATCH_BYTES_MAX


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_addresses_of_other_families_are_not_used(family: str) -> None:
    settings = {"broker_address_family": family, "default_api_timeout_ms": "200"}
    responses = ScriptedResponses(metadata=[{"topics": []}])
    with ScriptedBroker(responses) as broker, opened(broker, **settings) as client:
        if family == "v4":
            assert client.list_topics() == []
        else:
            with pytest.raises(BrokerUnreachableError, match="IPv6"):
                client.list_topics()


def test_fetch_size_is_estimated_and_bounded() -> None:
    sizes = FetchSizes()
    assert sizes.next_size(10) < 100_000
    assert sizes.next_size(10_000_000) == FETCH_BYTES_MAX
    sizes.record_response(1_000_000, 10_000)
    assert 100_000 < sizes.next_size(1_000) < 250_000
    sizes.record_decoded(100_000_000, 1_000_000)
    assert sizes.next_size(10_000_000) == DECODED_BYTES_MAX // 100
    assert FetchSizes(bytes_max=1_000).next_size(10_000_000) == 1_000


def test_fetch_size_grows_for_a_whole_batch_and_shrinks_after_a_timeout() -> None:
    sizes = FetchSizes(bytes_max=1_000)
    assert sizes.grow_for_batch(1_000)
    assert sizes.next_size(10) == 2_000
    assert not sizes.grow_for_batch(WHOLE_BATCH_BYTES_MAX)
    slow = FetchSizes()
    slow.shrink(slow.next_size(10_000_000))
    assert slow.next_size(10_000_000) == FETCH_BYTES_MAX // 4
