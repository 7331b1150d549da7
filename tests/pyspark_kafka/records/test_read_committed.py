"""Tests of the aborted producers of a fetch, batch by batch."""

from __future__ import annotations

from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.records.read_committed import AbortedProducers


def test_a_producer_is_aborted_from_its_first_offset_to_its_marker() -> None:
    aborted = AbortedProducers(
        (
            AbortedTransaction(producer_id=7, first_offset=30),
            AbortedTransaction(producer_id=7, first_offset=10),
            AbortedTransaction(producer_id=8, first_offset=20),
        )
    )
    aborted.admit(9)
    assert 7 not in aborted
    aborted.admit(10)
    assert 7 in aborted
    assert 8 not in aborted
    aborted.end(7)
    aborted.admit(29)
    assert 7 not in aborted
    assert 8 in aborted
    aborted.admit(30)
    assert 7 in aborted
    aborted.end(9)
