"""Tests of the transactional producer with brokers that reject requests, hang or move ids."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from pyspark_kafka.client.native import producer as producer_module
from pyspark_kafka.errors import (
    AccessError,
    DeliveryError,
    KafkaError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionVersion
from pyspark_kafka.wire.retry import Clock
from tests.pyspark_kafka.client.records import rows
from tests.pyspark_kafka.client.test_native_producer import (
    OK,
    SCRIPTS,
    SHORT,
    Brokers,
    SkippingClock,
    record_count,
    respond_to_produce,
    sent_in,
)
from tests.pyspark_kafka.client.transactional import Transaction, Transactions, transactions
from tests.pyspark_kafka.wire import scripted
from tests.pyspark_kafka.wire.scripted import Peer, ReceivedRequest, ScriptedBroker

PATIENT = {"default_api_timeout_ms": "20000", "request_timeout_ms": "10000"}
"""Long timeouts, so that a slow machine does not look like a hanging broker."""
ID = "X/run/0/0-1"
PRODUCER_ID, EPOCH = 0x1234567890, 7
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = pytest.mark.parametrize("version", [1, 2])


class TransactionalBrokers(Brokers):
    """`Brokers` whose broker 1 coordinates all ids; `added` contains the added partitions.

    `add_partitions_responses` contains the responses to AddPartitionsToTxn in order: an error code
    for all partitions, an error code for each partition, or a function.
    """

    def __init__(self, *produce: Any, **options: Any) -> None:
        super().__init__(*produce, **options)
        self.added: list[list[int]] = []
        self.add_partitions_responses: list[Any] = [0]
        responses = self.responses.by_api
        responses["init_producer_id"] = [
            {"error_code": 0, "producer_id": PRODUCER_ID, "producer_epoch": EPOCH}
        ]
        responses["find_coordinator"] = [self.respond_to_find_coordinator]
        responses["add_partitions_to_txn"] = [self.respond_to_add_partitions_to_txn]
        self.ids: list[str | None] = []
        self.versions: list[int] = []
        self.opened: list[ScriptedBroker] = []

    def connections(self) -> int:
        return sum(broker.connections for broker in self.opened)

    def respond_to_find_coordinator(self, peer: Peer, received: ReceivedRequest) -> None:
        host, _, port = self.addresses[1].rpartition(":")
        request = request_of(received, 10)
        named = {"node_id": 1, "host": host, "port": int(port)}
        found = [
            {"key": key, "error_code": 0, "error_message": None, **named}
            for key in request.coordinator_keys
        ]
        peer.respond(received, "find_coordinator", coordinators=found)

    def respond_to_add_partitions_to_txn(self, peer: Peer, received: ReceivedRequest) -> None:
        request = request_of(received, 24)
        assert request.v3_and_below_transactional_id == ID
        assert request.v3_and_below_producer_id == PRODUCER_ID
        assert request.v3_and_below_producer_epoch == EPOCH
        (topic,) = request.v3_and_below_topics
        self.added.append(list(topic.partitions))
        turn = (
            self.add_partitions_responses.pop(0)
            if len(self.add_partitions_responses) > 1
            else self.add_partitions_responses[0]
        )
        if callable(turn):
            turn(peer, received)
            return
        codes = turn if isinstance(turn, dict) else dict.fromkeys(topic.partitions, turn)
        respond_to_add_partitions(peer, received, codes)

    def take(self, broker_id: int, peer: Peer, received: ReceivedRequest) -> None:
        self.ids.append(request_of(received, 0).transactional_id)
        self.versions.append(received.version)
        super().take(broker_id, peer, received)


def respond_to_add_partitions(
    peer: Peer, received: ReceivedRequest, codes: Mapping[int, int]
) -> None:
    results = [
        {"partition_index": index, "partition_error_code": code} for index, code in codes.items()
    ]
    results_by_topic = [{"name": "t", "results_by_partition": results}]
    peer.respond(received, "add_partitions_to_txn", results_by_topic_v3_and_below=results_by_topic)


def request_of(received: ReceivedRequest, api_key: int) -> Any:
    (length,) = struct.unpack_from(">h", received.rest)
    schema = load_request_schema(api_key, received.version)
    read: Any = entity_reader(schema)
    position = 2 + length + int(schema.__header_schema__.__flexible__)
    return read(received.rest, position)[0]


@contextmanager
def begun_at(
    brokers: TransactionalBrokers,
    version: TransactionVersion,
    *,
    clock: Clock | None = None,
    **kafka: str,
) -> Iterator[Transactions]:
    brokers.opened = [ScriptedBroker(brokers.script(broker_id)) for broker_id in (1, 2)]
    for broker_id, one in enumerate(brokers.opened, 1):
        brokers.addresses[broker_id] = one.address
    try:
        settings = {**SHORT, **PATIENT, **kafka}
        with transactions(brokers.addresses[1], version, clock=clock, **settings) as made:
            yield made
    finally:
        for one in brokers.opened:
            one.__exit__(None, None, None)


@contextmanager
def writing_in(
    brokers: TransactionalBrokers,
    version: TransactionVersion,
    *,
    clock: Clock | None = None,
    **kafka: str,
) -> Iterator[Transaction]:
    with begun_at(brokers, version, clock=clock, **kafka) as made:
        yield made.begin(ID)


@pytest.fixture(autouse=True)
def versions_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scripted.Peer,
        "negotiate",
        lambda peer: negotiate(peer, {**scripted.ALL_VERSIONS, 24: (0, 5), 25: (0, 4), 28: (0, 5)}),
    )


negotiate = Peer.negotiate


def header(batch: bytes) -> tuple[int, int, int, int]:
    """Return attributes, producer id, producer epoch and base sequence of a batch."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    producer_id, epoch, sequence = struct.unpack_from(">qhi", batch, 43)
    return attributes, producer_id, epoch, sequence


