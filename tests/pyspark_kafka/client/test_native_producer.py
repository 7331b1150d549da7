"""Tests of the native producer with brokers that hang, reject, throttle or respond incorrectly."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from pyspark_kafka.client.native import producer as producer_module
from pyspark_kafka.client.native.batch_queues import BatchQueues, ProducerBatch
from pyspark_kafka.client.native.producer import NativeProducer
from pyspark_kafka.client.native.row_buffer import RowBuffer
from pyspark_kafka.errors import AccessError, BrokerUnreachableError, DeliveryError
from pyspark_kafka.wire.retry import Clock
from tests.pyspark_kafka.client import records
from tests.pyspark_kafka.client.records import Writes, rows, writing
from tests.pyspark_kafka.wire.scripted import (
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
    frame,
    refusing_address,
)

SHORT = {"retry_backoff_ms": "1", "retry_backoff_max_ms": "20", "request_timeout_ms": "200"}
SHORT["delivery_timeout_ms"] = "10000"


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ENGINE", "native")


# --- scripted brokers ---


def sent_in(received: ReceivedRequest) -> dict[tuple[str, int], bytes]:
    """Return the batches of a Produce request by topic and partition."""
    (length,) = struct.unpack_from(">h", received.rest)
    read: Any = entity_reader(load_request_schema(0, received.version))
    request, _ = read(received.rest, 2 + length + 1)
    assert request.acks == -1
    return {
        (getattr(topic, "name", "t"), data.index): data.records  # an id from version 13 on
        for topic in request.topic_data
        for data in topic.partition_data
    }


def record_count(batch: bytes) -> int:
    (count,) = struct.unpack_from(">i", batch, 57)
    return int(count)


class Brokers:
    """Brokers 1 to n with topic `t`, and the batches that they have received.

    `produce` contains the responses to Produce requests in order: fields for all partitions of the
    request, or a function.
    """

    def __init__(self, *produce: Any, leader: int = 1, partitions: int = 1) -> None:
        self.produce = list(produce)
        self.leader = leader
        self.partitions = partitions
        self.topic_id: UUID | None = None
        self.addresses: dict[int, str] = {}
        self.batches: list[tuple[int, dict[tuple[str, int], bytes]]] = []
        self.responses = ScriptedResponses(
            metadata=[self.respond_to_metadata],
            init_producer_id=[{"producer_id": 7, "producer_epoch": 0}],
        )

    def script(self, broker_id: int) -> ScriptedResponses:
        responses = dict(self.responses.by_api)
        responses["produce"] = [lambda peer, received: self.take(broker_id, peer, received)]
        responses_of_broker = ScriptedResponses(**responses)
        responses_of_broker.received = self.responses.received
        return responses_of_broker

    def respond_to_metadata(self, peer: Peer, received: ReceivedRequest) -> None:
        brokers = []
        for broker_id, address in self.addresses.items():
            host, _, port = address.rpartition(":")
            brokers.append({"node_id": broker_id, "host": host, "port": int(port), "rack": None})
        partitions = [
            {
                "partition_index": index,
                "leader_id": self.leader,
                "leader_epoch": 1,
                "replica_nodes": [1],
                "isr_nodes": [1],
                "offline_replicas": [],
            }
            for index in range(self.partitions)
        ]
        topic = {
            "name": "t",
            "topic_id": self.topic_id,
            "is_internal": False,
            "partitions": partitions,
        }
        peer.respond(received, "metadata", brokers=brokers, topics=[topic], cluster_id="c")

    def take(self, broker_id: int, peer: Peer, received: ReceivedRequest) -> None:
        sent = sent_in(received)
        self.batches.append((broker_id, sent))
        turn = self.produce.pop(0) if len(self.produce) > 1 else self.produce[0]
        if callable(turn):
            turn(peer, received)
        else:
            respond_to_produce(peer, received, sent, **turn)


def respond_to_produce(
    peer: Peer,
    received: ReceivedRequest,
    sent: dict[tuple[str, int], bytes] | None = None,
    *,
    throttle_time: int = 0,
    **fields: Any,
) -> None:
    partitions = [
        {"index": index, "base_offset": 0, "error_message": None, **fields}
        for _, index in (sent_in(received) if sent is None else sent)
    ]
    peer.respond(
        received,
        "produce",
        responses=[{"name": "t", "partition_responses": partitions}],
        throttle_time=throttle_time,
    )


@contextmanager
def writing_to(
    brokers: Brokers, *, count: int = 1, clock: Clock | None = None, **kafka: str
) -> Iterator[Writes]:
    scripted = [ScriptedBroker(brokers.script(broker_id)) for broker_id in range(1, count + 1)]
    for broker_id, one in enumerate(scripted, 1):
        brokers.addresses[broker_id] = one.address
    try:
        with writing(scripted[0].address, clock=clock, **{**SHORT, **kafka}) as client:
            yield client
    finally:
        for one in scripted:
            one.__exit__(None, None, None)


OK: dict[str, Any] = {}


def _hang(peer: Peer, _: ReceivedRequest) -> None:
    peer.hang()


def _close(peer: Peer, _: ReceivedRequest) -> None:
    raise ConnectionError


def _half_a_frame(peer: Peer, _: ReceivedRequest) -> None:
    peer.send(frame(bytes(100))[:50])
    raise ConnectionError


def _wrong_correlation(peer: Peer, received: ReceivedRequest) -> None:
    peer.send(frame(struct.pack(">i", received.correlation_id + 9) + bytes(20)))
    peer.hang()


def _garbage(peer: Peer, received: ReceivedRequest) -> None:
    peer.send(frame(struct.pack(">i", received.correlation_id) + b"\xff" * 30))
    peer.hang()


def _response_without_partitions(peer: Peer, received: ReceivedRequest) -> None:
    respond_to_produce(peer, received, {})
    peer.hang()


SCRIPTS = [_hang, _close, _half_a_frame, _wrong_correlation, _garbage, _response_without_partitions]


@pytest.mark.parametrize("script", SCRIPTS)
def test_batch_without_a_response_is_resent(
    script: Callable[[Peer, ReceivedRequest], None],
) -> None:
    brokers = Brokers(script, OK)
    with writing_to(brokers) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.close()
    (_, first), (_, second) = brokers.batches
    assert first == second, "the retry has other records or sequences"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_timeout_names_the_last_failure(
    script: Callable[[Peer, ReceivedRequest], None],
) -> None:
    with writing_to(Brokers(script), delivery_timeout_ms="1000") as client:
        producer = client.producer()
        started = time.monotonic()
        producer.send(rows("t", [b"x"]))
        with pytest.raises(DeliveryError, match="Produce v12") as caught:
            producer.flush()
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        assert "'kafka.delivery.timeout.ms'" in caught.value.what
        producer.abort()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("code", [2, 3, 5, 6, 7, 13, 19, 20, 56, 100])
def test_retriable_error_resends_the_same_batch(code: int) -> None:
    brokers = Brokers({"error_code": code}, OK)
    with writing_to(brokers) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.close()
    (_, first), (_, second) = brokers.batches
    assert first == second


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (45, r"OUT_OF_ORDER_SEQUENCE_NUMBER \(45\)"),
        (47, r"INVALID_PRODUCER_EPOCH \(47\)"),
        (59, r"UNKNOWN_PRODUCER_ID \(59\)"),
        (90, r"PRODUCER_FENCED \(90\)"),
        (10, r"MESSAGE_TOO_LARGE \(10\).*'max.message.bytes'"),
        (32, r"INVALID_TIMESTAMP \(32\).*'message.timestamp.before.max.ms'"),
        (76, r"UNSUPPORTED_COMPRESSION_TYPE \(76\)"),
    ],
)
def test_final_error_ends_the_producer(code: int, expected: str) -> None:
    with writing_to(Brokers({"error_code": code}, OK)) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        with pytest.raises(DeliveryError, match=rf"broker 1\b.*{expected}") as caught:
            producer.flush()
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        with pytest.raises(DeliveryError) as again:
            producer.flush()
        assert again.value is caught.value
        producer.abort()
        assert client.producer() is not producer


def test_brokers_message_about_a_record_is_in_the_error() -> None:
    refusal = {
        "error_code": 87,
        "record_errors": [{"batch_index": 0, "batch_index_error_message": "it has no key"}],
        "error_message": "some records are at fault",
    }
    with writing_to(Brokers(refusal)) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        with pytest.raises(DeliveryError, match=r"INVALID_RECORD \(87\).*it has no key"):
            producer.flush()
        producer.abort()


def test_missing_acl_is_an_access_error() -> None:
    with writing_to(Brokers({"error_code": 29})) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        with pytest.raises(AccessError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
            producer.flush()
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        producer.abort()


def test_leader_in_the_response_gets_the_same_batch() -> None:
    moved = {"error_code": 6, "current_leader": {"leader_id": 2, "leader_epoch": 2}}
    brokers = Brokers(moved, OK)
    with writing_to(brokers, count=2) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.close()
        assert brokers.responses.received.count("metadata") == 1
    (first_at, first), (second_at, second) = brokers.batches
    assert (first_at, second_at) == (1, 2)
    assert first == second


def test_work_for_a_failure_is_linear_in_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """`oldest` examines every partition, so it must not be called for every partition."""
    calls = 0
    oldest = BatchQueues.oldest

    def counting(queues: BatchQueues) -> ProducerBatch | None:
        nonlocal calls
        calls += 1
        return oldest(queues)

    monkeypatch.setattr(BatchQueues, "oldest", counting)
    partitions = 100
    brokers = Brokers({"error_code": 7}, _close, OK, partitions=partitions)
    leaders = [-1, 2, 1]  # no leader, then an unreachable leader

    def move_leader(peer: Peer, received: ReceivedRequest) -> None:
        brokers.leader = leaders.pop(0) if len(leaders) > 1 else leaders[0]
        brokers.respond_to_metadata(peer, received)

    brokers.responses.by_api["metadata"] = [move_leader]
    # All partitions have the same backoff, so they are retried in the same round.
    clock = Clock(random=float)
    with (
        refusing_address() as refusing,
        writing_to(brokers, clock=clock, request_timeout_ms="20000") as client,
    ):
        brokers.addresses[2] = refusing
        producer = client.producer()
        producer.send(rows("t", [b"x"] * partitions, partition=range(partitions)))
        producer.flush()
        producer.close()
    assert calls < partitions
    assert [len(sent) for _, sent in brokers.batches] == [partitions] * 3
    assert leaders == [1]


def test_metadata_is_refreshed_when_the_leader_is_gone() -> None:
    def go(_: Peer, __: ReceivedRequest) -> None:
        brokers.leader = 2
        raise ConnectionError

    brokers = Brokers(go, OK)
    with writing_to(brokers, count=2) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.close()
    assert [broker_id for broker_id, _ in brokers.batches] == [1, 2]


def test_throttled_broker_gets_no_request_during_the_throttle_time() -> None:
    brokers = Brokers({"throttle_time": 400}, OK)
    with writing_to(brokers) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        started = time.monotonic()
        producer.send(rows("t", [b"y"]))
        assert len(brokers.batches) == 1
        producer.flush()
        assert time.monotonic() - started > 0.2
        producer.close()
    assert len(brokers.batches) == 2


def test_throttling_beyond_the_timeout_is_in_the_error() -> None:
    brokers = Brokers({"throttle_time": 60_000}, OK)
    with writing_to(brokers, delivery_timeout_ms="300") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.send(rows("t", [b"y"]))
        with pytest.raises(DeliveryError, match=r"broker 1\b.*\b[1-6]\d(\.\d*)? s\b"):
            producer.flush()
        producer.abort()


class SkippingClock:
    """A clock that adds skipped time to the real time; each reading skips one tick."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.skipped_s = 0.0
        self.tick_s = tick_s

    def now(self) -> float:
        self.skipped_s += self.tick_s
        return time.monotonic() + self.skipped_s


