"""Definitions of the topics that test cases share. The topics contain every kind of record.

All timestamps are fixed, so both connectors and all runs read the same rows. Invariant: no test
case changes a shared topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

T0: Final = 1_700_000_000_000
"""The timestamp of the first record in each partition, in milliseconds since the epoch."""

KEPT: Final = {"retention.ms": "-1"}
"""The topic config that prevents the brokers from deleting these old records."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = T0
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records that are appended to one partition, in order.

    If `transaction` is set, the records are written in a transaction, which is then committed,
    aborted or left open.
    """

    partition: int
    records: tuple[Record, ...]
    codec: str = "none"
    transaction: Literal["committed", "aborted", "open"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic, the batches that are appended to it, and the records that are then deleted.

    If `gaps` is not 0, the topic is complete when compaction has removed this many records.
    """

    name: str = ""
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=lambda: KEPT)
    batches: tuple[Batch, ...] = ()
    deleted_before: Mapping[int, int] = field(default_factory=dict)
    gaps: int = 0


def numbered(partition: int, count: int, *, first: int = 0) -> Batch:
    """Return records with keys, numbered values, and timestamps one second apart."""
    return Batch(
        partition=partition,
        records=tuple(
            Record(
                key=b"key-%d" % (number % 3),
                value=b"%d-%d" % (partition, number),
                timestamp_ms=T0 + 1_000 * number,
            )
            for number in range(first, first + count)
        ),
    )


def _transaction(
    values: bytes, end: Literal["committed", "aborted", "open"], partition: int = 0
) -> Batch:
    records = tuple(Record(value=bytes([value])) for value in values)
    return Batch(partition=partition, records=records, transaction=end)


_HEADERS: Final = (("a", b"\x00\xff"), ("a", None), ("b", b""), ("\u00fc", "\u20ac".encode()))

PLAIN: Final = Topic(
    name="parity-plain",
    partitions=3,
    batches=(numbered(0, 10), numbered(1, 5), numbered(2, 1)),
)
"""10, 5 and 1 records, one second apart."""

SECOND: Final = Topic(name="parity-second", partitions=2, batches=(numbered(0, 2), numbered(1, 2)))

RICH: Final = Topic(
    name="parity-rich",
    partitions=5,
    batches=tuple(
        Batch(
            partition=partition,
            codec=codec,
            records=(
                Record(key=b"k", value="wert\u00e4".encode(), headers=_HEADERS),
                Record(key=None, value=b"no key"),
                Record(key=b"tombstone", value=None, timestamp_ms=T0 + 1),
                Record(key=b"", value=b"", timestamp_ms=T0 + 2),
                Record(key=b"\x00\xff", value=bytes(range(256)) * 20, timestamp_ms=T0 + 999),
                Record(key=None, value=None, headers=(("only", b"headers"),)),
            ),
        )
        for partition, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd"))
    ),
)
"""Nulls, empty values, headers and large values, compressed with each codec."""

EMPTY: Final = Topic(name="parity-empty", partitions=2)

HALF_EMPTY: Final = Topic(name="parity-half-empty", partitions=2, batches=(numbered(0, 4),))

LOG_APPEND_TIME: Final = Topic(
    name="parity-log-append-time",
    configs={"message.timestamp.type": "LogAppendTime"},
    batches=(numbered(0, 3),),
)

TRUNCATED: Final = Topic(
    name="parity-truncated",
    partitions=2,
    batches=(numbered(0, 6), numbered(1, 2)),
    deleted_before={0: 4},
)
"""The log of partition 0 starts at offset 4."""

COMPACTED: Final = Topic(
    name="parity-compacted",
    configs={
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "86400000",
    },
    batches=tuple(numbered(0, 1, first=number) for number in range(12)),
    gaps=4,
)
"""12 records with 3 keys. Each segment has one record. Compaction cleans all but the last one."""

ENDED: Final = Topic(
    name="parity-ended-transactions",
    batches=(
        _transaction(b"ABC", "committed"),
        _transaction(b"xy", "aborted"),
        Batch(partition=0, records=(Record(value=b"p"),)),
        _transaction(b"z", "aborted"),
    ),
)
"""Offsets: A B C (commit) x y (abort) p z (abort)."""

OPEN: Final = Topic(
    name="parity-open-transaction",
    batches=(
        _transaction(b"AB", "committed"),
        _transaction(b"DE", "open"),
        Batch(partition=0, records=(Record(value=b"q"),)),
    ),
)
"""Offsets: A B (commit) D E q. The last stable offset is 3, and the log end offset is 6."""

ABORTED: Final = Topic(name="parity-aborted", batches=(_transaction(b"xyz", "aborted"),))

GROUP: Final = "parity-group"
COMMITTED_OFFSETS: Final = {0: 3, 1: 4, 2: 0}
"""The committed offsets of `GROUP` in `PLAIN`."""

SHARED: Final = (
    PLAIN,
    SECOND,
    RICH,
    EMPTY,
    HALF_EMPTY,
    LOG_APPEND_TIME,
    TRUNCATED,
    COMPACTED,
    ENDED,
    OPEN,
    ABORTED,
)