# --- requests ---


def test_partitions_are_added_before_their_first_batch() -> None:
    brokers = TransactionalBrokers(OK, partitions=3)
    with writing_in(brokers, 1) as one:
        one.producer.send(rows("t", [b"x"] * 4, partition=[0, 1, 0, 1]))
        one.producer.flush()
        one.producer.send(rows("t", [b"x"] * 3, partition=[1, 2, 0]))
        one.producer.flush()
        one.producer.send(rows("t", [b"x"], partition=[2]))
        one.producer.flush()
    assert brokers.added == [[0, 1], [2]]
    apis = [
        api for api in brokers.responses.received if api in ("add_partitions_to_txn", "produce")
    ]
    assert apis[0] == "add_partitions_to_txn"
    assert set(brokers.versions) == {11}
    assert set(brokers.ids) == {ID}
    of_first = [header(sent[("t", 0)]) for _, sent in brokers.batches if ("t", 0) in sent]
    assert of_first == [
        (0x10, PRODUCER_ID, EPOCH, 0),
        (0x10, PRODUCER_ID, EPOCH, 2),
    ]
    assert brokers.responses.count("init_producer_id") == 1


def test_leaders_add_their_partitions_themselves() -> None:
    brokers = TransactionalBrokers(OK, partitions=3)
    with writing_in(brokers, 2) as one:
        one.producer.send(rows("t", [b"x"] * 4, partition=[0, 1, 0, 1]))
        one.producer.flush()
    assert brokers.added == []
    assert set(brokers.versions) == {12}
    assert set(brokers.ids) == {ID}
    assert brokers.responses.count("init_producer_id") == 1


