"""The columns of the source and the sink, as Arrow types.

Planning, the engines and the Spark data source share these columns. The columns have the same
names, order and types as in Spark's built-in Kafka connector.
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
"""The columns of the source.

`headers` requires the `includeHeaders` option. It is null if the record has no headers.
"""

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
"""The columns that `Producer.send` writes. The `topic` column may be dictionary-encoded.

If `partition` is null, the partitioner chooses the partition. It uses the murmur2 hash of the key,
as the default partitioner of the Java client does. Rows without a key go to one partition for a
while before the partitioner switches to another. If `timestamp` is null, the record's timestamp is
the time at which the row is sent.
"""
