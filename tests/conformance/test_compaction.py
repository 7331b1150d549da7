"""Tests of compaction, which keeps the last record of every key and its offset.

See KIP-58, KIP-354 and KIP-534. The timestamps of consecutive batches differ by more than
`segment.ms`. Every batch therefore closes the previous segment, and all batches but the last can be
compacted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import GZIP, Batch, Record, batch, parse
from tests.conformance.clients import Client, Confluent, KafkaPython
from tests.conformance.eventually import eventually
from tests.conformance.producers import new_producer_id
from tests.conformance.wire import EARLIEST, LATEST, append, fetch, list_offset, produce

COMPACT = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "86400000",
}
DELETE_HORIZON = 0x40
STEP_MS = 1_000
Entry = tuple[str, str | None]


@pytest.fixture
def own_raw(one_broker: Cluster) -> Iterator[RawConnection]:
    with RawConnection(one_broker.bootstrap_servers) as connection:
        yield connection


class Log:
    def __init__(self, raw: RawConnection, topic: str) -> None:
        self.raw = raw
        self.topic = topic
        # The batches are recent, because partitions expire producers after a day.
        self._times_ms = itertools.count(int(time.time() * 1000) - 3_000_000, STEP_MS)

    def batch(self, *entries: Entry, codec: int = 0, producer: tuple[int, int] = (-1, -1)) -> bytes:
        """Return a batch; `producer` is the producer id and the base sequence."""
        timestamp_ms = next(self._times_ms)
        records = [
            Record(
                key=key.encode(),
                value=None if value is None else value.encode(),
                timestamp_ms=timestamp_ms,
            )
            for key, value in entries
        ]
        return batch(
            records,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=0 if producer[0] >= 0 else -1,
            base_sequence=producer[1],
        )

    def append(self, *entries: Entry, codec: int = 0) -> int:
        return append(self.raw, self.topic, self.batch(*entries, codec=codec))

    def batches(self, offset: int = 0) -> list[Batch]:
        found: list[Batch] = []
        end = list_offset(self.raw, self.topic, LATEST).offset
        while offset < end:
            response = fetch(self.raw, self.topic, offset)
            assert response.error_code == ErrorCode.none
            some = parse(response.records)
            assert some, f"there is no batch at offset {offset}, below {end}"
            found += some
            offset = some[-1].last_offset + 1
        return found

    def entries(self, offset: int = 0) -> list[tuple[int, Entry]]:
        """Return the offset, key and value of every record from `offset` to the end."""
        return [
            (
                record.offset,
                (record.key.decode(), None if record.value is None else record.value.decode()),
            )
            for one in self.batches(offset)
            for record in one.records
            if record.offset >= offset and record.key is not None
        ]

    def await_entries(self, expected: Sequence[tuple[int, Entry]]) -> None:
        eventually(lambda: self.entries() == list(expected), timeout_s=30)


@pytest.fixture
def make_log(
    one_broker: Cluster, own_raw: RawConnection, unique_name: Callable[[], str]
) -> Callable[..., Log]:
    def make(**configs: str) -> Log:
        name = unique_name()
        one_broker.create_topic(name, configs=COMPACT | configs)
        return Log(own_raw, name)

    return make


def test_search_by_log_append_time_finds_a_retained_record(make_log: Callable[..., Log]) -> None:
    log = make_log(**{"message.timestamp.type": "LogAppendTime"})
    log.append(("k0", "removed"), ("k1", "retained"))

    def is_compacted() -> bool:
        log.append(("k0", "a later value"))  # Appends roll segments, after `segment.ms`.
        return log.entries()[0] == (1, ("k1", "retained"))

    eventually(is_compacted, timeout_s=30)
    assert list_offset(log.raw, log.topic, 1).offset == 1


def test_last_record_of_every_key_keeps_its_offset(make_log: Callable[..., Log]) -> None:
    log = make_log()
    for i in range(12):
        log.append((f"k{i % 3}", f"v{i}"))
    log.await_entries(
        [(8, ("k2", "v8")), (9, ("k0", "v9")), (10, ("k1", "v10")), (11, ("k2", "v11"))]
    )
    assert list_offset(log.raw, log.topic, EARLIEST).offset == 0
    assert list_offset(log.raw, log.topic, LATEST).offset == 12
    # A fetch at a removed offset starts at the next existing record.
    assert parse(fetch(log.raw, log.topic, 3).records)[0].base_offset >= 3
    assert log.entries(9) == log.entries()[1:]


def test_active_segment_is_never_compacted(make_log: Callable[..., Log]) -> None:
    log = make_log(**{"segment.ms": "86400000"})
    log.append(("a", "1"))
    log.append(("a", "2"))
    other = make_log()
    for i in range(3):
        other.append(("a", str(i)))
    other.await_entries([(1, ("a", "1")), (2, ("a", "2"))])
    assert log.entries() == [(0, ("a", "1")), (1, ("a", "2"))]


@pytest.mark.parametrize("codec", [0, GZIP], ids=["plain", "gzip"])
def test_batch_that_loses_records_keeps_its_offsets_and_codec(
    make_log: Callable[..., Log], codec: int
) -> None:
    log = make_log()
    log.append(("a", "1"), ("b", "2"), ("c", "3"), codec=codec)
    log.append(("a", "4"), ("c", "5"))
    log.append(("end", ""))
    log.await_entries([(1, ("b", "2")), (3, ("a", "4")), (4, ("c", "5")), (5, ("end", ""))])
    first = log.batches()[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    assert first.codec == codec


def test_tombstone_removes_values_and_gets_a_delete_horizon(make_log: Callable[..., Log]) -> None:
    log = make_log()
    log.append(("a", "1"))
    log.append(("a", None))
    log.append(("end", ""))
    before_ms = int(time.time() * 1000)
    log.await_entries([(1, ("a", None)), (2, ("end", ""))])
    eventually(lambda: bool(log.batches()[0].attributes & DELETE_HORIZON))
    tombstone = log.batches()[0]
    kept_ms = tombstone.base_timestamp_ms - before_ms
    assert 86_400_000 - 60_000 < kept_ms < 86_400_000 + 120_000
    assert tombstone.records[0].timestamp_ms == tombstone.max_timestamp_ms < before_ms


def test_tombstone_is_removed_after_its_retention(make_log: Callable[..., Log]) -> None:
    log = make_log(**{"delete.retention.ms": "0"})
    log.append(("a", "1"))
    log.append(("a", None))
    fillers = itertools.count()

    def is_gone() -> bool:
        # The broker compacts a log again only if the log has new records.
        log.append(("filler", str(next(fillers))))
        return "a" not in {key for _, (key, _) in log.entries()}

    eventually(is_gone, timeout_s=30)


def test_producer_continues_after_its_records_were_removed(make_log: Callable[..., Log]) -> None:
    log = make_log()
    producer_id = new_producer_id(log.raw)
    first = log.batch(("a", "1"), producer=(producer_id, 0))
    second = log.batch(("a", "2"), ("a", "3"), producer=(producer_id, 1))
    for data in (first, second):
        append(log.raw, log.topic, data)
    log.append(("a", "4"))
    log.append(("end", ""))
    log.await_entries([(3, ("a", "4")), (4, ("end", ""))])
    left = log.batches()[0]
    assert (left.producer_id, left.base_sequence, left.record_count) == (producer_id, 1, 0)
    assert (left.base_offset, left.last_offset) == (1, 2)
    again = produce(log.raw, log.topic, second)
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 1)
    assert append(log.raw, log.topic, log.batch(("b", "5"), producer=(producer_id, 3))) == 5


@pytest.mark.parametrize("kind", [Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def test_clients_skip_offset_gaps(
    make_log: Callable[..., Log], one_broker: Cluster, kind: type[Confluent] | type[KafkaPython]
) -> None:
    log = make_log()
    for i in range(10):
        log.append((f"k{i % 2}", f"v{i}"), codec=GZIP if i % 3 else 0)
    log.await_entries([(7, ("k1", "v7")), (8, ("k0", "v8")), (9, ("k1", "v9"))])
    client: Client = kind(one_broker.bootstrap_servers)
    rows = client.read(log.topic, 3)
    assert [row.offset for row in rows] == [7, 8, 9]


def test_max_compaction_lag_compacts_a_log_with_few_dirty_records(
    make_log: Callable[..., Log],
) -> None:
    log = make_log(**{"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "100"})
    log.append(("a", "1"))
    log.append(("a", "2"))
    log.append(("end", ""))
    log.await_entries([(1, ("a", "2")), (2, ("end", ""))])


def test_min_compaction_lag_keeps_young_records(make_log: Callable[..., Log]) -> None:
    log = make_log(**{"min.compaction.lag.ms": "86400000"})
    other = make_log()
    for one in (log, other):
        for i in range(3):
            one.append(("a", str(i)))
    other.await_entries([(1, ("a", "1")), (2, ("a", "2"))])
    assert log.entries() == [(0, ("a", "0")), (1, ("a", "1")), (2, ("a", "2"))]
