"""Tests of the compaction of aborted records and old transaction markers (KIP-98, KIP-534)."""

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
    """A compacted topic whose active segment the test closes by writing filler records."""

    def __init__(self, cluster: Cluster, brokers: Connections, name: str, configs: dict[str, str]):
        self.name = name
        self.raw = brokers.any()
        cluster.create_topic(name, configs=COMPACT | configs)
        self._fillers = itertools.count()

    def plain(self, key: str, value: str) -> None:
        """Write a record outside of transactions, into its own segment."""
        self.end_segment()
        now_ms = int(time.time() * 1000)
        record = Record(key=key.encode(), value=value.encode(), timestamp_ms=now_ms)
        append(self.raw, self.name, batch([record]))

    def end_segment(self) -> None:
        """Wait for `segment.ms`, so that the next write rolls the segment."""
        time.sleep(2 * SEGMENT_MS / 1000)

    def entries(self) -> list[Entry]:
        """Return the key and value of all stored records except fillers."""
        return [
            ((r.key or b"").decode(), (r.value or b"").decode())
            for b in self._batches()
            if not b.attributes & CONTROL
            for r in b.records
            if r.key != b"filler"
        ]

    def kinds(self) -> list[str]:
        found = (marker_of(b) for b in self._batches() if b.records)
        return [marker.kind for marker in found if marker is not None]

    def await_content(self, *entries: Entry, markers: list[str]) -> None:
        """Wait until the topic contains exactly these records and markers.

        Each check writes a filler, which closes a segment.
        """

        def holds() -> bool:
            self.plain("filler", f"{next(self._fillers)}")
            return (self.entries(), self.kinds()) == (list(entries), markers)

        try:
            eventually(holds)
        except AssertionError as error:
            left = (self.entries(), self.kinds())
            raise AssertionError(f"{self.name} contains {left}: {error}") from None

    def _batches(self) -> list[Batch]:
        return stored(self.raw, self.name)


@pytest.fixture
def make(
    one_broker: Cluster, generation: Generation, unique_name: NameFactory
) -> Iterator[tuple[Callable[..., Compacted], Callable[[], TransactionalProducer]]]:
    """Return functions that create compacted topics and producers."""
    with Connections(one_broker) as brokers:

        def topic(**configs: str) -> Compacted:
            return Compacted(one_broker, brokers, unique_name(), configs)

        def producer() -> TransactionalProducer:
            return TransactionalProducer(brokers, unique_name(), generation).init()

        yield topic, producer


Make = tuple[Callable[..., Compacted], Callable[[], TransactionalProducer]]


def test_aborted_records_are_removed_and_older_ones_kept(make: Make) -> None:
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
    log.await_content(("a", "kept"), ("c", "committed"), ("d", "2"), markers=[ABORT, COMMIT])


def test_committed_record_replaces_an_older_one(make: Make) -> None:
    log, producer = make[0](), make[1]()
    log.plain("a", "1")
    producer.write(log.name, "2", key="a")
    producer.commit()
    producer.await_complete()
    producer.write(log.name, "3", key="a")
    producer.commit()
    producer.await_complete()
    log.await_content(("a", "3"), markers=[COMMIT, COMMIT])


def test_open_transactions_are_not_compacted(make: Make) -> None:
    log, producer = make[0](), make[1]()
    log.plain("a", "1")
    log.plain("a", "2")
    log.end_segment()  # Compaction covers only complete segments below the last stable offset.
    producer.write(log.name, "open", key="a")
    log.plain("a", "3")
    log.plain("a", "4")
    log.await_content(("a", "2"), ("a", "open"), ("a", "3"), ("a", "4"), markers=[])
    assert last_stable_offset(log.raw, log.name) == 2
    producer.abort()
    log.await_content(("a", "4"), markers=[ABORT])


def test_markers_are_removed_after_their_records_and_retention(
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
    # The last marker of the last producer is kept, so another producer writes too.
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

    def holds() -> bool:
        log.plain("filler", "")
        return log.entries() == expected and ABORT not in log.kinds()

    try:
        eventually(holds)
    except AssertionError as error:
        left = (log.entries(), log.kinds(), producer.producer_id)
        raise AssertionError(f"{log.name} contains {left}: {error}") from None
