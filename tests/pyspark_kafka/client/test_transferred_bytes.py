"""Reads and writes send and receive each record once, with little overhead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.transport import TcpTransport
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client import records
from tests.pyspark_kafka.client.records import reading, rows, writing

RECORDS = 200_000
VALUE_BYTES = 100
RECORD_BYTES = VALUE_BYTES + 10
"""A value and the fields of its record: lengths, attributes, timestamp delta and offset delta."""

OVERHEAD = 1.03
"""Allows for headers and for requests without records."""

READ_OVERHEAD = 1.1
"""Allows for batches that are received twice, and for records after the end of the range.

Apache Kafka ends a response in the middle of a batch, and the next response repeats that batch. The
last response of a range can contain later records.
"""


@pytest.fixture
def transferred(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes that the native engine sends and receives."""
    counts: Counter[str] = Counter()
    send, receive_into = TcpTransport.send, TcpTransport.receive_into

    def counting_send(transport: TcpTransport, parts: Iterable[memoryview]) -> int:
        sent = send(transport, parts)
        counts["sent"] += sent
        return sent

    def counting_receive(transport: TcpTransport, buffer: memoryview) -> int | None:
        received = receive_into(transport, buffer)
        counts["received"] += received or 0
        return received

    monkeypatch.setattr(TcpTransport, "send", counting_send)
    monkeypatch.setattr(TcpTransport, "receive_into", counting_receive)
    monkeypatch.setattr(records, "ENGINE", "native")
    return counts


def test_bytes_of_a_write_and_a_read(
    bootstrap: str, topic: TopicFactory, transferred: Counter[str]
) -> None:
    name = topic()
    expected = RECORDS * RECORD_BYTES
    with writing(bootstrap) as client:
        producer = client.producer()
        for _ in range(RECORDS // 10_000):
            producer.send(rows(name, [b"v" * VALUE_BYTES] * 10_000))
        producer.flush()
        producer.close()
    assert expected < transferred["sent"] < expected * OVERHEAD
    assert transferred["received"] < expected * (OVERHEAD - 1)

    transferred.clear()
    partition = TopicPartition(name, 0)
    with reading(bootstrap) as reader:
        # Two tasks read a range each. Neither may fetch records of the other one.
        for start in (0, RECORDS // 2):
            planned = FetchRange(
                topic_partition=partition, start_offset=start, end_offset=start + RECORDS // 2
            )
            fetched = reader.fetch(planned, ("value",), IsolationLevel.READ_UNCOMMITTED)
            assert sum(batch.num_rows for batch in fetched) == RECORDS // 2
    assert expected < transferred["received"] < expected * READ_OVERHEAD
    assert transferred["sent"] < expected * (OVERHEAD - 1)
