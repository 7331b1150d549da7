"""Settings of Spark's Python worker process for its later tasks.

Purpose: `freeze_garbage_collector`. Invariant: it has an effect only in a task, and once in a
process. What it must not know: the tasks.
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_frozen = False
"""Not gc.get_freeze_count(), which counts the objects one by one: milliseconds in each task."""


def freeze_garbage_collector() -> None:
    """Exclude all current objects from garbage collection; call it at the end of a task.

    Spark collects garbage in a worker after every task (`gc.collect` in `pyspark.daemon`). That
    traverses all imported modules and delays each micro-batch by 30 ms or more. The objects after
    the first task are mostly modules, which stay.
    """
    global _is_frozen  # noqa: PLW0603 - per process, as the frozen objects
    if TaskContext.get() is None or _is_frozen:
        return
    gc.collect()
    gc.freeze()
    _is_frozen = True