def test_a_slow_source_is_no_fault_of_the_brokers() -> None:
    clock = SkippingClock()
    brokers = Brokers(OK)
    with writing_to(
        brokers, clock=Clock(now=clock.now), batch_size="1000", max_in_flight="1"
    ) as client:
        producer = client.producer()
        producer.send(rows("t", [b"few"]))
        clock.skipped_s += 3600
        producer.send(rows("t", [b"x" * 900] * 9))
        clock.skipped_s += 3600
        producer.send(rows("t", [b"few"]))
        clock.skipped_s += 3600
        producer.flush()
        producer.close()
    batches = [sent[("t", 0)] for _, sent in brokers.batches]
    assert len(set(batches)) == len(batches), "no broker was considered to hang"
    assert sum(map(record_count, batches)) == 11


def test_timeout_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SkippingClock()
    send_ready = NativeProducer._send_ready

    def slowly(producer: NativeProducer) -> None:
        send_ready(producer)
        clock.skipped_s += 3600

    with writing_to(Brokers(_hang), clock=Clock(now=clock.now)) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        monkeypatch.setattr(NativeProducer, "_send_ready", slowly)
        with pytest.raises(DeliveryError, match=r"'kafka\.delivery\.timeout\.ms'"):
            producer.flush()
        producer.abort()


