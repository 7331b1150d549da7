"""The source offsets of a micro-batch, read from its file in the checkpoint.

Returns the end offsets of a batch in all of its sources, for the decision and for the consumer
group of `commitOffsets`. Invariant: these are the offsets with which Spark planned the batch, and
every replay has the same offsets. A malformed line of a Kafka source is an error and is never
skipped.

Spark writes `offsets/<batch id>` once, before the batch runs (OffsetSeqLog). The file contains a
version, a line of metadata (the clock, the watermark, some settings), and one line per source with
its offset, or `-` if the source has no offset yet. In version `v2` the name of the source and a
colon precede the offset.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pyspark_kafka.errors import CheckpointError, OptionError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.offsets_json import OffsetFormatError, from_json_object

_OPTION: Final = "checkpointLocation"
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_LOCAL: Final = "file"
_SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
}
"""Hadoop's URI schemes, and Arrow's schemes for the same file systems."""

_NO_OFFSET: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffsets:
    """The end offsets of a micro-batch.

    `offsets` contains the end offsets of all Kafka sources, from which a consumer group would
    continue. `hash` covers the offsets of all sources, including sources that are not Kafka.
    """

    hash: str
    offsets: Mapping[TopicPartition, int]


def read_source_offsets(checkpoint: str, batch_id: int) -> SourceOffsets:
    """Read `<checkpoint>/offsets/<batch id>`.

    `checkpoint` is a local path or a URI that Arrow supports.

    Raises `OptionError` for an unsupported file system, and `CheckpointError` if the file is
    missing, incomplete or malformed.
    """
    check_store(checkpoint)
    path = f"{checkpoint.rstrip('/')}/offsets/{batch_id}"
    try:
        content = _read(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"The file {path} does not exist, but Spark should have written the offsets of batch "
            f"{batch_id} to it.",
            advice=f"Set the option '{_OPTION}' of the sink to the checkpoint directory of this "
            "query. If the directory is not on a local file system, include the URI scheme.",
            option=_OPTION,
        ) from None
    except (OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"The offsets of batch {batch_id} in {path} cannot be read with pyarrow.fs ({error}).",
            advice=f"Check the value of option '{_OPTION}', and check that this host can access "
            "the file system.",
            option=_OPTION,
        ) from error
    try:
        return _parse(content)
    except OffsetFormatError as error:
        raise CheckpointError(
            f"The file {path} with the offsets of batch {batch_id} cannot be parsed: {error}.",
            option=_OPTION,
        ) from None


def check_store(checkpoint: str) -> None:
    """Raise `OptionError` if checkpoints on this file system cannot be read."""
    match = _SCHEME.fullmatch(checkpoint)
    if match is not None and match[1].lower() not in (_LOCAL, *_SCHEMES):
        raise OptionError(
            f"Option '{_OPTION}' is set to '{checkpoint}', but the sink cannot read "
            f"checkpoints with the URI scheme '{match[1].lower()}:'.",
            advice="Use a local path or one of the schemes file:, s3:, gs:, abfs: and hdfs:, or "
            "remove this option and 'commitOffsets'.",
            option=_OPTION,
        )


def _read(path: str) -> bytes:
    match = _SCHEME.fullmatch(path)
    if match is None:
        return Path(path).read_bytes()
    scheme, rest = match[1].lower(), match[2]
    if scheme == _LOCAL:
        return Path(f"/{rest.lstrip('/')}").read_bytes()
    # Imported locally, because the import loads the clients of all object stores.
    from pyarrow.fs import FileSystem  # noqa: PLC0415

    # Hadoop does not percent-decode paths, but Arrow decodes URIs.
    file_system, file = FileSystem.from_uri(f"{_SCHEMES[scheme]}:{quote(rest, safe='/:@')}")
    with file_system.open_input_stream(file) as stream:
        return bytes(stream.read())


def _parse(content: bytes) -> SourceOffsets:
    try:
        version, *lines = content.decode().rstrip("\n").split("\n")
    except UnicodeDecodeError:
        raise OffsetFormatError("it is not UTF-8 text") from None
    if version not in ("v1", "v2"):
        raise OffsetFormatError(
            f"its version is '{version[:20]}', but only v1 and v2 are supported"
        )
    if len(lines) < 2:
        raise OffsetFormatError("it ends before the line of the first source")
    sources = [_without_name(line) for line in lines[1:]] if version == "v2" else lines[1:]
    return SourceOffsets(
        hash=hashlib.sha256("\n".join(lines[1:]).encode()).hexdigest(), offsets=_offsets(sources)
    )


def _without_name(line: str) -> str:
    _, colon, offset = line.partition(":")
    if not colon:
        raise OffsetFormatError(f"the line '{line[:80]}' does not name a source")
    return offset


def _offsets(sources: Sequence[str]) -> Mapping[TopicPartition, int]:
    """Return the offsets of all Kafka sources.

    If two sources read the same partition, the lower offset is returned.
    """
    found: dict[TopicPartition, int] = {}
    for number, line in enumerate(sources, start=1):
        value = _json(line, number)
        if not _is_of_kafka(value):
            continue
        try:
            offsets = from_json_object(value)
        except OffsetFormatError as error:
            raise OffsetFormatError(
                f"the offset of source {number} is malformed ({error})"
            ) from None
        for partition, offset in offsets.items():
            found[partition] = min(offset, found.get(partition, offset))
    return found


def _json(line: str, number: int) -> object:
    if line == _NO_OFFSET or not line.lstrip().startswith("{"):
        return None  # the offset of a source that is not Kafka, for example a number
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OffsetFormatError(f"the offset of source {number} is not JSON ({error})") from None


def _is_of_kafka(value: object) -> bool:
    """Return whether the value has the form `{"topic":{"0":123}}`, even if it is malformed.

    Offsets of other sources are flat objects, or nested objects with names and strings.
    """
    return isinstance(value, dict) and any(
        isinstance(inner, dict)
        and (not inner or any(_is_number(key) or type(inner[key]) is int for key in inner))
        for inner in value.values()
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
