"""What is done to a Python worker of Spark's, for the tasks that it gets after this one.

Purpose: `freeze_garbage_collector`. Invariant: nothing happens outside of a task, or twice in a process. What it must
not know: what tasks do.
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_frozen = False
"""gc.get_freeze_count() would tell, but counts one by one what is frozen: milliseconds a task."""


def freeze_garbage_collector() -> None:
    """At the end of a task: take what is loaded by now out of the garbage collector's sight.

    Spark collects garbage in a worker after every task (`gc.collect` in `pyspark.daemon`), and
    each time that goes through all that was ever imported: 30 ms and more, which a micro-batch
    waits for. What is there after the first task is modules, and they stay.
    """
    global _is_frozen  # noqa: PLW0603 - of the process, as what is frozen
    if TaskContext.get() is None or _is_frozen:
        return
    gc.collect()
    gc.freeze()
    _is_frozen = True
