"""Tests of the compaction of transactions: aborted records and unused markers are removed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_ref.log.batch import decode_records, unpack_header
from broker_ref.log.control import Marker, decode_marker
from broker_ref.log.partition_log import PartitionLog
from tests.broker_ref.log.batches import NOW_MS
from tests.broker_ref.log.compacted import Compacted
from tests.broker_ref.log.logs import read_all
from tests.broker_ref.log.transactions import Writer

HORIZON_MS = 24 * 60 * 60 * 1000
"""delete.retention.ms"""


def markers(log: PartitionLog) -> list[tuple[int, int]]:
    headers = [(unpack_header(data), data) for data in read_all(log)]
    return [
        (header.producer_id, header.base_offset)
        for header, data in headers
        if header.is_control and decode_marker(data) is not None
    ]


def committed(log: PartitionLog) -> dict[bytes, int]:
    """Return the last offset of each key for a `read_committed` consumer."""
    to_come = sorted(
        (found.first_offset, found.producer_id)
        for found in log.aborted_transactions(0, log.log_end_offset)
    )
    dropped: set[int] = set()
    seen: dict[bytes, int] = {}
    for data in read_all(log):
        header = unpack_header(data)
        while to_come and to_come[0][0] <= header.last_offset:
            dropped.add(to_come.pop(0)[1])
        if header.is_control:
            end = decode_marker(data) if header.record_count else None
            if end is not None and end.marker is Marker.ABORT:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            seen.update({record.key or b"": record.offset for record in decode_records(data)})
    return seen


def dirty(log: Compacted) -> None:
    """Append a closed segment, so that there is more to compact."""
    log.append((b"z", b"9"))
    log.roll()


def test_aborted_records_are_removed_and_do_not_replace_older_ones() -> None:
    log = Compacted()
    log.append((b"a", b"old"))
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.abort()
    writer.write(key=b"b")
    writer.commit()
    dirty(log)
    log.clean()
    assert [key for _, (key, _) in log.entries() if key in (b"a", b"b")] == [b"a", b"b"]
    assert log.records()[0].value == b"old"
    (aborted,) = log.log.aborted_transactions(0, log.log.log_end_offset)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (4, 1, 2)


def test_committed_records_replace_older_ones() -> None:
    log = Compacted()
    log.append((b"a", b"old"))
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.commit()
    dirty(log)
    log.clean()
    assert [(o, value) for o, (key, value) in log.entries() if key == b"a"] == [(1, b"value")]


@pytest.mark.parametrize("marker", list(Marker))
def test_a_marker_is_removed_after_its_records_and_the_horizon(marker: Marker) -> None:
    log = Compacted()
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.end(marker)
    writer.write(key=b"a")
    writer.commit()
    dirty(log)
    log.clean()  # This compaction removes the records, so it still needs the marker.
    assert (4, 1) in markers(log.log)
    dirty(log)
    log.clean()  # No longer needed, but kept for consumers until its delete horizon.
    assert (4, 1) in markers(log.log)
    assert not log.log.aborted_transactions(0, log.log.log_end_offset)
    dirty(log)
    log.clean(NOW_MS + HORIZON_MS - 1)
    assert (4, 1) in markers(log.log)
    dirty(log)
    log.clean(NOW_MS + HORIZON_MS)
    assert (4, 1) not in markers(log.log)


def test_a_retained_record_keeps_its_marker() -> None:
    log = Compacted()
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.commit()
    writer.write(key=b"b")
    writer.commit()
    for days in range(4):
        dirty(log)
        log.clean(NOW_MS + days * HORIZON_MS)
    assert markers(log.log) == [(4, 1), (4, 3)]


def test_the_header_of_a_producers_last_batch_keeps_the_marker() -> None:
    log = Compacted()
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.abort()
    for days in range(4):
        dirty(log)
        log.clean(NOW_MS + days * HORIZON_MS)
    assert markers(log.log) == [(4, 1)]
    assert len(log.log.aborted_transactions(0, log.log.log_end_offset)) == 1
    log.directory.close()
    again = Compacted(storage=log.storage)
    (entry,) = again.log.producer_entries
    assert (entry.last_sequence, entry.has_open_transaction) == (0, False)


def test_a_marker_keeps_the_epoch_of_an_otherwise_unknown_producer() -> None:
    log = Compacted()
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.end(Marker.COMMIT, transaction_version=2)
    log.append((b"a", b"new"))
    for days in range(4):
        dirty(log)
        log.clean(NOW_MS + days * HORIZON_MS)
    assert markers(log.log) == []
    for name in log.storage.list("t-0"):
        if name.endswith(".snapshot"):
            log.storage.remove(f"t-0/{name}")
    again = Compacted(storage=log.storage.crash(Random(0)))
    (entry,) = again.log.producer_entries
    assert entry.epoch == 1


def test_compaction_stops_at_an_open_transaction() -> None:
    log = Compacted()
    log.append((b"a", b"1"))
    log.roll()
    writer = Writer(log=log.log, producer_id=4)
    writer.write(key=b"a")
    writer.write(key=b"a")
    dirty(log)
    stable = log.log.last_stable_offset(log.log.log_end_offset)
    log.clean(high_watermark=stable)
    assert [o for o, (key, _) in log.entries() if key == b"a"] == [0, 1, 2]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 3), st.sampled_from([b"a", b"b", b"c"])),
        st.tuples(st.integers(1, 3), st.sampled_from([*Marker])),
        st.just("roll"),
        st.just("clean"),
        st.just("crash"),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_read_committed_reader_sees_the_same_last_records(
    steps: list[tuple[int, bytes | Marker] | str],
) -> None:
    log = Compacted()
    now_ms = NOW_MS

    def writers() -> dict[int, Writer]:
        known = {entry.producer_id: entry for entry in log.log.producer_entries}
        return {
            producer_id: Writer(
                log=log.log,
                producer_id=producer_id,
                epoch=known[producer_id].epoch if producer_id in known else 0,
                sequence=known[producer_id].last_sequence + 1 if producer_id in known else 0,
            )
            for producer_id in (1, 2, 3)
        }

    by_id = writers()
    for step in steps:
        if step == "roll":
            log.roll()
        elif step in ("clean", "crash"):
            before = committed(log.log)
            now_ms += HORIZON_MS
            log.clean(now_ms, high_watermark=log.log.last_stable_offset(log.log.log_end_offset))
            assert committed(log.log) == before
            if step == "crash":
                log.log.flush()
                log = Compacted(storage=log.storage.crash(Random(0)))
                assert committed(log.log) == before
                by_id = writers()
        elif isinstance(step, tuple):
            producer_id, what = step
            if isinstance(what, Marker):
                by_id[producer_id].end(what, transaction_version=1)
            else:
                by_id[producer_id].write(key=what)
