"""Decode Apache Kafka's batches with the installed wheel, and print the implementation.

cibuildwheel runs this program on each platform, in an environment without the development tools.
"""

import json
import sys
from base64 import b64decode
from pathlib import Path

import pyarrow as pa

from pyspark_kafka.records import IMPLEMENTATION, DecodeRequest, decode

for known in (Path(__file__).parents[1] / "golden").glob("*.json"):
    request = DecodeRequest(
        topic="t", partition=0, start_offset=0, end_offset=1 << 40, columns=("value",), aborted=None
    )
    batches = decode(known.with_suffix(".bin").read_bytes(), request).batches
    found = [row["value"] for row in pa.Table.from_batches(batches).to_pylist()]
    texts = [row["value"] for row in json.loads(known.read_text())["read_uncommitted"]]
    if found != [None if text is None else b64decode(text) for text in texts]:
        sys.exit(f"{known.stem} was decoded incorrectly.")
print(IMPLEMENTATION)
