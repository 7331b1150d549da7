"""Completes an interrupted compaction, or removes its files (`LogLoader`).

| file name ends with  | meaning                              | action at startup                 |
| -------------------- | ------------------------------------ | --------------------------------- |
| `.cleaned`           | an incomplete copy                   | removed                           |
| `.swap`, if the      | a complete copy of one or more       | all segments that start within    |
| `.log.swap` exists   | segments                             | the copy are replaced with it     |
| `.swap`, otherwise   | an incomplete copy                   | removed                           |

Invariant: after `finish_compaction`, each offset is in at most one segment. A replaced segment that
starts after the last batch of the copy is not removed. Its records reappear until the next
compaction removes them.
"""

from __future__ import annotations

from broker_ref.log.batch import HEADER_BYTES, unpack_header
from broker_ref.log.segment import LOG_SUFFIX, SUFFIXES, file_name
from broker_ref.log.storage import Storage

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_SUFFIXES = tuple(reversed(SUFFIXES))


def cleaned_names(base_offset: int) -> list[str]:
    """Return the file names of an incomplete copy of segments."""
    return [file_name(base_offset, suffix) + CLEANED_SUFFIX for suffix in _SUFFIXES]


def finish_compaction(storage: Storage, directory: str) -> None:
    """Complete an interrupted compaction, or remove its files. Raises: StorageError."""
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
    """Return the end offset of a complete copy of segments, or 0 if it contains no batches."""
    file = storage.open(path + SWAP_SUFFIX)
    try:
        position, end_offset = 0, 0
        while len(head := file.read(position, HEADER_BYTES)) == HEADER_BYTES:
            header = unpack_header(head)
            if header.size_bytes < HEADER_BYTES:
                break  # Loading the segment will report the corruption.
            position, end_offset = position + header.size_bytes, header.next_offset
        return end_offset
    finally:
        file.close()