def test_leaders_that_cannot_add(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = {**scripted.ALL_VERSIONS, 0: (3, 11)}
    monkeypatch.setattr(scripted.Peer, "negotiate", lambda peer: negotiate(peer, ranges))
    with writing_in(TransactionalBrokers(OK), 2) as one:
        one.producer.send(rows("t", [b"x"]))
        with pytest.raises(UnsupportedVersionError, match=r"Produce.* 3 to 11"):
            one.producer.flush()


@BOTH
def test_connections_are_kept_for_the_next_transaction(version: TransactionVersion) -> None:
    clock = SkippingClock()
    brokers = TransactionalBrokers(OK)
    with begun_at(brokers, version, clock=Clock(now=clock.now)) as begun:
        opened: list[int] = []
        for turn in range(5):
            one = begun.begin(ID)
            one.producer.send(rows("t", [b"%d" % turn]))
            one.producer.flush()
            if turn == 1:  # an aborted producer does not return its connections to the pool
                one.producer.abort()
            else:
                one.producer.close()
                with pytest.raises(DeliveryError):
                    one.producer.send(rows("t", [b"x"]))
            if turn == 3:
                clock.skipped_s += 301  # an idle connection may be dead
            opened.append(brokers.connections())
    # The client opens new connections after the abort, and after the idle time.
    assert [after - before for before, after in pairwise(opened)] == [0, 1, 0, 1]
    assert [header(sent[("t", 0)])[3] for _, sent in brokers.batches] == [0] * 5


def test_idle_connections_close_after_connections_max_idle_ms() -> None:
    clock = SkippingClock()
    brokers = TransactionalBrokers(OK, leader=2)
    own_clock = Clock(now=clock.now)
    with begun_at(brokers, 2, clock=own_clock, connections_max_idle_ms="60000") as begun:
        opened: list[int] = []
        for skipped_s in (59, 61, 0):
            one = begun.begin(ID)
            one.producer.send(rows("t", [b"x"]))
            one.producer.flush()
            one.producer.close()
            opened.append(brokers.opened[1].connections)  # leads the partition only
            clock.skipped_s += skipped_s
    assert opened == [1, 1, 2]


@BOTH
def test_closed_producer_does_not_touch_reused_connections(version: TransactionVersion) -> None:
    """The connections already belong to the second producer, so the first must not use them."""
    brokers = TransactionalBrokers(OK)
    with begun_at(brokers, version) as begun:
        first = begun.begin(ID)
        first.producer.send(rows("t", [b"x"]))
        first.producer.flush()
        first.producer.close()
        second = begun.begin(ID)
        first.producer.abort()
        second.producer.send(rows("t", [b"y"]))
        before = brokers.connections()
        second.producer.flush()
        assert brokers.connections() == before
        assert first.producer.last_offsets == {T0: 0}


# --- retriable errors ---


@pytest.mark.parametrize("code", [7, 13, 14, 15, 16, 51])
def test_retriable_add_partitions_error_is_retried(code: int) -> None:
    brokers = TransactionalBrokers(OK, partitions=2)
    brokers.add_partitions_responses = [code, code, 0]
    with writing_in(brokers, 1) as one:
        one.producer.send(rows("t", [b"x"] * 2, partition=[0, 1]))
        one.producer.flush()
    assert brokers.added == [[0, 1]] * 3
    assert sorted(key for _, sent in brokers.batches for key in sent) == [("t", 0), ("t", 1)]
    coordinators = brokers.responses.count("find_coordinator")
    assert coordinators == (3 if code in (15, 16) else 1)


def test_operation_not_attempted_is_retried() -> None:
    brokers = TransactionalBrokers(OK, partitions=2)
    brokers.add_partitions_responses = [{0: 3, 1: 55}, 0]
    with writing_in(brokers, 1) as one:
        one.producer.send(rows("t", [b"x"] * 2, partition=[0, 1]))
        one.producer.flush()
    assert brokers.added == [[0, 1]] * 2


@pytest.mark.parametrize("script", SCRIPTS[:5])
def test_add_partitions_without_a_response_is_retried(script: Any) -> None:
    brokers = TransactionalBrokers(OK)
    brokers.add_partitions_responses = [script, 0]
    with writing_in(brokers, 1, request_timeout_ms="200") as one:
        one.producer.send(rows("t", [b"x"]))
        one.producer.flush()
    assert len(brokers.added) == 2
    assert len(brokers.batches) == 1


def test_timeout_for_a_slow_coordinator_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "_FIRST_TIMEOUT_S", 0.02)
    brokers = TransactionalBrokers(OK)

    def slowly(peer: Peer, received: ReceivedRequest) -> None:
        time.sleep(0.2)
        respond_to_add_partitions(peer, received, {0: 0})

    brokers.add_partitions_responses = [slowly]
    with writing_in(brokers, 1) as one:
        one.producer.send(rows("t", [b"x"]))
        one.producer.flush()
    assert len(brokers.batches) == 1


@pytest.mark.parametrize("addition", [51, SCRIPTS[1]])
def test_add_partitions_that_never_succeeds_fails_the_row(addition: Any) -> None:
    reason = "CONCURRENT_TRANSACTIONS" if addition == 51 else "AddPartitionsToTxn"
    brokers = TransactionalBrokers(OK)
    brokers.add_partitions_responses = [addition]
    with writing_in(brokers, 1, delivery_timeout_ms="500") as one:
        one.producer.send(rows("t", [b"x"]))
        with pytest.raises(DeliveryError, match=reason) as caught:
            one.producer.flush()
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
    assert not brokers.batches


@BOTH
@pytest.mark.parametrize("code", [2, 3, 5, 6, 7, 13, 14, 15, 16, 19, 20, 51, 56])
def test_retriable_produce_error_resends_the_same_batch(
    version: TransactionVersion, code: int
) -> None:
    brokers = TransactionalBrokers({"error_code": code}, {"base_offset": 5})
    with writing_in(brokers, version) as one:
        one.producer.send(rows("t", [b"x"]))
        one.producer.flush()
        assert one.producer.last_offsets == {T0: 5}
    (_, first), (_, second) = brokers.batches
    assert first == second


# --- fatal errors ---

