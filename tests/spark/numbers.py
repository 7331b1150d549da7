"""Topics whose records contain numbers, to find records that are lost or duplicated."""

from __future__ import annotations

from tests.pyspark_kafka.client.records import Record, read_all
from tests.pyspark_kafka.client.records import write as put


def fill(bootstrap: str, topic: str, numbers: range, *, partitions: int = 2) -> None:
    put(bootstrap, topic, [Record(value=b"%d" % n, partition=n % partitions) for n in numbers])


def numbers_in(bootstrap: str, topic: str, *, partitions: int = 1) -> list[int]:
    """Return the numbers that a read_committed consumer reads, sorted."""
    records = read_all(bootstrap, topic, partitions=partitions)
    return sorted(int(record.value or b"") for record in records)
