"""Configures Spark's Python worker processes."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_frozen = False
"""Whether this process has frozen its objects. `gc.get_freeze_count()` would take milliseconds."""


def freeze_garbage_collector() -> None:
    """Exclude all current objects from garbage collection. Call this function at the end of a task.

    Spark collects garbage in a worker after every task (`gc.collect` in `pyspark.daemon`). Each
    collection traverses all imported modules and delays the micro-batch by 30 ms or more. Most
    objects that exist after the first task belong to modules and are never freed. The function
    takes effect only once in each process, and only within a task.
    """
    global _is_frozen  # noqa: PLW0603 - the frozen objects also belong to the process
    if TaskContext.get() is None or _is_frozen:
        return
    gc.collect()
    gc.freeze()
    _is_frozen = True
