"""Reads the position of a query from its checkpoint.

Spark writes `offsets/N` before it runs micro-batch N, and `commits/N` after the micro-batch is
complete. When a query starts, Spark reads the last micro-batch N in `offsets/`
(`MicroBatchExecution`). If N is committed, the next micro-batch starts at the offsets in
`offsets/N`. Otherwise, Spark runs micro-batch N again, from the offsets in `offsets/N-1` to those
in `offsets/N`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.checkpoint.files import CheckpointFiles
from pyspark_kafka.checkpoint.offset_log import OffsetLogEntry, parse_offset_log
from pyspark_kafka.errors import CheckpointError
from pyspark_kafka.options.offsets_json import OffsetFormatError

_LISTINGS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch and the content of its file in `offsets/`."""

    batch_id: int
    entry: OffsetLogEntry

    @property
    def path(self) -> str:
        """The path of the file, relative to the checkpoint."""
        return f"offsets/{self.batch_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The position of a query.

    `committed` is the last committed micro-batch. `planned` is the next micro-batch, or None if
    Spark has not planned it yet. `has_state` is True if the query has stateful operators.
    """

    query_id: str | None
    committed: Batch | None
    planned: Batch | None
    has_state: bool


def read_progress(files: CheckpointFiles) -> Progress:
    """Read the position of the query.

    Raises `CheckpointError` if `files` is not a checkpoint, if a file is malformed, or if
    `offsets/` and `commits/` are inconsistent or change each time they are listed. Also raises the
    errors that `CheckpointFiles` raises.
    """
    query_id = _query_id(files)
    if query_id is None and not _batch_ids(files, "offsets"):
        raise CheckpointError(
            f"{files.location} is not the checkpoint of a streaming query: it contains neither a "
            "'metadata' file nor any micro-batches in 'offsets'.",
            advice="Pass the query's checkpointLocation.",
        )
    committed_id, planned_id = _last_batches(files)
    return Progress(
        query_id=query_id,
        committed=None if committed_id is None else _batch(files, committed_id),
        planned=None if planned_id is None else _batch(files, planned_id),
        has_state=bool(files.names("state")),
    )


def _last_batches(files: CheckpointFiles) -> tuple[int | None, int | None]:
    """Return the result of `last_batches` for the micro-batches in `offsets/` and `commits/`.

    A running query can complete micro-batches between the listings of the two directories.
    Therefore, both directories are listed again if they are inconsistent.
    """
    previous = None
    for _ in range(_LISTINGS_MAX):
        listed = _batch_ids(files, "offsets"), _batch_ids(files, "commits")
        try:
            return last_batches(*listed)
        except CheckpointError:
            if listed == previous:
                raise
        previous = listed
    raise CheckpointError(
        f"The directories 'offsets' and 'commits' in {files.location} changed each time they were "
        "listed, which means that the query is still running.",
        advice="Run the command again, or stop the query before you run the command.",
    )


def last_batches(
    offset_ids: Collection[int], commit_ids: Collection[int]
) -> tuple[int | None, int | None]:
    """Return the last committed micro-batch and the planned micro-batch after it.

    Raises `CheckpointError` unless the last micro-batch in `commits/` is the last or the second to
    last micro-batch in `offsets/`.
    """
    last, committed = max(offset_ids, default=None), max(commit_ids, default=None)
    if last == committed:
        return committed, None
    if committed is None and last == 0:
        return None, last
    if committed is not None and last == committed + 1 and committed in offset_ids:
        return committed, last
    raise CheckpointError(
        f"The last micro-batch in 'offsets' is {_text(last)}, but the last one in 'commits' is "
        f"{_text(committed)}. The checkpoint is incomplete, or the query uses asynchronous "
        "progress tracking.",
        advice="Restore the checkpoint. If the query uses asynchronous progress tracking, disable "
        "this feature and run the query once.",
    )


def _text(batch_id: int | None) -> str:
    return "none" if batch_id is None else str(batch_id)


def _query_id(files: CheckpointFiles) -> str | None:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        return str(json.loads(files.read("metadata"))["id"])
    return None


def _batch_ids(files: CheckpointFiles, directory: str) -> set[int]:
    names = files.names(directory)
    return {int(name) for name in names if name.isascii() and name.isdigit()}


def _batch(files: CheckpointFiles, batch_id: int) -> Batch:
    path = f"offsets/{batch_id}"
    try:
        return Batch(batch_id=batch_id, entry=parse_offset_log(files.read(path)))
    except OffsetFormatError as error:
        raise CheckpointError(
            f"The file {files.location}/{path} with the offsets of micro-batch {batch_id} cannot "
            f"be parsed: {error}.",
            advice="Restore the checkpoint.",
        ) from None
