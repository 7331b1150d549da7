"""What readers see of transactions, and what stands in the log.

Purpose: read_committed as a client does it: the broker's answer ends at the last stable offset
and names aborted transactions, whose batches the client leaves out up to their marker. Invariant:
an implementation of its own, so that brokers and clients cannot agree on a mistake with it. What
it must not know: producers. Source: KIP-98, Kafka's ConsumerRecords fetcher.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import CONTROL, TRANSACTIONAL, Batch, Record, parse
from tests.conformance.eventually import eventually
from tests.conformance.wire import READ_COMMITTED, READ_UNCOMMITTED, fetch

ABORT, COMMIT = "abort", "commit"
_MARKERS = {0: ABORT, 1: COMMIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One end marker, as it stands in the log."""

    offset: int
    kind: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def marker_of(batch: Batch) -> Marker | None:
    """The marker in a control batch; None where it is no control batch."""
    if not batch.attributes & CONTROL:
        return None
    (record,) = batch.records
    assert batch.attributes & TRANSACTIONAL, "control batches of transactions are transactional"
    key_version, kind = struct.unpack(">hh", record.key or b"")
    value_version, coordinator_epoch = struct.unpack_from(">hi", record.value or b"")
    assert (key_version, batch.base_sequence) == (0, -1)
    assert value_version >= 0
    return Marker(
        offset=batch.base_offset,
        kind=_MARKERS[kind],
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        coordinator_epoch=coordinator_epoch,
    )


def stored(raw: RawConnection, topic: str, *, partition: int = 0) -> list[Batch]:
    """Every batch of a partition below the high watermark, in order, as read_uncommitted."""
    found: list[Batch] = []
    offset = 0
    while True:
        answer = fetch(raw, topic, offset, partition=partition)
        assert answer.error_code == ErrorCode.none, answer
        some = parse(answer.records)
        if not some:
            return found
        found += some
        offset = found[-1].last_offset + 1


def markers(raw: RawConnection, topic: str, *, partition: int = 0) -> list[Marker]:
    """The markers of a partition, in order."""
    found = [marker_of(batch) for batch in stored(raw, topic, partition=partition)]
    return [marker for marker in found if marker is not None]


def visible(answer: Any) -> list[Record]:
    """The records of a read_committed answer that a client hands to its user."""
    begins = sorted(
        ((a.first_offset, a.producer_id) for a in answer.aborted_transactions or ()), reverse=True
    )
    aborted: set[int] = set()
    records: list[Record] = []
    for batch in parse(answer.records):
        while begins and begins[-1][0] <= batch.last_offset:
            aborted.add(begins.pop()[1])
        marker = marker_of(batch)
        if marker is not None:
            if marker.kind == ABORT:
                aborted.discard(marker.producer_id)
        elif not (batch.attributes & TRANSACTIONAL and batch.producer_id in aborted):
            records += batch.records
    return records


def read(
    raw: RawConnection,
    topic: str,
    *,
    partition: int = 0,
    offset: int = 0,
    isolation_level: int = READ_COMMITTED,
) -> list[str]:
    """The values from an offset to the end, as a consumer of that isolation gets them."""
    found: list[str] = []
    while True:
        answer = fetch(raw, topic, offset, partition=partition, isolation_level=isolation_level)
        assert answer.error_code == ErrorCode.none, answer
        batches = parse(answer.records)
        if not batches:
            return found
        if isolation_level == READ_COMMITTED:
            records = visible(answer)
        else:
            records = [r for b in batches if not b.attributes & CONTROL for r in b.records]
        found += [(r.value or b"").decode() for r in records if r.offset >= offset]
        offset = batches[-1].last_offset + 1


def read_uncommitted(raw: RawConnection, topic: str, *, partition: int = 0) -> list[str]:
    """Every value of a partition, decided or not."""
    return read(raw, topic, partition=partition, isolation_level=READ_UNCOMMITTED)


def await_read(
    raw: RawConnection, topic: str, *expected: str, partition: int = 0, timeout_s: float = 30.0
) -> None:
    """Return once a read_committed consumer gets exactly these values."""
    last: list[list[str]] = []

    def so() -> bool:
        last[:] = [read(raw, topic, partition=partition)]
        return last[0] == list(expected)

    try:
        eventually(so, timeout_s=timeout_s)
    except AssertionError as error:
        stands = [
            (b.base_offset, b.producer_id, marker_of(b))
            for b in stored(raw, topic, partition=partition)
        ]
        stable = last_stable_offset(raw, topic, partition=partition)
        message = (
            f"{topic}-{partition} reads as {last}, not {expected}: {error}; it is stable to "
            f"{stable} and has {stands}"
        )
        raise AssertionError(message) from None


def last_stable_offset(raw: RawConnection, topic: str, *, partition: int = 0) -> int:
    """The last stable offset, as a read_committed fetch tells it."""
    answer = fetch(raw, topic, partition=partition, isolation_level=READ_COMMITTED)
    assert answer.error_code == ErrorCode.none, answer
    return int(answer.last_stable_offset)


def await_stable(raw: RawConnection, topic: str, offset: int, *, partition: int = 0) -> None:
    """Return once the last stable offset is this."""
    last: list[int] = []

    def so() -> bool:
        last[:] = [last_stable_offset(raw, topic, partition=partition)]
        return last[0] == offset

    try:
        eventually(so)
    except AssertionError as error:
        raise AssertionError(f"{topic}-{partition} is stable to {last}: {error}") from None
