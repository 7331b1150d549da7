"""Reads the source offsets of a micro-batch from the checkpoint.

The source offsets are the end offsets of the micro-batch for all of its sources. The decision
contains their hash. With `commitOffsets`, the sink commits the offsets of Kafka sources for a
consumer group. Invariant: Spark planned the batch with these offsets, and every replay has the same
offsets. A malformed line for a Kafka source is an error and is never skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.checkpoint.files import open_files, unsupported_scheme
from pyspark_kafka.checkpoint.offset_log import parse_offset_log
from pyspark_kafka.errors import CheckpointError, OptionError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.offsets_json import OffsetFormatError

_OPTION: Final = "checkpointLocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffsets:
    """The end offsets of a micro-batch.

    `offsets` contains the end offsets of all Kafka sources. A consumer group would continue from
    these offsets. `hash` covers the offsets of all sources, including sources other than Kafka.
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
    file = f"offsets/{batch_id}"
    path = f"{checkpoint.rstrip('/')}/{file}"
    try:
        content = open_files(checkpoint).read(file)
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
        entry = parse_offset_log(content)
    except OffsetFormatError as error:
        raise CheckpointError(
            f"The file {path} with the offsets of batch {batch_id} cannot be parsed: {error}.",
            option=_OPTION,
        ) from None
    hashed = "\n".join(entry.source_lines).encode()
    return SourceOffsets(hash=hashlib.sha256(hashed).hexdigest(), offsets=entry.lowest_offsets())


def check_store(checkpoint: str) -> None:
    """Raise `OptionError` if checkpoints on this file system cannot be read."""
    scheme = unsupported_scheme(checkpoint)
    if scheme is not None:
        raise OptionError(
            f"Option '{_OPTION}' is set to '{checkpoint}', but the sink cannot read "
            f"checkpoints with the URI scheme '{scheme}:'.",
            advice="Use a local path or one of the schemes file:, s3:, gs:, abfs: and hdfs:, or "
            "remove this option and 'commitOffsets'.",
            option=_OPTION,
        )
