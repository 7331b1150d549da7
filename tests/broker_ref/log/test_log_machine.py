"""A test that compares a log with a list of batches, through crashes with lost or torn writes.

After each step the log contains exactly the batches of the model, in order, with ascending offsets.
After a crash it contains a prefix of the appended batches that includes all flushed ones. The
producer state matches the batches and the surviving snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker_ref.log.batch import (
    SEQUENCE_MAX,
    BatchHeader,
    crc_matches,
    decode_records,
    increment_sequence,
    rewrite,
    unpack_header,
)
from broker_ref.log.errors import LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.partition_log import PartitionLog
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import read_all, small, split
from tests.broker_ref.memory_storage import MemoryStorage

pytestmark = pytest.mark.slow

Remembered = tuple[int, int, int]  # First sequence, last sequence, first offset.


@dataclass(slots=True)
class Producer:
    epoch: int
    batches: list[Remembered]


class LogMachine(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([400, 1000, 100_000]))
    def start(self, segment_bytes: int) -> None:
        self.config = small(
            segment_bytes=segment_bytes,
            index_interval_bytes=120,
            cleanup_policy=("compact", "delete"),
            min_cleanable_dirty_ratio=0.0,
        )
        self.storage = MemoryStorage()
        self.batches: list[bytes] = []
        self.producers: dict[int, Producer] = {}
        self.snapshots: dict[int, dict[int, Producer]] = {}
        self.leader_epoch = 0
        self.durable_offset = 0
        self.floor_offset = 0  # The base offset of a segment that a truncation has emptied.
        self.checkpointed_start = 0
        self.start_offset = 0
        self.timestamp = NOW_MS
        self._open()

    def _open(self) -> None:
        self.directory = LogManager(storage=self.storage)
        self.log: PartitionLog = self.directory.open_log("t", 0, config=self.config, now_ms=NOW_MS)

    @property
    def end_offset(self) -> int:
        last = unpack_header(self.batches[-1]).next_offset if self.batches else self.first_offset
        return max(last, self.floor_offset)

    first_offset = 0

    @rule(count=st.integers(1, 5), size=st.integers(0, 50))
    def append(self, count: int, size: int) -> None:
        self._append(batch(count, timestamp=self.timestamp, value=bytes(size)))

    @rule(
        producer_id=st.integers(1, 3),
        count=st.integers(1, 4),
        new_epoch=st.booleans(),
        start=st.sampled_from([0, SEQUENCE_MAX - 1, SEQUENCE_MAX]),
    )
    def append_idempotent(self, producer_id: int, count: int, new_epoch: bool, start: int) -> None:
        known = self.producers.get(producer_id)
        epoch, sequence = 0, start
        if known is not None:
            epoch, sequence = known.epoch, increment_sequence(known.batches[-1][1], 1)
            if new_epoch:
                epoch, sequence = known.epoch + 1, 0
        self._append(
            batch(count, timestamp=self.timestamp, producer=(producer_id, epoch, sequence))
        )

    def _append(self, data: bytes) -> None:
        before = self.log.log_end_offset
        result = self.log.append(data, leader_epoch=self.leader_epoch, now_ms=NOW_MS)
        assert result.base_offset == before == self.end_offset
        assert not result.is_duplicate
        stored = self.log.read(
            before, end_offset=result.last_offset + 1, max_bytes=0, at_least_one_batch=True
        )
        assert stored[61:] == data[61:]
        self._record_snapshot(before)
        self.batches.append(stored)
        _remember(self.producers, unpack_header(stored))
        self.timestamp += 1
        if len(self.log.segment_base_offsets) > 1:
            self.durable_offset = max(self.durable_offset, self.log.segment_base_offsets[-1])

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.producers)))
        known = self.producers[producer_id]
        first, last, offset = data.draw(st.sampled_from(known.batches))
        count = increment_sequence(last, -first) + 1
        result = self.log.append(
            batch(count, timestamp=1, producer=(producer_id, known.epoch, first)),
            leader_epoch=self.leader_epoch,
            now_ms=NOW_MS,
        )
        assert (result.is_duplicate, result.base_offset) == (True, offset)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), skip=st.integers(1, 1000))
    def leave_a_gap(self, data: st.DataObject, skip: int) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.producers)))
        known = self.producers[producer_id]
        sequence = increment_sequence(known.batches[-1][1], 1 + skip)
        refused = False
        try:
            self.log.append(
                batch(producer=(producer_id, known.epoch, sequence)),
                leader_epoch=self.leader_epoch,
                now_ms=NOW_MS,
            )
        except LogError:
            refused = True
        assert refused

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=6), size=st.integers(0, 50))
    def follow(self, counts: list[int], size: int) -> None:
        offset, batches = self.end_offset, []
        for count in counts:
            data = batch(count, timestamp=self.timestamp, value=bytes(size))
            batches.append(
                rewrite(
                    data,
                    base_offset=offset,
                    leader_epoch=self.leader_epoch,
                    log_append_time_ms=None,
                )
            )
            offset += count
        segments = len(self.log.segment_base_offsets)
        self.log.append_as_follower(b"".join(batches), now_ms=NOW_MS)
        self.batches += [bytes(one) for one in batches]
        self.timestamp += 1
        for base in self.log.segment_base_offsets[segments:]:
            self.snapshots[base] = _last_batches(self.producers)
            self.durable_offset = max(self.durable_offset, base)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        starts = [unpack_header(b).base_offset for b in self.batches]
        offset = data.draw(st.sampled_from([s for s in starts if s >= self.first_offset]))
        self.log.truncate_to(offset, now_ms=NOW_MS)
        self.batches = [b for b in self.batches if unpack_header(b).next_offset <= offset]
        self.floor_offset = 0
        assert self.end_offset <= self.log.log_end_offset <= offset
        if self.log.log_end_offset > self.end_offset:
            assert self.log.log_end_offset == self.log.segment_base_offsets[-1]
            self.floor_offset = self.log.log_end_offset
        self.start_offset = min(self.start_offset, self.end_offset)
        self.checkpointed_start = self.start_offset
        self.snapshots = {o: s for o, s in self.snapshots.items() if o <= self.end_offset}
        self._remove_unrecoverable_producers(self.storage)
        self.durable_offset = min(self.durable_offset, self.end_offset)

    @rule(budget_bytes=st.sampled_from([100, 10_000]))
    def compact(self, budget_bytes: int) -> None:
        before = self._last_offsets()
        self.directory.clean(NOW_MS, {("t", 0): self.end_offset}, budget_bytes=budget_bytes)
        self.batches = read_from_first(self.log)
        self.checkpoint()  # The cleaner does this at its end.
        assert self._last_offsets() == before

    def _last_offsets(self) -> dict[bytes | None, int]:
        return {
            record.key: record.offset for data in self.batches for record in decode_records(data)
        }

    @rule()
    def become_leader_again(self) -> None:
        self.leader_epoch += 1

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable_offset = self.end_offset

    @rule()
    def checkpoint(self) -> None:
        self.directory.checkpoint()
        self.checkpointed_start = self.start_offset

    @precondition(lambda self: self.end_offset > self.start_offset)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start_offset = data.draw(st.integers(self.start_offset, self.end_offset))
        assert self.log.delete_records_before(self.start_offset) == self.start_offset

    @rule()
    def apply_retention(self) -> None:
        self.log.apply_retention(NOW_MS)
        self._record_snapshot(self.end_offset)
        self.first_offset = self.log.segment_base_offsets[0]
        self.batches = [
            b for b in self.batches if unpack_header(b).base_offset >= self.first_offset
        ]

    @rule()
    def restart_cleanly(self) -> None:
        self.directory.close()
        self.snapshots[self.end_offset] = _last_batches(self.producers)
        self._remove_unrecoverable_producers(self.storage)
        self._open()
        assert self.directory.was_clean
        self.durable_offset = self.end_offset
        self.checkpointed_start = self.start_offset

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        self.storage = self.storage.crash(Random(seed))
        appended = self.batches
        self._open()
        end = self.log.log_end_offset
        self.start_offset = max(self.checkpointed_start, self.log.segment_base_offsets[0])
        assert self.durable_offset <= end or end == self.checkpointed_start
        self.batches = [b for b in appended if unpack_header(b).next_offset <= end]
        if self.log.segment_base_offsets[0] > self.first_offset or end > self.end_offset:
            # The log start offset was checkpointed, but the log was not flushed.
            assert end == self.checkpointed_start
            self.batches, self.first_offset = [], end
        self._remove_unrecoverable_producers(self.storage)
        self.durable_offset = min(self.durable_offset, end)

    def _remove_unrecoverable_producers(self, storage: MemoryStorage) -> None:
        """Keep the producer state that recovery finds in the newest snapshot and later batches."""
        snapshots = [
            int(name.removesuffix(".snapshot"))
            for name in storage.list("t-0")
            if name.endswith(".snapshot")
        ]
        newest = max(
            (s for s in snapshots if self.log.log_start_offset < s <= self.end_offset), default=None
        )
        replay_from = self.start_offset if newest is None else newest
        self.producers = {} if newest is None else _last_batches(self.snapshots[newest])
        for data in self.batches:
            header = unpack_header(data)
            if header.next_offset > replay_from:
                _remember(self.producers, header)

    def _record_snapshot(self, end_offset: int) -> None:
        """Record that a segment with a snapshot was just created at the end."""
        if end_offset and self.log.segment_base_offsets[-1] == end_offset:
            self.snapshots[end_offset] = _last_batches(self.producers)

    @invariant()
    def the_log_is_the_model(self) -> None:
        assert self.log.log_end_offset == self.end_offset
        assert self.log.log_start_offset == self.start_offset
        expected = [b for b in self.batches if unpack_header(b).next_offset > self.start_offset]
        found = read_all(self.log)
        assert found == expected
        assert all(crc_matches(b) for b in found)

    @invariant()
    def producers_are_those_of_the_model(self) -> None:
        found = {
            entry.producer_id: Producer(
                epoch=entry.epoch,
                batches=[
                    (b.first_sequence, b.last_sequence, b.first_offset) for b in entry.batches
                ],
            )
            for entry in self.log.producer_entries
        }
        assert found == self.producers


def read_from_first(log: PartitionLog) -> list[bytes]:
    batches: list[bytes] = []
    for segment in log.segments:
        batches += split(
            segment.read(
                segment.base_offset, end_offset=2**63, max_bytes=10**9, at_least_one_batch=True
            )
            or b""
        )
    return batches


def _remember(producers: dict[int, Producer], header: BatchHeader) -> None:
    if header.producer_id < 0:
        return
    known = producers.get(header.producer_id)
    if known is None or known.epoch != header.producer_epoch:
        known = producers[header.producer_id] = Producer(epoch=header.producer_epoch, batches=[])
    known.batches = [
        *known.batches[-4:], (header.base_sequence, header.last_sequence, header.base_offset)
    ]  # fmt: skip


def _last_batches(producers: dict[int, Producer]) -> dict[int, Producer]:
    return {
        producer_id: Producer(epoch=known.epoch, batches=known.batches[-1:])
        for producer_id, known in producers.items()
    }


LogMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestLog = LogMachine.TestCase
