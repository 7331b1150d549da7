"""The codecs against Apache Kafka: each side reads the frames of the other."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from broker_ref.log.batch import (
    HEADER_BYTES,
    Record,
    decode_records,
    encode_batch,
    parse_batches,
)
from broker_ref.log.compression import Compression, compressed, decompressed_pieces
from broker_ref.log.errors import LogError
from integration.kafka_tools import KafkaTools
from integration.raw import RawConnection
from tests.broker_ref.log.batches import NOW_MS, with_section
from tests.conformance.wire import append

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("topic", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_kafkas_batches_are_read(topic: str) -> None:
    def content(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    data = memoryview((GOLDEN / f"{topic}.bin").read_bytes())
    found: list[tuple[Any, ...]] = []
    position = 0
    for header in parse_batches(data):
        batch = data[position : position + header.size_bytes]
        position += header.size_bytes
        if not header.is_control:
            found += [(r.offset, r.timestamp, r.key, r.value) for r in decode_records(batch)]
    known = json.loads((GOLDEN / f"{topic}.json").read_text())["read_uncommitted"]
    assert found == [
        (row["offset"], row["timestamp"], content(row["key"]), content(row["value"]))
        for row in known
    ]


SECTION = random.Random(4).randbytes(100_000) + b"repeated " * 100_000


@pytest.mark.parametrize("block_size", [0, 4, 5, 6, 7])
@pytest.mark.parametrize("options", [{}, {"block_checksum": True, "store_size": True}])
def test_lz4_frames_of_other_clients_are_read(block_size: int, options: dict[str, bool]) -> None:
    frame = lz4.frame.compress(SECTION, block_size=block_size, block_linked=False, **options)
    pieces = decompressed_pieces(Compression.LZ4, memoryview(frame))
    assert b"".join(pieces) == SECTION


@pytest.mark.parametrize(
    "frame",
    [
        lz4.frame.compress(SECTION, block_linked=True),  # Kafka rejects it, too
        compressed(Compression.LZ4, SECTION)[:-4],
        compressed(Compression.LZ4, SECTION)[:-5],
        compressed(Compression.LZ4, SECTION)[:5],
        b"\0" + compressed(Compression.LZ4, SECTION)[1:],
    ],
)
def test_other_lz4_frames_are_rejected(frame: bytes) -> None:
    with pytest.raises(LogError, match="lz4"):
        list(decompressed_pieces(Compression.LZ4, memoryview(frame)))


@pytest.mark.full  # the test starts Java
@pytest.mark.slow
def test_kafkas_consumer_reads_compacted_batches(
    bootstrap: str, raw: RawConnection, topic: Callable[..., str]
) -> None:
    """Compaction compresses batches again. The values fill several blocks of each codec."""
    tools = KafkaTools(bootstrap)
    noise = base64.b85encode(random.Random(5).randbytes(150_000)).decode()
    values = ["", "x", "repeated " * 30_000, noise]
    batches = [encode_batch([Record(timestamp=NOW_MS, value=v.encode())]) for v in values]
    batches.append(
        encode_batch([Record(timestamp=NOW_MS, value=f"value {i}".encode()) for i in range(500)])
    )
    name = topic()
    for codec in Compression:
        for plain in batches:
            append(raw, name, with_section(plain, compressed(codec, plain[HEADER_BYTES:]), codec))
    expected = [*values, *(f"value {i}" for i in range(500))] * len(Compression)
    with tools:
        output = tools.run(
            *("console-consumer", "--topic", name, "--from-beginning"),
            *("--max-messages", str(len(expected))),
        )
    assert output.stdout.split("\n")[:-1] == expected
