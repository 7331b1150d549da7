"""The columns of the source and the sink, as Arrow types.

Planning, the engines and the Spark data source share these columns. The columns have the same
names, order and types as in Spark's built-in Kafka connector.
"""

from __future__ import annotations

import struct
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

`headers` requires the `includeHeaders` option. The column is null if the record has no headers.
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

If `partition` is null, the partitioner chooses the partition. The partitioner uses the murmur2 hash
of the key, as the default partitioner of the Java client does. Rows without a key go to one
partition for a while before the partitioner switches to another partition. If `timestamp` is null,
the record's timestamp is the time at which the row is sent.
"""


def scalar(value: str | int) -> pa.Scalar:
    """Return an Arrow scalar of type string or int32.

    `pa.scalar` and `pa.array` import pandas when they convert a Python object. The import would
    delay the first task of each Python worker by 0.15 seconds.
    """
    if isinstance(value, int):
        one = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(struct.pack("=i", value))])
    else:
        data = value.encode()
        offsets = struct.pack("=ii", 0, len(data))
        one = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
    return one[0]


def repeated(value: str | int, rows: int) -> pa.Array:
    """Return a string or int32 column in which all rows have the same value."""
    return pa.repeat(scalar(value), rows)
