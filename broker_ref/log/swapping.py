"""Files of a compaction that a crash has interrupted (LogLoader.completeSwapOperations).

| name ends with    | it is                                    | the start                         |
| ----------------- | ---------------------------------------- | --------------------------------- |
| `.cleaned`        | a copy that was not finished             | removes it                        |
| `.swap`, with a   | a finished copy of one or more segments  | removes those that start within,  |
| `.log.swap`       |                                          | puts the copy in their place      |
| `.swap`, without  | left before the copy was called finished | removes it                        |

Purpose: that table. Invariant: afterwards every offset is in one segment at most. A segment that
the copy covers, but that starts after the last batch in it, stays as it was: its records come up
again, and the next compaction takes them away again. What it must not know: loading.
"""

from __future__ import annotations

from broker_ref.log.batch import HEADER_BYTES, unpack_header
from broker_ref.log.segment import LOG_SUFFIX, SUFFIXES, file_name
from broker_ref.log.storage import Storage

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_SUFFIXES = tuple(reversed(SUFFIXES))


def cleaned_names(base_offset: int) -> list[str]:
    """The files of a copy that is being made."""
    return [file_name(base_offset, suffix) + CLEANED_SUFFIX for suffix in _SUFFIXES]


def finish_compaction(storage: Storage, directory: str) -> None:
    """Do what the table says. Raises: StorageError."""
    names = storage.list(directory)
    swapped = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for name in names:
        stem, _, _ = name.partition(".")
        if name.endswith(CLEANED_SUFFIX) or (
            name.endswith(SWAP_SUFFIX) and int(stem) not in swapped
        ):
            storage.remove(f"{directory}/{name}")
    for base_offset in swapped:
        end_offset = _end_offset(storage, f"{directory}/{file_name(base_offset, LOG_SUFFIX)}")
        covered = [
            int(name[:20])
            for name in names
            if name.endswith(LOG_SUFFIX) and base_offset < int(name[:20]) < end_offset
        ]
        for covered_offset in sorted(covered, reverse=True):
            for suffix in _SUFFIXES:
                storage.remove(f"{directory}/{file_name(covered_offset, suffix)}")
        for suffix in _SUFFIXES:
            path = f"{directory}/{file_name(base_offset, suffix)}"
            if storage.exists(path + SWAP_SUFFIX):
                storage.rename(path + SWAP_SUFFIX, path)


def _end_offset(storage: Storage, path: str) -> int:
    """The offset after the last batch of a finished copy, 0 where it has none."""
    file = storage.open(path + SWAP_SUFFIX)
    try:
        position, end_offset = 0, 0
        while len(head := file.read(position, HEADER_BYTES)) == HEADER_BYTES:
            header = unpack_header(head)
            if header.size_bytes < HEADER_BYTES:
                break  # Damaged: what loads it says so.
            position, end_offset = position + header.size_bytes, header.next_offset
        return end_offset
    finally:
        file.close()
