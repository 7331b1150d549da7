"""Tests of transactional produce requests and transaction markers, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.faults import Match
from integration.raw import request
from tests.broker_ref.node.clients import SentRequest
from tests.broker_ref.node.requests import batch
from tests.broker_ref.transaction.producers import NAME, Producer, Producers

NONE = ErrorCode.none
NOT_ENOUGH = ErrorCode.not_enough_replicas
VERIFICATION_REQUESTS = Match(api_keys=frozenset({24}))
MARKERS = Match(api_keys=frozenset({27}))


def transactional(producer: Producer, sequence: int = 0) -> bytes:
    return batch(
        "v",
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        is_transactional=True,
    )


def send(
    made: Producers,
    batches: dict[str, bytes],
    *,
    version: int = 11,
    name: str | None = NAME,
    acks: int = -1,
    broker_id: int = 1,
) -> SentRequest:
    topics = [
        {"name": topic, "partition_data": [{"index": 0, "records": records}]}
        for topic, records in batches.items()
    ]
    return made.clients.send(
        broker_id,
        request(
            "produce", version, transactional_id=name, acks=acks, timeout=5_000, topic_data=topics
        ),
    )


def codes(made: Producers, sent: SentRequest) -> dict[str, ErrorCode]:
    response = made.clients.outcome(sent)
    return {topic.name: topic.partition_responses[0].error_code for topic in response.responses}


def end_offsets(made: Producers) -> tuple[int, int]:
    return made.partition("t").log.log_end_offset, made.partition("u").log.log_end_offset


@pytest.fixture
def made() -> Producers:
    return Producers()


@pytest.fixture
def producer(made: Producers) -> Producer:
    return made.started()


def test_partitions_are_verified_separately(made: Producers, producer: Producer) -> None:
    assert made.add(producer, ("t", 0)) is NONE
    data = transactional(producer)
    error_codes = codes(made, send(made, {"t": data, "u": data}))
    assert error_codes == {"t": NONE, "u": ErrorCode.transaction_abortable}
    assert end_offsets(made) == (1, 0)


@pytest.mark.parametrize(
    ("version", "error_code"),
    [
        (9, ErrorCode.invalid_txn_state),
        (10, ErrorCode.invalid_txn_state),
        (11, ErrorCode.transaction_abortable),
        (12, NONE),
    ],
)
def test_the_error_for_an_unadded_partition_depends_on_the_version(
    made: Producers, producer: Producer, version: int, error_code: ErrorCode
) -> None:
    sent = send(made, {"t": transactional(producer)}, version=version)
    assert codes(made, sent) == {"t": error_code}


@pytest.mark.parametrize(
    ("coordinator_error", "version", "expected"),
    [
        (ErrorCode.not_coordinator, 11, NOT_ENOUGH),
        (ErrorCode.coordinator_load_in_progress, 12, NOT_ENOUGH),
        (ErrorCode.coordinator_not_available, 11, NOT_ENOUGH),
        (ErrorCode.concurrent_transactions, 11, NOT_ENOUGH),
        (ErrorCode.concurrent_transactions, 12, ErrorCode.concurrent_transactions),
    ],
)
def test_coordinator_errors_are_converted_for_producers(
    made: Producers,
    producer: Producer,
    coordinator_error: ErrorCode,
    version: int,
    expected: ErrorCode,
) -> None:
    with made.cluster.faults.refuse(coordinator_error, VERIFICATION_REQUESTS):
        sent = send(made, {"t": transactional(producer)}, version=version)
        error_codes = codes(made, sent)
    assert error_codes == {"t": expected}
    assert end_offsets(made) == (0, 0)


def test_an_unresponsive_coordinator_causes_a_retriable_error(
    made: Producers, producer: Producer
) -> None:
    assert made.add(producer) is NONE
    data = transactional(producer)
    with made.cluster.faults.drop(VERIFICATION_REQUESTS):
        assert codes(made, send(made, {"t": data})) == {"t": NOT_ENOUGH}
    with made.cluster.faults.hold(VERIFICATION_REQUESTS):
        sent = send(made, {"t": data})
        made.cluster.advance(29_000)
        assert sent.is_open()
        made.cluster.advance(2_000)
        assert codes(made, sent) == {"t": NOT_ENOUGH}
    assert codes(made, send(made, {"t": data})) == {"t": NONE}
    assert end_offsets(made) == (1, 0)


def test_a_batch_verified_before_the_abort_is_rejected(made: Producers, producer: Producer) -> None:
    """KIP-890: otherwise the batch would start a transaction that no producer ends."""
    assert made.add(producer) is NONE
    with made.cluster.faults.hold(VERIFICATION_REQUESTS):
        sent = send(made, {"t": transactional(producer)})
        assert sent.is_open()
        partition = made.partition("t")
        assert made.end(producer, commit=False).error_code is NONE
        made.wait_for("CompleteAbort")
        assert partition.log.log_end_offset == 1
    assert codes(made, sent) == {"t": ErrorCode.transaction_abortable}
    assert [entry.has_open_transaction for entry in partition.log.producer_entries] == [False]
    assert (partition.last_stable_offset, partition.log.log_end_offset) == (1, 1)


def test_an_open_partition_is_not_verified_and_may_end_meanwhile(
    made: Producers, producer: Producer
) -> None:
    """Only the new partition is verified; the transaction in the open partition ends meanwhile."""
    assert made.add(producer, ("t", 0), ("u", 0)) is NONE
    assert made.produce(producer) is NONE
    with made.cluster.faults.hold(VERIFICATION_REQUESTS) as held:
        sent = send(made, {"t": transactional(producer, 1), "u": transactional(producer)})
        assert made.end(producer, commit=False).error_code is NONE
        made.wait_for("CompleteAbort")
        assert held.hits == 1
    error_codes = codes(made, sent)
    assert error_codes["t"] is ErrorCode.invalid_txn_state
    assert error_codes["u"] is not NONE
    assert end_offsets(made) == (2, 1)


def test_nothing_is_appended_for_a_disconnected_client(made: Producers, producer: Producer) -> None:
    assert made.add(producer) is NONE
    with made.cluster.faults.hold(VERIFICATION_REQUESTS):
        sent = send(made, {"t": transactional(producer)})
        made.clients.disconnect(sent)
    made.cluster.advance(1_000)
    assert end_offsets(made) == (0, 0)


def test_the_next_transaction_waits_for_the_previous_one(
    made: Producers, producer: Producer
) -> None:
    assert made.produce(producer, version=12) is NONE
    with made.cluster.faults.hold(MARKERS):
        following = made.end(producer, version=5)
        next_one = (following.producer_id, following.producer_epoch)
        sent = send(made, {"t": transactional(next_one)}, version=12)
        made.cluster.advance(50)
        assert sent.is_open()
    assert codes(made, sent) == {"t": NONE}


def test_retry_backoff_and_producer_expiration_are_configurable() -> None:
    made = Producers(
        add_partitions_to_txn_retry_backoff_ms=200,
        add_partitions_to_txn_retry_backoff_max_ms=1_000,
        producer_id_expiration_ms=5_000,
        producer_id_expiration_check_interval_ms=1_000,
    )
    producer = made.started()
    assert made.produce(producer, version=12) is NONE
    with made.cluster.faults.hold(MARKERS):
        following = made.end(producer, version=5)
        next_one = (following.producer_id, following.producer_epoch)
        with made.cluster.faults.recording() as record:
            sent = send(made, {"t": transactional(next_one)}, version=12)
            made.cluster.advance(990)
            assert sent.is_open()
            made.cluster.advance(110)
            assert codes(made, sent) == {"t": ErrorCode.concurrent_transactions}
            assert len(record.requests_seen(VERIFICATION_REQUESTS)) == 6
    made.wait_for("CompleteCommit")
    assert len(made.partition("t").log.producer_entries) == 1
    made.cluster.advance(6_000)
    assert made.partition("t").log.producer_entries == ()


def test_a_verification_is_repeated_after_the_previous_marker(
    made: Producers, producer: Producer
) -> None:
    assert made.produce(producer, version=12) is NONE
    with made.cluster.faults.hold(VERIFICATION_REQUESTS) as requests:
        with made.cluster.faults.hold(MARKERS):
            following = made.end(producer, version=5)
            next_one = (following.producer_id, following.producer_epoch)
            sent = send(made, {"t": transactional(next_one)}, version=12)
        made.wait_for("CompleteCommit")
        assert requests.hits == 1
    assert codes(made, sent) == {"t": NONE}


def test_batches_of_several_producers_are_rejected(made: Producers, producer: Producer) -> None:
    other = (producer[0] + 1, producer[1])
    both = {"t": transactional(producer), "u": transactional(other)}
    mapping = ErrorCode.invalid_producer_id_mapping
    assert codes(made, send(made, both)) == {"t": mapping, "u": mapping}
    plain = {"t": batch("v"), "u": transactional(producer)}
    refused = ErrorCode.transactional_id_authorization_failed
    assert codes(made, send(made, plain, name=None)) == {"t": refused, "u": refused}
    assert end_offsets(made) == (0, 0)


def test_a_transactional_error_with_acks_0_closes_the_connection(
    made: Producers, producer: Producer
) -> None:
    sent = send(made, {"t": transactional(producer)}, acks=0)
    assert made.clients.outcome(sent) is None
    assert sent.is_closed
    assert made.add(producer) is NONE
    send(made, {"t": transactional(producer)}, acks=0)
    made.cluster.run_until(lambda: end_offsets(made) == (1, 0))


def test_no_verification_if_it_is_off() -> None:
    made = Producers(transaction_partition_verification_enable=False)
    producer = made.started()
    with made.cluster.faults.drop(VERIFICATION_REQUESTS) as sent:
        assert made.produce(producer) is NONE
        assert sent.hits == 0


def markers(made: Producers, *partitions: tuple[str, int], producer: Producer) -> Any:
    topics = [{"name": name, "partition_indexes": [index]} for name, index in partitions]
    return request(
        "write_txn_markers",
        1,
        markers=[
            {
                "producer_id": producer[0],
                "producer_epoch": producer[1],
                "transaction_result": False,
                "topics": topics,
                "coordinator_epoch": 0,
            }
        ],
    )


def test_a_marker_gets_a_response_when_replicated_or_timed_out() -> None:
    made = Producers(3)
    producer = made.started()
    assert made.produce(producer, version=12) is NONE
    leader = made.partition("t").metadata.leader
    for other in made.cluster.running:
        if other != leader:
            made.cluster.faults.cut(other, leader)
    sent = made.clients.send(leader, markers(made, ("t", 0), ("x", 0), producer=producer))
    assert sent.is_open()
    response = made.clients.outcome(sent)
    (result,) = response.markers
    assert {topic.name: topic.partitions[0].error_code for topic in result.topics} == {
        "t": ErrorCode.request_timed_out,
        "x": ErrorCode.unknown_topic_or_partition,
    }


def test_a_marker_without_a_producer_id_is_rejected(made: Producers, producer: Producer) -> None:
    """`MemoryRecordsBuilder` rejects such a marker, which fails Kafka's whole request."""
    for nobody in ((-1, producer[1]), (producer[0], -1)):
        sent = made.clients.send(1, markers(made, ("t", 0), producer=nobody))
        (result,) = made.clients.outcome(sent).markers
        assert result.topics[0].partitions[0].error_code is ErrorCode.unknown_server_error
    assert end_offsets(made) == (0, 0)


def test_a_waiting_fetch_returns_aborted_transactions(made: Producers, producer: Producer) -> None:
    assert made.produce(producer, version=12) is NONE
    sent = made.clients.send(
        1,
        request(
            "fetch", 12, replica_id=-1, max_wait=5_000, min_bytes=1, max_bytes=1 << 20,
            isolation_level=1, session_id=0, session_epoch=-1, forgotten_topics_data=(),
            rack_id="",
            topics=[{"topic": "t", "partitions": [{
                "partition": 0, "fetch_offset": 0, "current_leader_epoch": -1,
                "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
            }]}],
        ),
    )  # fmt: skip
    made.cluster.advance(100)
    assert sent.is_open()
    assert made.end(producer, commit=False, version=5).error_code is NONE
    response = made.clients.outcome(sent)
    (partition,) = response.responses[0].partitions
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
    (aborted,) = partition.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (producer[0], 0)
