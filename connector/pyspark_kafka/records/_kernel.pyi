import pyarrow as pa

from pyspark_kafka.records.contract import Buffer, Decoded, Wanted
from pyspark_kafka.records.encoding import EncodedBatch, Encoding

__all__ = ["crc_of", "decode", "encode"]

def decode(data: Buffer, wanted: Wanted) -> Decoded: ...
def encode(rows: pa.RecordBatch, encoding: Encoding) -> list[EncodedBatch]: ...
def crc_of(data: Buffer, by_tables: bool = False) -> int: ...
