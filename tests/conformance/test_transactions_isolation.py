"""Tests of isolation: last stable offset, aborted transactions, ListOffsets (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import batch, parse, values
from tests.conformance.eventually import eventually
from tests.conformance.isolation import (
    ABORT,
    COMMIT,
    await_read,
    await_stable,
    last_stable_offset,
    markers,
    read,
    read_uncommitted,
)
from tests.conformance.transactions import TransactionalProducer
from tests.conformance.wire import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    append,
    fetch,
    fetch_request,
    list_offset,
    only,
    served,
    topic_id,
)

TopicFactory = Callable[..., str]
ProducerFactory = Callable[..., TransactionalProducer]
OBSERVATION_S = 0.3
"""How long a test waits to check that nothing happens."""

# The last stable offset.


def test_last_stable_offset_stops_at_the_first_open_transaction(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    first, second = new_producer(), new_producer()
    append(raw, name, batch(values("0")))
    assert last_stable_offset(raw, name) == 1
    first.write(name, "1")
    second.write(name, "2")
    append(raw, name, batch(values("3")))
    assert (last_stable_offset(raw, name), fetch(raw, name).high_watermark) == (1, 4)
    assert read(raw, name) == ["0"]
    second.commit()
    second.await_complete()
    # The later transaction has ended, but the open transaction is before it.
    assert (last_stable_offset(raw, name), read(raw, name)) == (1, ["0"])
    first.commit()
    await_read(raw, name, "0", "1", "2", "3")
    assert last_stable_offset(raw, name) == 6


def test_last_stable_offset_moves_to_the_next_open_transaction(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    first, second = new_producer(), new_producer()
    first.write(name, "0")
    append(raw, name, batch(values("1")))
    second.write(name, "2")
    first.abort()
    await_stable(raw, name, 2)
    assert read(raw, name) == ["1"]
    second.commit()
    await_read(raw, name, "1", "2")


def test_last_stable_offset_is_the_high_watermark_without_transactions(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    response = fetch(raw, name, isolation_level=READ_COMMITTED)
    assert (response.last_stable_offset, response.high_watermark) == (2, 2)
    assert not response.aborted_transactions


def test_only_the_commit_wakes_a_waiting_reader(
    raw: RawConnection, raw_address: str, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    request = fetch_request(
        {name: [{"fetch_offset": 0}]},
        max_wait_ms=20_000,
        min_bytes=1,
        isolation_level=READ_COMMITTED,
    )
    with RawConnection(raw_address) as waiting:
        waiting.send_only(request)
        producer.write(name, "a")
        waiting.set_timeout(OBSERVATION_S)
        with pytest.raises(TimeoutError):
            waiting.receive_frame()
        waiting.set_timeout(15)
        producer.commit()
        response = only(only(waiting.receive(request).responses).partitions)
    assert response.last_stable_offset == 2
    eventually(lambda: read(raw, name) == ["a"])


def test_offset_between_stable_and_high_watermark_is_in_range_and_empty(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.write(name, "a", "b")
    for offset in (0, 1, 2):
        response = fetch(raw, name, offset, isolation_level=READ_COMMITTED)
        assert (response.error_code, response.records) == (ErrorCode.none, b""), offset
        assert (response.last_stable_offset, response.high_watermark) == (0, 2)
    beyond = fetch(raw, name, 3, isolation_level=READ_COMMITTED)
    assert beyond.error_code == ErrorCode.offset_out_of_range


def test_last_stable_offset_is_a_batch_boundary(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    """Otherwise a fetch could return a part of an open transaction."""
    name = topic()
    first, second = new_producer(), new_producer()
    first.write(name, "a", "b", "c")
    second.write(name, "d", "e")
    first.commit()
    await_stable(raw, name, 3)
    response = fetch(raw, name, 1, isolation_level=READ_COMMITTED)
    assert [(b.base_offset, b.last_offset) for b in parse(response.records)] == [(0, 2)]
    second.abort()


# The list of aborted transactions.


def test_fetch_lists_aborted_transactions(
    raw: RawConnection, topic: TopicFactory, new_producer: ProducerFactory
) -> None:
    name = topic()
    first, second, third = new_producer(), new_producer(), new_producer()
    first.write(name, "0")
    second.write(name, "1")
    third.write(name, "2")
    first.write(name, "3")
    first.abort()
    third.commit()
    second.abort()
    for one in (first, second, third):
        one.await_complete()
    response = fetch(raw, name, isolation_level=READ_COMMITTED)
    assert response.last_stable_offset == 7
    assert sorted((a.first_offset, a.producer_id) for a in response.aborted_transactions) == [
        (0, first.producer_id),
        (1, second.producer_id),
    ]
    assert read(raw, name) == ["2"]


def test_bytes_are_those_of_read_uncommitted(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    """The broker returns aborted records and markers too, and the client skips them."""
    name = topic()
    producer.write(name, "a")
    producer.abort()
    await_stable(raw, name, 2)
    committed = fetch(raw, name, isolation_level=READ_COMMITTED)
    uncommitted = fetch(raw, name)
    assert committed.records == uncommitted.records
    assert len(parse(committed.records)) == 2
    assert uncommitted.aborted_transactions is None


def test_only_overlapping_aborted_transactions_are_listed(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    for number in range(3):
        producer.write(name, f"{number}")
        producer.abort()
        producer.await_complete()
    # The transactions are at offsets 0, 2 and 4; a marker follows each transaction.
    found = {
        offset: sorted(
            a.first_offset
            for a in fetch(
                raw, name, offset, isolation_level=READ_COMMITTED, partition_max_bytes=1
            ).aborted_transactions
        )
        for offset in range(6)
    }
    # A response with one batch may list later transactions, but none that ended before the batch.
    for offset, firsts in found.items():
        wanted = offset - offset % 2
        assert wanted in firsts, found
        assert min(firsts) == wanted, found


def test_fetch_inside_an_aborted_transaction_lists_it(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    for text in "abc":
        producer.write(name, text)
    producer.abort()
    await_stable(raw, name, 4)
    assert read(raw, name, offset=2) == []
    response = fetch(raw, name, 2, isolation_level=READ_COMMITTED)
    assert [(a.first_offset, a.producer_id) for a in response.aborted_transactions] == [
        (0, producer.producer_id)
    ]


def test_every_version_lists_aborted_transactions(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    producer.write(name, "a")
    producer.abort()
    await_stable(raw, name, 2)
    for version in served(raw, "fetch"):
        response = fetch(
            raw,
            identifier if version >= 13 else name,
            version=version,
            isolation_level=READ_COMMITTED,
        )
        assert response.last_stable_offset == 2, version
        assert [a.first_offset for a in response.aborted_transactions] == [0], version


def test_delayed_fetch_lists_aborted_transactions(
    raw: RawConnection, raw_address: str, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    request = fetch_request(
        {name: [{"fetch_offset": 0}]},
        max_wait_ms=20_000,
        min_bytes=1,
        isolation_level=READ_COMMITTED,
    )
    producer.write(name, "a")
    with RawConnection(raw_address) as waiting:
        waiting.send_only(request)
        producer.abort()
        response = only(only(waiting.receive(request).responses).partitions)
    assert [a.producer_id for a in response.aborted_transactions] == [producer.producer_id]
    assert len(parse(response.records)) == 2


def test_many_aborted_transactions_over_several_segments(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic(**{"segment.bytes": str(1024 * 1024)})
    padding = "x" * 200_000
    for number in range(8):
        producer.write(name, f"{number}{padding}")
        producer.write(name, f"{number}{padding}")
        producer.end(commit=number in (3, 7))
    expected = [f"{number}{padding}" for number in (3, 3, 7, 7)]
    eventually(lambda: read(raw, name) == expected)
    kinds = [marker.kind for marker in markers(raw, name)]
    assert kinds == [COMMIT if number in (3, 7) else ABORT for number in range(8)]


# ListOffsets by isolation level.


def test_latest_is_the_last_stable_offset_or_the_high_watermark(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    producer.write(name, "b")
    for version in served(raw, "list_offsets"):
        if version < 2:
            continue
        found = list_offset(raw, name, LATEST, version=version, isolation_level=READ_COMMITTED)
        assert (found.error_code, found.offset) == (ErrorCode.none, 1), version
        assert list_offset(raw, name, LATEST, version=version).offset == 2, version
    producer.commit()
    producer.await_complete()
    assert list_offset(raw, name, LATEST, isolation_level=READ_COMMITTED).offset == 3
    assert list_offset(raw, name, EARLIEST, isolation_level=READ_COMMITTED).offset == 0


def test_timestamp_above_the_last_stable_offset_is_not_found(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    append(raw, name, batch(values("old")))
    producer.write(name, "new")
    (new,) = parse(fetch(raw, name, 1).records)
    found = list_offset(raw, name, new.max_timestamp_ms, isolation_level=READ_COMMITTED)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, -1, -1)
    assert list_offset(raw, name, new.max_timestamp_ms).offset == 1
    producer.commit()
    producer.await_complete()
    found = list_offset(raw, name, new.max_timestamp_ms, isolation_level=READ_COMMITTED)
    assert found.offset == 1


def test_records_before_an_open_transaction_are_found_by_time(
    raw: RawConnection, topic: TopicFactory, producer: TransactionalProducer
) -> None:
    name = topic()
    append(raw, name, batch(values("old", timestamp_ms=1_000)))
    producer.write(name, "new")
    found = list_offset(raw, name, 500, isolation_level=READ_COMMITTED)
    assert (found.offset, found.timestamp) == (0, 1_000)
    assert list_offset(raw, name, MAX_TIMESTAMP).offset == 1
    assert read_uncommitted(raw, name) == ["old", "new"]
