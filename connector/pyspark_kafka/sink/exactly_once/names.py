"""The sink's transactional id, which the user sets, and the ids of its task attempts.

Builds and parses the ids of task attempts. Invariant: an id of the form
`sink_id/run/partition/attempt-slot` is always the id of a task attempt. No part contains a
character with a special meaning in patterns or paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.kafka.transactions import is_sink_id

SLOTS: Final = 16
"""The number of slots. The slot of an attempt is Spark's `taskAttemptId` modulo this number.
`taskAttemptId` counts the task attempts of all stages, so attempts of different batches or stage
attempts usually get different slots. A task cannot read its stage attempt from Spark."""

_RUN: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_TASK_ID: Final = re.compile(
    r"(?P<sink_id>[A-Za-z0-9._-]{1,200})/(?P<run>[A-Za-z0-9-]{1,64})"
    r"/(?P<partition>[0-9]{1,10})/(?P<attempt>[0-9]{1,10})-(?P<slot>[0-9]{1,2})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskId:
    """The parts of a task attempt's transactional id."""

    sink_id: str
    run: str
    partition: int
    attempt: int
    slot: int

    def __str__(self) -> str:
        return f"{self.sink_id}/{self.run}/{self.partition}/{self.attempt}-{self.slot}"


def is_run(run: str) -> bool:
    """Return whether the text is valid as the run in a task attempt's id.

    Spark's run ids are valid.
    """
    return _RUN.fullmatch(run) is not None


def task_id(
    sink_id: str, run: str, *, partition: int, attempt: int, task_attempt_id: int
) -> TaskId:
    """Return the id of a task attempt.

    `run` is the run id of the query, or a token for a batch job.
    """
    assert is_sink_id(sink_id), sink_id
    assert is_run(run), run
    return TaskId(
        sink_id=sink_id, run=run, partition=partition, attempt=attempt, slot=task_attempt_id % SLOTS
    )


def parse_task_id(text: str) -> TaskId | None:
    """Return the parts of a transactional id, or None if it is not the id of a task attempt."""
    match = _TASK_ID.fullmatch(text)
    if match is None:
        return None
    parsed = TaskId(
        sink_id=match["sink_id"],
        run=match["run"],
        partition=int(match["partition"]),
        attempt=int(match["attempt"]),
        slot=int(match["slot"]),
    )
    return parsed if str(parsed) == text and parsed.slot < SLOTS else None


def is_task_id_of(text: str, sink_id: str, *, run: str | None = None) -> bool:
    """Return whether the id belongs to a task attempt of this sink (and of this run, if given)."""
    parsed = parse_task_id(text)
    return parsed is not None and parsed.sink_id == sink_id and run in (None, parsed.run)


def prefix(sink_id: str, *, run: str | None = None) -> str:
    """Return the common prefix of the ids of this sink's task attempts (of this run, if given)."""
    return f"{sink_id}/" if run is None else f"{sink_id}/{run}/"
