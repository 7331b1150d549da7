"""Compaction of transactions: what was aborted goes, markers go after their time (KIP-98, KIP-534)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from integration.clusters import Cluster
from tests.conformance.batches import CONTROL, Batch, Record, batch
from tests.conformance.eventually import eventually
from tests.conformance.isolation import (
    ABORT,
    COMMIT,
    await_stable,
    last_stable_offset,
    marker_of,
    stored,
)
from tests.conformance.transactions import Connections, Generation, TransactionalProducer
from tests.conformance.wire import LATEST, append, list_offset

pytestmark = pytest.mark.slow

NameFactory = Callable[[], str]
SEGMENT_MS = 20
COMPACT = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
Entry = tuple[str, str]


class Compacted:
    """A compacted topic, of which a test closes the active segment by writing fillers."""

    def __init__(self, cluster: Cluster, brokers: Connections, name: str, configs: dict[str, str]):
        self.name = name
        self.raw = brokers.any()
        cluster.create_topic(name, configs=COMPACT | configs)
        self._fillers = itertools.count()

    def plain(self, key: str, value: str) -> None:
        """A record outside of any transaction, in a segment of its own."""
        self.end_segment()
        now_ms = int(time.time() * 1000)
        record = Record(key=key.encode(), value=value.encode(), timestamp_ms=now_ms)
        append(self.raw, self.name, batch([record]))

    def end_segment(self) -> None:
        """Let the segment's time pass: what is written next begins another."""
        time.sleep(2 * SEGMENT_MS / 1000)

    def entries(self) -> list[Entry]:
        """Key and value of what is stored, decided or not, but for fillers."""
        return [
            ((r.key or b"").decode(), (r.value or b"").decode())
            for b in self._batches()
            if not b.attributes & CONTROL
            for r in b.records
            if r.key != b"filler"
        ]

    def kinds(self) -> list[str]:
        """The markers that are left."""
        found = (marker_of(b) for b in self._batches() if b.records)
        return [marker.kind for marker in found if marker is not None]

    def await_so(self, *entries: Entry, markers: list[str]) -> None:
        """Return once exactly these are stored; each look closes a segment."""

        def so() -> bool:
            self.plain("filler", f"{next(self._fillers)}")
            return (self.entries(), self.kinds()) == (list(entries), markers)

        try:
            eventually(so)
        except AssertionError as error:
            left = (self.entries(), self.kinds())
            raise AssertionError(f"{self.name} has {left}: {error}") from None

    def _batches(self) -> list[Batch]:
        return stored(self.raw, self.name)


@pytest.fixture
def make(
    one_broker: Cluster, generation: Generation, unique_name: NameFactory
) -> Iterator[tuple[Callable[..., Compacted], Callable[[], TransactionalProducer]]]:
    """Makes compacted topics, and producers."""
    with Connections(one_broker) as brokers:

        def topic(**configs: str) -> Compacted:
            return Compacted(one_broker, brokers, unique_name(), configs)

        def producer() -> TransactionalProducer:
            return TransactionalProducer(brokers, unique_name(), generation).init()

        yield topic, producer


Make = tuple[Callable[..., Compacted], Callable[[], TransactionalProducer]]


def test_aborted_records_go_and_take_no_older_ones_with_them(make: Make) -> None:
    log, producer = make[0](), make[1]()
    log.plain("a", "kept")
    producer.write(log.name, "aborted", key="a")
    producer.write(log.name, "aborted", key="b")
    producer.abort()
    producer.await_complete()
    producer.write(log.name, "committed", key="c")
    producer.commit()
    producer.await_complete()
    log.plain("d", "1")
    log.plain("d", "2")
    log.await_so(("a", "kept"), ("c", "committed"), ("d", "2"), markers=[ABORT, COMMIT])


def test_a_committed_record_replaces_an_older_one(make: Make) -> None:
    log, producer = make[0](), make[1]()
    log.plain("a", "1")
    producer.write(log.name, "2", key="a")
    producer.commit()
    producer.await_complete()
    producer.write(log.name, "3", key="a")
    producer.commit()
    producer.await_complete()
    log.await_so(("a", "3"), markers=[COMMIT, COMMIT])


def test_what_is_not_decided_is_left_as_it_is(make: Make) -> None:
    log, producer = make[0](), make[1]()
    log.plain("a", "1")
    log.plain("a", "2")
    log.end_segment()  # Only whole segments below the last stable offset are compacted.
    producer.write(log.name, "open", key="a")
    log.plain("a", "3")
    log.plain("a", "4")
    log.await_so(("a", "2"), ("a", "open"), ("a", "3"), ("a", "4"), markers=[])
    assert last_stable_offset(log.raw, log.name) == 2
    producer.abort()
    log.await_so(("a", "4"), markers=[ABORT])


def test_markers_go_once_nothing_of_their_transaction_is_left_and_their_time_is_over(
    make: Make,
) -> None:
    log, producer = make[0](**{"delete.retention.ms": "0"}), make[1]()
    other = make[1]()
    producer.write(log.name, "aborted", key="a")
    producer.abort()
    producer.await_complete()
    producer.write(log.name, "committed", key="b")
    producer.commit()
    producer.await_complete()
    log.plain("b", "last")
    # Its last marker is what a partition remembers a producer by: another one writes as well.
    other.write(log.name, "kept", key="c")
    other.commit()
    other.await_complete()
    log.plain("d", "1")
    _await_markers_gone(log, producer)
    await_stable(log.raw, log.name, list_offset(log.raw, log.name, LATEST).offset)
    producer.write(log.name, "again", key="e")
    producer.commit()
    producer.await_complete()
    assert ("e", "again") in log.entries()


def _await_markers_gone(log: Compacted, producer: TransactionalProducer) -> None:
    expected: list[Entry] = [("b", "last"), ("c", "kept"), ("d", "1")]

    def so() -> bool:
        log.plain("filler", "")
        return log.entries() == expected and ABORT not in log.kinds()

    try:
        eventually(so)
    except AssertionError as error:
        left = (log.entries(), log.kinds(), producer.producer_id)
        raise AssertionError(f"{log.name} has {left}: {error}") from None
