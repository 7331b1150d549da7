"""Planning sends the same requests for any number of partitions."""

from __future__ import annotations

from collections import Counter

import pytest

from integration.benchmarks.sink_costs import sent_requests
from pyspark_kafka.options.parse import parse_source_options
from pyspark_kafka.source.batch_reader import KafkaBatchReader
from pyspark_kafka.source.schema import source_schema
from pyspark_kafka.source.stream_reader import KafkaStreamReader
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, write

SCHEMA = source_schema(include_headers=False)


@pytest.mark.parametrize("partitions", [1, 30])
def test_requests_of_planning(partitions: int, bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=partitions)
    write(bootstrap, name, [Record(value=b"v", partition=number) for number in range(partitions)])
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
        "engine": "native",
    }
    with sent_requests() as sent:
        reader = KafkaBatchReader(SCHEMA, parse_source_options(options, streaming=False))
        assert len(reader.partitions()) == partitions
    assert Counter(sent) == {"ApiVersions": 1, "Metadata": 1, "ListOffsets": 3}

    stream = KafkaStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    start = stream.initialOffset()
    with sent_requests() as sent:
        stream.partitions(start, stream.latestOffset(start))
    fetches = {"Fetch": 1} if partitions == 1 else {}  # The driver reads a small micro-batch.
    assert Counter(sent) == {"Metadata": 1, "ListOffsets": 2, **fetches}
    stream.stop()
