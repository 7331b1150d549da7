"""Checkpoints that tests write, with the files that Spark writes on a local file system."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1763771111111,"conf":{}}'


@dataclass(frozen=True, slots=True)
class Checkpoint:
    QUERY_ID: ClassVar = "0b5ad1f8-8f6c-4b0f-8c1c-7c8d2e9f0a11"

    directory: Path

    def write(
        self, *, offsets: Mapping[int, Sequence[str]], commits: Sequence[int], version: str = "v1"
    ) -> None:
        """Write the lines of the sources of each micro-batch, and the committed micro-batches."""
        self._put("metadata", json.dumps({"id": self.QUERY_ID}))
        for batch_id, sources in offsets.items():
            self._put(f"offsets/{batch_id}", "\n".join([version, METADATA, *sources]))
        for batch_id in commits:
            self._put(f"commits/{batch_id}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _put(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\2\0")

    def contents(self) -> dict[str, bytes]:
        """Return all files with their content."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in files}

    def sources(self, batch_id: int) -> list[str]:
        """Return the lines of the sources of a micro-batch."""
        return (self.directory / "offsets" / str(batch_id)).read_text().splitlines()[2:]
