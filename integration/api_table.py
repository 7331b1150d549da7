"""Generate `docs/apis.md`, a table of the API versions that `broker_ref` and Apache Kafka support.

`python -m integration.api_table` starts both brokers, sends ApiVersions to each and writes the
table. Invariant: every number in the table comes from a broker's response.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from kio.schema.index import api_key_map

from integration.clusters import ClusterUnavailableError, describe, open_cluster
from integration.raw import RawConnection

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "apis.md"

Versions = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API, by API key."""

_ABSENT = "-"
_HEAD = """\
# APIs and versions

This page lists the API versions in the ApiVersions responses of `broker_ref` and Apache Kafka.
`python -m integration.api_table` writes this page, and a test compares it with both brokers.

| key | API | {kafka} | broker_ref |
| ---: | --- | --- | --- |
"""
_ROW = re.compile(r"^\| (\d+) \| \w+ \| (?:(\d+) to (\d+)|-) \| (?:(\d+) to (\d+)|-) \|$")


def advertised(bootstrap_server: str) -> Versions:
    """Send ApiVersions to a broker and return the versions in its response."""
    with RawConnection(bootstrap_server) as connection:
        entries = connection.call("api_versions", 0).api_keys
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in entries}


def render(*, kafka: Versions, reference: Versions, kafka_version: str) -> str:
    """Return the text of `docs/apis.md`."""
    rows = [
        f"| {key} | {_name(key)} | {_range(kafka.get(key))} | {_range(reference.get(key))} |\n"
        for key in sorted(kafka.keys() | reference.keys())
    ]
    return _HEAD.format(kafka=kafka_version) + "".join(rows)


def parse(document: str) -> tuple[Versions, Versions]:
    """Parse an API table and return the API versions of Apache Kafka and of `broker_ref`."""
    kafka: dict[int, tuple[int, int]] = {}
    reference: dict[int, tuple[int, int]] = {}
    for found in filter(None, map(_ROW.match, document.splitlines())):
        key, *bounds = found.groups()
        if bounds[0] is not None:
            kafka[int(key)] = (int(bounds[0]), int(bounds[1]))
        if bounds[2] is not None:
            reference[int(key)] = (int(bounds[2]), int(bounds[3]))
    return kafka, reference


def _name(key: int) -> str:
    """Return the name that Kafka's protocol guide uses for an API."""
    name = api_key_map.get(key)
    return "".join(word.capitalize() for word in name.split("_")) if name else "Unnamed"


def _range(versions: tuple[int, int] | None) -> str:
    return _ABSENT if versions is None else f"{versions[0]} to {versions[1]}"


def main() -> int:
    """Write the table of API versions. Return 1 if Apache Kafka cannot be started."""
    try:
        with open_cluster("kafka") as kafka, open_cluster("reference") as reference:
            text = render(
                kafka=advertised(kafka.bootstrap_servers),
                reference=advertised(reference.bootstrap_servers),
                kafka_version=kafka.version,
            )
    except ClusterUnavailableError as error:
        sys.stderr.write(f"{describe('kafka')} cannot be started: {error}\n")
        return 1
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
