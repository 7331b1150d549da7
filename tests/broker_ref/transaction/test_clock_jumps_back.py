"""Tests of clocks that jump back: nothing is aborted or expired early, and nothing hangs.

The clock of a running broker does not jump back (`tests/broker_ref/io/test_clock.py`). A broker
that restarts, or loads a partition of another broker, may find future timestamps in its log.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.log.control import Marker
from integration.simulation.cluster import CONTROLLER
from tests.broker_ref.transaction.producers import Producers

NONE = ErrorCode.none
MINUTE_MS = 60_000
SETTINGS = {
    "transactional_id_expiration_ms": MINUTE_MS,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 10_000,
}


def begun(made: Producers) -> None:
    """Create one id whose transaction times out after 15 seconds, and one idle id."""
    made.started(transactional_id="idle")
    producer = made.started(transaction_timeout=15_000)
    assert made.add(producer) is NONE
    assert made.produce(producer) is NONE


def commit_another(made: Producers) -> None:
    response = made.start(transactional_id="another")
    assert response.error_code is NONE
    added = made.call(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id="another",
        v3_and_below_producer_id=response.producer_id,
        v3_and_below_producer_epoch=response.producer_epoch,
        v3_and_below_topics=[{"name": "u", "partitions": [0]}],
    ).results_by_topic_v3_and_below
    assert added[0].results_by_partition[0].partition_error_code is NONE
    ended = made.call(
        "end_txn",
        4,
        transactional_id="another",
        producer_id=response.producer_id,
        producer_epoch=response.producer_epoch,
        committed=True,
    )
    assert ended.error_code is NONE
    made.cluster.run_until(lambda: bool(made.markers("u")))


def names(made: Producers) -> set[str]:
    return {state.transactional_id for state in made.listed().transaction_states}


def test_coordinator_whose_clock_is_behind_its_log() -> None:
    made = Producers(**SETTINGS)
    begun(made)
    made.cluster.stop_broker(1)
    made.cluster.kill(CONTROLLER)
    made.cluster.event_queue.now_ms -= MINUTE_MS
    made.cluster.start_controller()
    made.cluster.start_broker(1)
    commit_another(made)
    made.cluster.advance(MINUTE_MS)  # The time at which the transaction began.
    assert made.state == "Ongoing"
    assert "idle" in names(made)
    assert made.listed(duration_filter=14_000, state_filters=["Ongoing"]).transaction_states == ()
    made.cluster.advance(25_000)
    assert made.state == "CompleteAbort"
    assert [marker for marker, _, _ in made.markers()] == [Marker.ABORT]
    made.cluster.advance(45_000)
    assert "idle" not in names(made)


def test_clock_that_jumps_back_while_a_broker_runs() -> None:
    made = Producers(**SETTINGS)
    begun(made)
    began_ms = made.cluster.now_ms
    made.cluster.event_queue.now_ms -= MINUTE_MS
    commit_another(made)
    assert made.state == "Ongoing"
    assert "idle" in names(made)
    # The deadlines have not changed.
    made.cluster.advance(began_ms + 14_000 - made.cluster.now_ms)
    assert made.state == "Ongoing"
    made.cluster.advance(11_000)
    assert made.state == "CompleteAbort"
    made.cluster.advance(45_000)
    assert "idle" not in names(made)