FENCED = {47: "INVALID_PRODUCER_EPOCH", 49: "INVALID_PRODUCER_ID_MAPPING", 90: "PRODUCER_FENCED"}
OVER = {48: "INVALID_TXN_STATE", 120: "TRANSACTION_ABORTABLE"}
OTHER = {45: "OUT_OF_ORDER_SEQUENCE_NUMBER", 87: "INVALID_RECORD"}


@BOTH
@pytest.mark.parametrize("code", [*FENCED, *OVER, *OTHER])
def test_final_produce_error(version: TransactionVersion, code: int) -> None:
    name = {**FENCED, **OVER, **OTHER}[code]
    with writing_in(TransactionalBrokers({"error_code": code}, OK), version) as one:
        one.producer.send(rows("t", [b"x"]))
        kind = ProducerFencedError if code in FENCED else DeliveryError
        with pytest.raises(kind, match=rf"broker 1\b.*\b{name} \({code}\)") as caught:
            one.producer.flush()
        check_fields(code, caught.value)
        with pytest.raises(kind) as again:
            one.producer.flush()
        assert again.value is caught.value


def check_fields(code: int, error: KafkaError, partition: int = 0) -> None:
    assert (error.topic, error.partition) == ("t", partition)
    if code not in OTHER:
        assert error.transactional_id == ID
        assert "'transactionTimeout'" in error.advice


@pytest.mark.parametrize("code", [*FENCED, *OVER, 87])
@pytest.mark.parametrize("beside", [None, 55, 51])
def test_final_add_partitions_error(code: int, beside: int | None) -> None:
    name = {**FENCED, **OVER, **OTHER}[code]
    brokers = TransactionalBrokers(OK, partitions=2)
    brokers.add_partitions_responses = [code if beside is None else {0: beside, 1: code}]
    partition = 0 if beside is None else 1
    with writing_in(brokers, 1) as one:
        one.producer.send(rows("t", [b"x"] * 2, partition=[0, 1]))
        kind = ProducerFencedError if code in FENCED else DeliveryError
        with pytest.raises(kind, match=rf"\b{name} \({code}\)") as caught:
            one.producer.flush()
        check_fields(code, caught.value, partition)
    assert not brokers.batches


@BOTH
@pytest.mark.parametrize("code", [29, 53])
def test_produce_without_acl(version: TransactionVersion, code: int) -> None:
    with writing_in(TransactionalBrokers({"error_code": code}), version) as one:
        one.producer.send(rows("t", [b"x"]))
        with pytest.raises(AccessError, match="AUTHORIZATION_FAILED") as caught:
            one.producer.flush()
        assert caught.value.transactional_id == ID


