"""The records and markers of transactions, as stored and as visible to consumers.

This module implements `read_committed` as a client does (KIP-98): a fetch ends at the last stable
offset and lists aborted transactions, whose batches the client skips up to their marker. It shares
no code with the broker or the connector, so that the tests detect a mistake that both have in
common.
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
    """A transaction marker in the log."""

    offset: int
    kind: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def marker_of(batch: Batch) -> Marker | None:
    """Return the marker of a control batch, or None for another batch."""
    if not batch.attributes & CONTROL:
        return None
    (record,) = batch.records
    assert batch.attributes & TRANSACTIONAL, "the control batch is not transactional"
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
    """Return all batches of a partition below the high watermark, with `read_uncommitted`."""
    found: list[Batch] = []
    offset = 0
    while True:
        response = fetch(raw, topic, offset, partition=partition)
        assert response.error_code == ErrorCode.none, response
        some = parse(response.records)
        if not some:
            return found
        found += some
        offset = found[-1].last_offset + 1


def markers(raw: RawConnection, topic: str, *, partition: int = 0) -> list[Marker]:
    found = [marker_of(batch) for batch in stored(raw, topic, partition=partition)]
    return [marker for marker in found if marker is not None]


def visible(response: Any) -> list[Record]:
    """Return the records that a `read_committed` client passes to the application."""
    begins = sorted(
        ((a.first_offset, a.producer_id) for a in response.aborted_transactions or ()), reverse=True
    )
    aborted: set[int] = set()
    records: list[Record] = []
    for batch in parse(response.records):
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
    """Return the values from `offset` to the end of the partition."""
    found: list[str] = []
    while True:
        response = fetch(raw, topic, offset, partition=partition, isolation_level=isolation_level)
        assert response.error_code == ErrorCode.none, response
        batches = parse(response.records)
        if not batches:
            return found
        if isolation_level == READ_COMMITTED:
            records = visible(response)
        else:
            records = [r for b in batches if not b.attributes & CONTROL for r in b.records]
        found += [(r.value or b"").decode() for r in records if r.offset >= offset]
        offset = batches[-1].last_offset + 1


def read_uncommitted(raw: RawConnection, topic: str, *, partition: int = 0) -> list[str]:
    """Return all values of a partition, including those of open and aborted transactions."""
    return read(raw, topic, partition=partition, isolation_level=READ_UNCOMMITTED)


def await_read(
    raw: RawConnection, topic: str, *expected: str, partition: int = 0, timeout_s: float = 30.0
) -> None:
    """Wait until a `read_committed` consumer reads exactly these values."""
    last: list[list[str]] = []

    def holds() -> bool:
        last[:] = [read(raw, topic, partition=partition)]
        return last[0] == list(expected)

    try:
        eventually(holds, timeout_s=timeout_s)
    except AssertionError as error:
        batches = [
            (b.base_offset, b.producer_id, marker_of(b))
            for b in stored(raw, topic, partition=partition)
        ]
        stable = last_stable_offset(raw, topic, partition=partition)
        message = (
            f"{topic}-{partition} contains {last}, not {expected}: {error}; its last stable "
            f"offset is {stable}, its batches are {batches}"
        )
        raise AssertionError(message) from None


def last_stable_offset(raw: RawConnection, topic: str, *, partition: int = 0) -> int:
    """Return the last stable offset from a `read_committed` fetch."""
    response = fetch(raw, topic, partition=partition, isolation_level=READ_COMMITTED)
    assert response.error_code == ErrorCode.none, response
    return int(response.last_stable_offset)


def await_stable(raw: RawConnection, topic: str, offset: int, *, partition: int = 0) -> None:
    last: list[int] = []

    def holds() -> bool:
        last[:] = [last_stable_offset(raw, topic, partition=partition)]
        return last[0] == offset

    try:
        eventually(holds)
    except AssertionError as error:
        raise AssertionError(
            f"the last stable offset of {topic}-{partition} is {last}: {error}"
        ) from None
