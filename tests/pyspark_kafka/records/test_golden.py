"""Tests that batches of Apache Kafka decode to the rows that its own consumer returns.

`tests/golden/capture.py` created the batches and the rows.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.records import Decode
from tests.pyspark_kafka.records.batches import ALL_COLUMNS, decode_request

GOLDEN = Path(__file__).parents[2] / "golden"
TOPICS = sorted(path.stem for path in GOLDEN.glob("*.json"))


def of_text(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def expected_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row
        | {
            "key": of_text(row["key"]),
            "value": of_text(row["value"]),
            "topic": "clicks",
            "partition": 3,
            "headers": [
                {"key": b64decode(name).decode(), "value": of_text(value)}
                for name, value in row["headers"]
            ]
            or None,
        }
        for row in rows
    ]


def decoded_rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        batch.validate(full=True)
        at = batch.column(ALL_COLUMNS.index("timestamp")).cast(pa.timestamp("ms", tz="UTC"))
        stamps = at.cast(pa.int64()).to_pylist()
        rows += [
            row | {"timestamp": stamp} for row, stamp in zip(batch.to_pylist(), stamps, strict=True)
        ]
    return rows


def test_the_cases_are_all_there() -> None:
    codecs = {"gzip", "lz4", "none", "snappy", "zstd"}
    assert set(TOPICS) == codecs | {"compacted", "log-append-time", "transactions"}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", TOPICS)
def test_rows_are_those_of_kafkas_consumer(decode: Decode, topic: str, isolation: str) -> None:
    known = json.loads((GOLDEN / f"{topic}.json").read_text())
    data = (GOLDEN / f"{topic}.bin").read_bytes()
    aborted = None if isolation == "read_uncommitted" else known["aborted"]
    rows = expected_rows(known[isolation])
    assert rows
    assert decoded_rows(decode(data, decode_request(aborted=aborted)).batches) == rows
    first, last = rows[0]["offset"], rows[-1]["offset"]
    inside = [row for row in rows if first < row["offset"] < last]
    assert (
        decoded_rows(decode(data, decode_request(first + 1, last, aborted=aborted)).batches)
        == inside
    )


def test_transactions_differ_by_isolation() -> None:
    known = json.loads((GOLDEN / "transactions.json").read_text())
    assert len(known["aborted"]) == 2
    assert len(known["read_committed"]) < len(known["read_uncommitted"])