def test_add_partitions_without_acl() -> None:
    brokers = TransactionalBrokers(OK)
    brokers.add_partitions_responses = [53]
    with writing_in(brokers, 1) as one:
        one.producer.send(rows("t", [b"x"]))
        with pytest.raises(AccessError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
            one.producer.flush()
        assert caught.value.transactional_id == ID


def test_recreated_topic_fails_the_transaction() -> None:
    clock = SkippingClock()
    brokers = TransactionalBrokers(OK)

    def write(one: Transaction) -> None:
        clock.skipped_s += 301  # the cached metadata expires
        one.producer.send(rows("t", [b"x"]))
        one.producer.flush()

    with writing_in(brokers, 1, clock=Clock(now=clock.now)) as one:
        for topic_id in (None, UUID(int=1)):  # an upgrade of the cluster adds topic ids
            brokers.topic_id = topic_id
            write(one)
        brokers.topic_id = UUID(int=2)
        # A response between the deletion and the recreation lacks the topic.
        gone = {"brokers": [], "topics": [{"name": "t", "error_code": 3}], "cluster_id": "c"}
        brokers.responses.by_api["metadata"].insert(0, gone)
        with pytest.raises(DeliveryError, match="'t'") as caught:
            write(one)
        assert caught.value.topic == "t"


# --- offsets of rows ---


@BOTH
def test_the_last_offset_is_that_of_the_last_record(version: TransactionVersion) -> None:
    brokers = TransactionalBrokers({"base_offset": 100}, {"base_offset": 205})
    with writing_in(brokers, version) as one:
        one.producer.send(rows("t", [b"x"] * 5))
        one.producer.flush()
        assert one.producer.last_offsets == {T0: 104}
        one.producer.send(rows("t", [b"x"] * 2))
        one.producer.flush()
        assert one.producer.last_offsets == {T0: 206}


@BOTH
def test_a_duplicate_without_an_offset_leaves_that_of_an_earlier_batch(
    version: TransactionVersion,
) -> None:
    brokers = TransactionalBrokers({"base_offset": 100}, {"error_code": 46, "base_offset": -1})
    with writing_in(brokers, version) as one:
        for count in (5, 2):
            one.producer.send(rows("t", [b"x"] * count))
            one.producer.flush()
        assert one.producer.last_offsets == {T0: 104}


@BOTH
def test_duplicate_without_any_offset_fails(version: TransactionVersion) -> None:
    """Roll forward could not determine later whether the rows were committed."""
    brokers = TransactionalBrokers({"error_code": 46, "base_offset": -1}, {"base_offset": 9})
    with writing_in(brokers, version) as one:
        one.producer.send(rows("t", [b"x"]))
        with pytest.raises(DeliveryError) as caught:
            one.producer.flush()
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        one.producer.send(rows("t", [b"x"]))
        one.producer.flush()
        assert one.producer.last_offsets == {T0: 9}


@BOTH
def test_last_offset_with_responses_in_any_order(version: TransactionVersion) -> None:
    """A restarted broker acknowledges the last batch, but no earlier batch."""
    log: dict[int, int] = {}
    responded: list[int] = []

    def serve(peer: Peer, received: ReceivedRequest) -> None:
        """Append all batches and lose three responses; after that, only the last batch is known."""
        (batch,) = sent_in(received).values()
        (sequence,) = struct.unpack_from(">i", batch, 53)
        if sequence not in log:
            log[sequence] = 100 + sequence
            if len(log) == 1:
                respond_to_produce(peer, received, base_offset=100)
                return
            if len(log) <= 4:
                if len(log) == 4:
                    raise ConnectionError
                return
        elif sequence != max(log):
            respond_to_produce(peer, received, error_code=45, base_offset=-1)
            return
        responded.append(sequence)
        respond_to_produce(peer, received, base_offset=log[sequence])

    brokers = TransactionalBrokers(serve)
    with writing_in(brokers, version, batch_size="1000") as one:
        one.producer.send(rows("t", [b"x" * 900] * 4))
        one.producer.flush()
        assert one.producer.last_offsets == {T0: 103}
    assert responded == [3]


@BOTH
def test_the_last_offset_of_a_batch_that_was_split(version: TransactionVersion) -> None:
    written = 0

    def serve(peer: Peer, received: ReceivedRequest) -> None:
        nonlocal written
        (batch,) = sent_in(received).values()
        if len(batch) > 2_000:
            respond_to_produce(peer, received, error_code=10, base_offset=-1)
            return
        respond_to_produce(peer, received, base_offset=1_000 + written)
        written += record_count(batch)

    brokers = TransactionalBrokers(serve)
    with writing_in(brokers, version) as one:
        one.producer.send(rows("t", [b"x" * 100] * 200))
        one.producer.flush()
        assert one.producer.last_offsets == {T0: 1_199}


# --- offsets of a group ---


def commits(*codes: int) -> list[dict[str, Any]]:
    return [
        {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": code}]}]}
        for code in codes
    ]


@BOTH
@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_retriable_offset_commit_error_is_retried(version: TransactionVersion, code: int) -> None:
    brokers = TransactionalBrokers(OK)
    brokers.responses.by_api["add_offsets_to_txn"] = [{"error_code": code}, {"error_code": 0}]
    brokers.responses.by_api["txn_offset_commit"] = commits(code, 0)
    with writing_in(brokers, version) as one:
        one.producer.send_offsets("g", {T0: 9})
    assert brokers.responses.count("txn_offset_commit") == 2
    assert brokers.responses.count("add_offsets_to_txn") == (3 if version == 1 else 0)


@BOTH
@pytest.mark.parametrize("code", [*FENCED, *OVER, 30])
def test_final_offset_commit_error(version: TransactionVersion, code: int) -> None:
    brokers = TransactionalBrokers(OK)
    brokers.responses.by_api["add_offsets_to_txn"] = [{"error_code": 0}]
    brokers.responses.by_api["txn_offset_commit"] = commits(code)
    kind: type[KafkaError] = ProducerFencedError if code in FENCED else DeliveryError
    kind = AccessError if code == 30 else kind
    name = {**FENCED, **OVER, 30: "GROUP_AUTHORIZATION_FAILED"}[code]
    with writing_in(brokers, version) as one:
        with pytest.raises(kind, match=name) as caught:
            one.producer.send_offsets("g", {T0: 9})
        assert (caught.value.group_id, caught.value.transactional_id) == ("g", ID)
        with pytest.raises(kind) as again:
            one.producer.flush()
        assert again.value is caught.value
    assert brokers.responses.count("txn_offset_commit") == 1
