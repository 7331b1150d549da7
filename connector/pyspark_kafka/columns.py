"""The columns a source yields and a sink takes, as Arrow types.

Purpose: the one statement of names, order and types that planning, engines and the Spark facade
share. They are those of Spark's own Kafka connector. What it must not know: Spark.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)

SOURCE_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""What a record becomes. `headers` is there with `includeHeaders`; null where it has none."""

PRODUCE_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""What `Producer.send` takes: validated rows that have their topic, which may be dictionary-encoded.

Where `partition` is null the producer's partitioner chooses: murmur2 of the key, as Java's default
partitioner does, and for a null key one partition for a while and then another. A null `timestamp`
is the time of sending.
"""
