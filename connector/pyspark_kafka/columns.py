"""The columns of the source and the sink, as Arrow types.

Purpose: the names, order and types that planning, engines and the Spark data source share. They are
those of Spark's own Kafka connector. What it must not know: Spark.
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
"""The columns of a record. `headers` requires `includeHeaders`; it is null for no headers."""

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
"""The columns of `Producer.send`: validated rows with a topic, which may be dictionary-encoded.

The partitioner replaces a null `partition`: by murmur2 of the key, as Java's default partitioner,
and for a null key by one partition for a while and then another. A null `timestamp` is the time of
sending.
"""
