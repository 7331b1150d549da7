"""The format of a file in `offsets/`, Spark's offset log (`OffsetSeqLog`).

Spark writes `offsets/<batch id>` once, before the micro-batch runs:

    v1
    {"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}
    {"orders":{"0":1200,"1":980}}
    -

After the version and a line of metadata, the file contains one line for each source: the end offset
of the source in the micro-batch, or `-` if the source has no offset yet. In version `v2` (Spark
4.2), the name of the source and a colon precede the offset. Invariant: `OffsetLogEntry` keeps the
text of every line. A malformed line of a Kafka source is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark_kafka.kafka.offsets import PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.offsets_json import OffsetFormatError, from_json_object

_NAMED: Final = "v2"
_VERSIONS: Final = ("v1", _NAMED)
_NO_OFFSET: Final = "-"
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the latest time that Python supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """The end offset of one source.

    In version v2, `name` is the name of the source. In version v1, it is the index of the source.
    `offsets` is None if the source is not a Kafka source or has no offset yet.
    """

    name: str
    text: str
    offsets: PartitionOffsets | None

    def with_offsets(self, new: PartitionOffsets) -> SourceOffset:
        """Replace the offsets of the partitions that this source reads.

        The spacing of the JSON does not change, because Spark compares offsets as text. Spark's own
        connector writes no spaces. A Python data source writes a space after `,` and `:`.
        """
        replaced = {p: new.get(p, offset) for p, offset in (self.offsets or {}).items()}
        if self.offsets is None or replaced == self.offsets:
            return self
        value = json.loads(self.text)
        for topic, partitions in value.items():
            for key in partitions:
                partitions[key] = replaced[TopicPartition(topic, int(key))]
        separators = (", ", ": ") if " " in self.text else (",", ":")
        return replace(self, text=json.dumps(value, separators=separators), offsets=replaced)


SourcePartition = tuple[str, TopicPartition]
"""The name of a source, and a partition that it reads. Two sources can read the same partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLogEntry:
    """The content of the file of one micro-batch."""

    version: str
    metadata: str
    sources: tuple[SourceOffset, ...]

    @property
    def source_lines(self) -> tuple[str, ...]:
        """The lines of the sources, in their order in the file."""
        if self.version != _NAMED:
            return tuple(source.text for source in self.sources)
        return tuple(f"{source.name}:{source.text}" for source in self.sources)

    @property
    def planned_ms(self) -> int | None:
        """The time at which Spark planned the micro-batch, or None if the time is unknown."""
        try:
            found = json.loads(self.metadata)["batchTimestampMs"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return found if type(found) is int and 0 <= found <= _TIME_MS_MAX else None

    @property
    def offsets(self) -> Mapping[SourcePartition, int]:
        """The offsets of all partitions that Kafka sources read."""
        return {
            (source.name, partition): offset
            for source in self.sources
            for partition, offset in sorted((source.offsets or {}).items())
        }

    def lowest_offsets(self) -> PartitionOffsets:
        """Return the offsets to commit to a consumer group, keyed by partition.

        If two sources read the same partition, the lower offset is returned.
        """
        found: dict[TopicPartition, int] = {}
        for (_, partition), offset in self.offsets.items():
            found[partition] = min(offset, found.get(partition, offset))
        return found

    def with_offsets(self, new: Mapping[SourcePartition, int]) -> OffsetLogEntry:
        """Replace offsets in the entry. Partitions that are not in the entry are ignored."""
        sources = tuple(
            source.with_offsets(
                {p: offset for (name, p), offset in new.items() if name == source.name}
            )
            for source in self.sources
        )
        return replace(self, sources=sources)

    def to_bytes(self) -> bytes:
        return "\n".join((self.version, self.metadata, *self.source_lines)).encode()


def parse_offset_log(content: bytes) -> OffsetLogEntry:
    """Parse the content of a file. Raises `OffsetFormatError`."""
    try:
        version, *lines = content.decode().rstrip("\n").split("\n")
    except UnicodeDecodeError:
        raise OffsetFormatError("the file is not UTF-8 text") from None
    if version not in _VERSIONS:
        raise OffsetFormatError(
            f"the file has version '{version[:20]}', but only v1 and v2 are supported"
        )
    if len(lines) < 2:
        raise OffsetFormatError("the file ends before the line for the first source")
    return OffsetLogEntry(
        version=version,
        metadata=lines[0],
        sources=tuple(
            _source(line, number, is_named=version == _NAMED)
            for number, line in enumerate(lines[1:])
        ),
    )


def _source(line: str, number: int, *, is_named: bool) -> SourceOffset:
    name, text = str(number), line
    if is_named:
        name, colon, text = line.partition(":")
        if not colon:
            raise OffsetFormatError(f"the line '{line[:80]}' does not contain a source name")
    try:
        return SourceOffset(name=name, text=text, offsets=_offsets(text))
    except OffsetFormatError as error:
        raise OffsetFormatError(
            f"the offset of source {number + 1} is malformed ({error})"
        ) from None


def _offsets(text: str) -> PartitionOffsets | None:
    if text == _NO_OFFSET or not text.lstrip().startswith("{"):
        return None  # the offset of a source that is not Kafka, for example a number
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OffsetFormatError(f"it is not JSON: {error}") from None
    return from_json_object(value) if _is_of_kafka(value) else None


def _is_of_kafka(value: object) -> bool:
    """Return whether the value contains offsets of a Kafka source. The offsets may be malformed.

    Kafka offsets have the form `{"topic":{"0":123}}`, or `{}` if the pattern of the query matches
    no topic. Offsets of other sources are flat objects, or nested objects whose keys are names and
    whose values are strings.
    """
    if not isinstance(value, dict):
        return False
    return not value or any(
        isinstance(inner, dict)
        and (not inner or any(_is_number(key) or type(inner[key]) is int for key in inner))
        for inner in value.values()
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
