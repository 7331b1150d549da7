"""Writes the rows of one task at least once.

Invariant: `write_task` returns only after every row has been acknowledged. After a failure, the
producer sends no more rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import pyarrow as pa

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.client.pool import ClientPool
from pyspark_kafka.client.port import KafkaClient, Producer
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.sink.rows import RowPreparation


def _open_for_writing(options: ClientOptions) -> KafkaClient:
    return open_client(options, role="producer", is_checked=True)


_CLIENTS: Final = ClientPool(_open_for_writing)
"""The clients of this process. They are kept open because Spark reuses Python workers. A new
idempotent producer must connect and request a producer id, which takes half a second with
librdkafka."""


def write_task(
    batches: Iterable[pa.RecordBatch], *, client: ClientOptions, topic: str | None
) -> Mapping[str, int]:
    """Write rows, wait until all are acknowledged, and return the number of rows per topic.

    Raises `RowError` if a row cannot be written, and subclasses of `KafkaError`. Opens no client if
    there are no rows.
    """
    iterator = (batch for batch in batches if batch.num_rows > 0)
    first = next(iterator, None)
    if first is None:
        return {}
    with _CLIENTS.lend(client) as lent:
        preparation = RowPreparation(
            topic=topic, partition_count=lambda name: _partition_count(lent, name)
        )
        producer = lent.producer()
        try:
            producer.send(preparation.prepare(first))
            for batch in iterator:
                producer.send(preparation.prepare(batch))
            producer.flush()
        except BaseException:
            _abort(producer)
            raise
        producer.close()
    return dict(preparation.rows_by_topic)


def _abort(producer: Producer) -> None:
    # The caller raises the original error.
    with suppress(Exception):
        producer.abort()


def _partition_count(client: KafkaClient, topic: str) -> int | None:
    description = client.describe_topics([topic]).get(topic)
    return None if description is None else len(description.partitions)
