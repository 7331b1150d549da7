"""Capture of golden batches from Apache Kafka: `python -m tests.golden.capture`.

For each topic that `GoldenRecords.java` writes, it stores the record batches that a Fetch returns
(`.bin`) and the records that Kafka's consumer reads (`.json`). It requires a JDK and Maven and
takes one or two minutes. The captured files are under version control.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from integration.clusters import open_cluster
from integration.clusters.java import java_command
from integration.clusters.maven import KAFKA_VERSION, apache_kafka, resolve
from integration.raw import RawConnection
from tests.conformance.batches import parse
from tests.conformance.wire import fetch

DIRECTORY = Path(__file__).parent
PROGRAM = DIRECTORY / "GoldenRecords.java"
FETCH_BYTES = 50_000_000


def printed_by_kafka(bootstrap_servers: str) -> dict[str, dict[str, list[Any]]]:
    """Return the rows that Kafka's consumer read, by topic and isolation level."""
    class_path = os.pathsep.join(str(jar) for jar in resolve(apache_kafka()))
    output = subprocess.check_output(
        [java_command(), "-cp", class_path, str(PROGRAM), bootstrap_servers], text=True, timeout=300
    )
    topics: dict[str, dict[str, list[Any]]] = {}
    for line in output.splitlines():
        topic, isolation, offset, timestamp, timestamp_type, key, value, *headers = line.split("\t")
        row = {
            "offset": int(offset),
            "timestamp": int(timestamp),
            "timestampType": int(timestamp_type),
            "key": bytes_text(key),
            "value": bytes_text(value),
            "headers": [
                [bytes_text(name), bytes_text(content)]
                for name, content in zip(headers[::2], headers[1::2], strict=True)
            ],
        }
        topics.setdefault(topic, {}).setdefault(isolation, []).append(row)
    return topics


def bytes_text(text: str) -> str | None:
    return None if text == "-" else text


def fetched(raw: RawConnection, topic: str) -> tuple[bytes, list[list[int]]]:
    """Return the record batches of the partition and its aborted transactions.

    Each Fetch returns at most one segment.
    """
    records, aborted, position, end = b"", set(), 0, 1
    while position < end:
        found = fetch(raw, topic, position, isolation_level=1, partition_max_bytes=FETCH_BYTES)
        end = found.high_watermark
        records += found.records
        position = parse(found.records)[-1].last_offset + 1
        for entry in found.aborted_transactions or ():
            aborted.add((int(entry.producer_id), int(entry.first_offset)))
    return records, [list(entry) for entry in sorted(aborted)]


def main() -> None:
    cleaning = {"log.cleaner.backoff.ms": "500"}
    with (
        open_cluster("kafka", configs=cleaning) as cluster,
        RawConnection(cluster.address(1)) as raw,
    ):
        for topic, rows in printed_by_kafka(cluster.bootstrap_servers).items():
            records, aborted = fetched(raw, topic)
            (DIRECTORY / f"{topic}.bin").write_bytes(records)
            expected = {"kafka": KAFKA_VERSION, "aborted": aborted, **rows}
            lines = json.dumps(expected, indent=None, separators=(",", ":"))
            (DIRECTORY / f"{topic}.json").write_text(lines.replace('{"offset', '\n{"offset') + "\n")
            print(f"{topic}: {len(records)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
