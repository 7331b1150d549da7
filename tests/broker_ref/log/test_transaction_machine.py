"""A test that compares the transactions of a log with a scan of its batches.

The log crashes and is truncated. After each step, for any high watermark not below the last one,
three results match the scan: the last stable offset, the aborted transactions of any range, and
each producer's open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker_ref.log.batch import BatchHeader, rewrite, unpack_header
from broker_ref.log.control import EndTransactionMarker, Marker, decode_marker, encode_marker
from broker_ref.log.errors import LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.partition_log import PartitionLog
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import small
from tests.broker_ref.log.transactions import Writer, transactional
from tests.broker_ref.memory_storage import MemoryStorage

Written = tuple[BatchHeader, Marker | None]
PRODUCERS = st.integers(1, 4)
MARKERS = st.sampled_from(list(Marker))


@dataclass(slots=True)
class Reading:
    """The result of a scan of all batches, without an index."""

    open: dict[int, int] = field(default_factory=dict)
    ended: list[tuple[int, int, int, Marker]] = field(default_factory=list)
    """Producer id, first offset, the marker's offset and type."""

    def of(self, batches: list[Written]) -> Reading:
        for header, marker in batches:
            if marker is not None and header.producer_id in self.open:
                first = self.open.pop(header.producer_id)
                self.ended.append((header.producer_id, first, header.base_offset, marker))
            elif header.is_transactional and marker is None:
                self.open.setdefault(header.producer_id, header.base_offset)
        return self

    def last_stable_offset(self, high_watermark: int) -> int:
        undecided = list(self.open.values())
        undecided += [first for _, first, last, _ in self.ended if last >= high_watermark]
        return min([high_watermark, *undecided])

    def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        return [
            (producer_id, first)
            for producer_id, first, last, marker in self.ended
            if marker is Marker.ABORT and last >= start and first < end
        ]


class TransactionMachine(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([300, 600, 100_000]))
    def start(self, segment_bytes: int) -> None:
        self.config = small(segment_bytes=segment_bytes, index_interval_bytes=120)
        self.storage = MemoryStorage()
        self.batches: list[Written] = []
        self._open()

    def _open(self) -> None:
        """Open the log; after a restart only the checkpointed high watermark is known."""
        self.directory = LogManager(storage=self.storage)
        self.log: PartitionLog = self.directory.open_log("t", 0, config=self.config, now_ms=NOW_MS)
        self.high_watermark = self.directory.high_watermark("t", 0)
        self._loaded()

    def _loaded(self) -> None:
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        known = {entry.producer_id: entry for entry in self.log.producer_entries}
        self.writers = {}
        for producer_id in range(1, 5):
            writer = Writer(log=self.log, producer_id=producer_id)
            if producer_id in known:
                writer.epoch = known[producer_id].epoch
                writer.sequence = known[producer_id].last_sequence + 1
            self.writers[producer_id] = writer

    def _record(self, base_offset: int) -> None:
        data = self.log.read(base_offset, end_offset=2**62, max_bytes=0, at_least_one_batch=True)
        header = unpack_header(data)
        end = decode_marker(data) if header.is_control else None
        self.batches.append((header, None if end is None else end.marker))

    @rule()
    def write_without_a_transaction(self) -> None:
        self._record(self.log.append(batch(2), leader_epoch=0, now_ms=NOW_MS).base_offset)

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3))
    def write(self, producer_id: int, count: int) -> None:
        self._record(self.writers[producer_id].write(count).base_offset)

    @rule(producer_id=PRODUCERS, marker=MARKERS, version=st.sampled_from([1, 2]))
    def end(self, producer_id: int, marker: Marker, version: int) -> None:
        self._record(self.writers[producer_id].end(marker, transaction_version=version).base_offset)

    @rule(producer_id=PRODUCERS, marker=MARKERS)
    def write_after_the_end(self, producer_id: int, marker: Marker) -> None:
        """Check that a batch is rejected if its verification began before a marker."""
        writer = self.writers[producer_id]
        guard = writer.guard()
        self.end(producer_id, marker, 1)
        with pytest.raises(LogError):
            self.log.append(
                transactional(producer_id, epoch=writer.epoch, sequence=writer.sequence),
                leader_epoch=0,
                now_ms=NOW_MS,
                guard=guard,
            )

    @rule(ends=st.lists(st.tuples(PRODUCERS, st.sampled_from([None, *Marker])), min_size=1))
    def follow(self, ends: list[tuple[int, Marker | None]]) -> None:
        """Append batches of another leader, as from one fetch."""
        first = len(self.batches)
        offset, placed = self.log.log_end_offset, []
        for producer_id, marker in ends:
            writer = self.writers[producer_id]
            if marker is None:
                data = transactional(producer_id, epoch=writer.epoch, sequence=writer.sequence)
                writer.sequence += 1
            else:
                data = encode_marker(
                    EndTransactionMarker(marker=marker, coordinator_epoch=0),
                    producer_id=producer_id,
                    producer_epoch=writer.epoch,
                    timestamp_ms=NOW_MS,
                )
            one = rewrite(data, base_offset=offset, leader_epoch=0, log_append_time_ms=None)
            placed.append(bytes(one))
            self.batches.append((unpack_header(one), marker))
            offset += 1
        self.log.append_as_follower(b"".join(placed), now_ms=NOW_MS)
        assert len(self.batches) == first + len(ends)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([header.base_offset for header, _ in self.batches]))
        self.log.truncate_to(offset, now_ms=NOW_MS)
        self._remove_batches_after_the_end()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def checkpoint(self) -> None:
        self.directory.checkpoint({("t", 0): self.high_watermark})

    @rule()
    def restart_cleanly(self) -> None:
        self.directory.close({("t", 0): self.high_watermark})
        self._open()

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        self.storage = self.storage.crash(Random(seed))
        self._open()
        self._remove_batches_after_the_end()

    def _remove_batches_after_the_end(self) -> None:
        self.batches = [b for b in self.batches if b[0].next_offset <= self.log.log_end_offset]
        self._loaded()

    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        """Raise the high watermark, which drops the completed transactions below it."""
        high_watermark = data.draw(st.integers(0, self.log.log_end_offset))
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.log.producers.remove_replicated(self.high_watermark)

    @invariant()
    def transactions_are_those_of_the_batches(self) -> None:
        reading = Reading().of(self.batches)
        end = self.log.log_end_offset
        for high_watermark in range(self.high_watermark, end + 1):
            found = self.log.last_stable_offset(high_watermark)
            assert found == reading.last_stable_offset(high_watermark)
        for start in range(0, end + 1, 2):
            for stop in range(start + 1, end + 2, 3):
                found_aborted = self.log.aborted_transactions(start, stop)
                assert [(a.producer_id, a.first_offset) for a in found_aborted] == (
                    reading.aborted(start, stop)
                )
        open_here = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in self.log.producer_entries
            if entry.has_open_transaction
        }
        assert open_here == reading.open


TransactionMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, print_blob=True
)
TestTransactions = TransactionMachine.TestCase