def test_acknowledgment_during_a_metadata_request_is_in_time() -> None:
    clock = SkippingClock()
    unanswered: SimpleQueue[tuple[Peer, ReceivedRequest]] = SimpleQueue()
    brokers = Brokers(lambda peer, received: unanswered.put((peer, received)))

    def acknowledge_first(peer: Peer, received: ReceivedRequest) -> None:
        respond_to_produce(*unanswered.get(timeout=10))
        clock.skipped_s += 3600  # the batch is overdue when the metadata request ends
        brokers.respond_to_metadata(peer, received)

    with writing_to(brokers, clock=Clock(now=clock.now), batch_size="1") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        clock.skipped_s += 301  # the cached metadata expires
        brokers.responses.by_api["metadata"][:] = [acknowledge_first]
        producer.flush()
        producer.close()
    assert len(brokers.batches) == 1


@pytest.mark.parametrize("option", [None, "kafka.security.protocol"], ids=["refuses", "closes"])
def test_unusable_servers_are_tried_for_ten_seconds(option: str | None) -> None:
    """The servers refuse every connection, or close it at the first request as with SASL."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    closing = ScriptedResponses(metadata=[_close])
    with (
        refusing_address() as refusing,
        ScriptedBroker(closing) as broker,
        writing(
            broker.address if option else refusing, clock=Clock(now=lambda: now_s, sleep=sleep)
        ) as client,
    ):
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        now_s += 3600  # the time between calls does not count
        with pytest.raises(BrokerUnreachableError) as caught:
            producer.flush()
        producer.abort()
    assert 10 <= now_s - 3600 < 12
    assert (caught.value.topic, caught.value.option) == ("t", option)


def test_few_rows_are_sent_after_a_second() -> None:
    clock = SkippingClock(tick_s=0.01)
    brokers = Brokers(OK)
    # The clock passes many seconds while a busy machine runs the broker's thread.
    with writing_to(
        brokers,
        clock=Clock(now=clock.now),
        request_timeout_ms="600000",
        delivery_timeout_ms="600000",
    ) as client:
        producer = client.producer()
        for _ in range(100):
            producer.send(rows("t", [b"few"]))
        producer.flush()
        producer.close()
    counts = [record_count(sent[("t", 0)]) for _, sent in brokers.batches]
    assert sum(counts) == 100
    assert len(counts) > 1


def test_rows_buffered_before_the_first_metadata_are_encoded_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "_PIECE_BYTES_MAX", 1_000)
    taken_bytes: list[int] = []
    take = RowBuffer.take

    def recording(buffer: RowBuffer, bytes_max: int) -> Any:
        taken = take(buffer, bytes_max)
        taken_bytes.append(taken.nbytes)
        return taken

    monkeypatch.setattr(RowBuffer, "take", recording)
    brokers = Brokers(OK)
    gone = {"brokers": [], "topics": [{"name": "t", "error_code": 3}], "cluster_id": "c"}
    brokers.responses.by_api["metadata"].insert(0, gone)
    with writing_to(brokers, retry_backoff_ms="100") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x" * 400] * 10))
        producer.flush()
        producer.close()
    assert max(taken_bytes) <= 2_000
    assert sum(record_count(sent[("t", 0)]) for _, sent in brokers.batches) == 10


def test_at_most_five_requests_are_in_flight() -> None:
    brokers = Brokers(OK)
    first = True

    def serve(peer: Peer, received: ReceivedRequest) -> None:
        """Answer the first request, then read five requests before answering them."""
        nonlocal first
        respond_to_produce(peer, received)
        if first:
            first = False
            waiting = [peer.read() for _ in range(5)]
            brokers.batches += [(1, sent_in(one)) for one in waiting]
            for one in waiting:
                respond_to_produce(peer, one)

    brokers.produce = [serve]
    with writing_to(brokers, batch_size="1000", request_timeout_ms="20000") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x" * 900] * 9))
        producer.flush()
        producer.close()
    assert len(brokers.batches) == 9


def test_timeout_for_slow_metadata_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "_FIRST_TIMEOUT_S", 0.02)
    brokers = Brokers(OK)

    def slowly(peer: Peer, received: ReceivedRequest) -> None:
        time.sleep(0.2)
        brokers.respond_to_metadata(peer, received)

    brokers.responses.by_api["metadata"] = [slowly]
    with writing_to(brokers, request_timeout_ms="5000", delivery_timeout_ms="3000") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.close()
    assert len(brokers.batches) == 1


def test_producer_id_request_is_retried() -> None:
    brokers = Brokers(OK)
    refusal = {"error_code": 14, "producer_id": -1, "producer_epoch": -1}
    good = {"producer_id": 0x1234567890, "producer_epoch": 3}
    brokers.responses.by_api["init_producer_id"] = [refusal, refusal, good]
    with writing_to(brokers) as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"]))
        producer.flush()
        producer.close()
    ((_, sent),) = brokers.batches
    assert sent[("t", 0)][43:57] == struct.pack(">qhi", 0x1234567890, 3, 0)


def test_reused_producer_continues_its_sequences() -> None:
    brokers = Brokers(OK)
    with writing_to(brokers) as client:
        for values in ([b"x", b"y"], [b"z"]):
            producer = client.producer()
            producer.send(rows("t", values))
            producer.flush()
            producer.close()
    sequences = [struct.unpack_from(">i", sent[("t", 0)], 53)[0] for _, sent in brokers.batches]
    assert sequences == [0, 2]
    assert brokers.responses.received.count("init_producer_id") == 1


def test_recreated_topic_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[str] = []
    found = []
    monkeypatch.setattr(BatchQueues, "reset_window", lambda _, topic: reset.append(topic))
    clock = SkippingClock()
    brokers = Brokers(_hang)
    with writing_to(brokers, clock=Clock(now=clock.now), batch_size="1") as client:
        producer = client.producer()
        for topic_id in (1, 1, 2):
            brokers.topic_id = UUID(int=topic_id)
            clock.skipped_s += 301  # the cached metadata expires
            producer.send(rows("t", [b"x"]))
            found.append(list(reset))
        producer.abort()
    assert found == [["t"], ["t"], ["t", "t"]]


def test_rows_without_a_key_begin_at_any_partition() -> None:
    brokers = Brokers(OK, partitions=4)
    draws = iter([0.0, 0.0, 1 / 2**31, 2 / 2**31])  # the first draw is for the bootstrap server

    def draw() -> float:
        return next(draws, 0.5)

    with writing_to(brokers, clock=Clock(random=draw)) as client:
        for _ in range(3):
            producer = client.producer()
            for _ in range(2):
                producer.send(rows("t", [b"x"]))
                producer.flush()
            producer.abort()
    assert [*(p for _, sent in brokers.batches for _, p in sent)] == [0, 1, 1, 2, 2, 3]


def test_rows_without_a_key_avoid_partitions_without_a_leader() -> None:
    brokers = Brokers(OK, partitions=2)
    respond_to_metadata = brokers.respond_to_metadata

    def one_without(peer: Peer, received: ReceivedRequest) -> None:
        class Changed(Peer):
            def __init__(self) -> None: ...

            def respond(self, received: ReceivedRequest, api: str, /, **fields: Any) -> None:
                fields["topics"][0]["partitions"][0]["leader_id"] = -1
                peer.respond(received, api, **fields)

        respond_to_metadata(Changed(), received)

    brokers.responses.by_api["metadata"] = [one_without]
    with writing_to(brokers) as client:
        producer = client.producer()
        for _ in range(3):
            producer.send(rows("t", [b"x"]))
            producer.flush()
        producer.close()
    assert {key for _, sent in brokers.batches for key in sent} == {("t", 1)}


def test_too_large_batch_is_split_and_later_ones_are_smaller() -> None:
    brokers = Brokers(OK)
    written: list[bytes] = []

    def serve(peer: Peer, received: ReceivedRequest) -> None:
        (batch,) = sent_in(received).values()
        if len(batch) > 2_000:
            respond_to_produce(peer, received, error_code=10)
        elif struct.unpack_from(">i", batch, 53)[0] != sum(map(record_count, written)):
            respond_to_produce(peer, received, error_code=45)
        else:
            written.append(batch)
            respond_to_produce(peer, received)

    brokers.produce = [serve]
    with writing_to(brokers, request_timeout_ms="20000") as client:
        producer = client.producer()
        sends = 0
        refused = [-1, 0]
        while refused[-1] > refused[-2]:  # until the brokers reject no batch
            producer.send(rows("t", [b"x" * 100] * 200))
            producer.flush()
            sends += 1
            refused.append(len(brokers.batches) - len(written))
        producer.close()
    assert 2 <= sends <= 5
    sequences = [struct.unpack_from(">i", batch, 53)[0] for batch in written]
    counts = [record_count(batch) for batch in written]
    assert sequences == [sum(counts[:index]) for index in range(len(counts))]
    assert sum(counts) == 200 * sends


def test_small_too_large_batch_makes_later_ones_smaller() -> None:
    brokers = Brokers(OK)

    def serve(peer: Peer, received: ReceivedRequest) -> None:
        (batch,) = sent_in(received).values()
        respond_to_produce(peer, received, error_code=10 if len(batch) > 2_500 else 0)

    brokers.produce = [serve]
    with writing_to(brokers, request_timeout_ms="20000") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x" * 100] * 40))
        producer.flush()
        brokers.batches.clear()
        producer.send(rows("t", [b"x" * 100] * 40))
        producer.flush()
        producer.close()
    assert all(len(batch) <= 2_500 for _, sent in brokers.batches for batch in sent.values())
