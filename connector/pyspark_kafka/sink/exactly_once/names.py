"""Builds and parses the transactional ids of a sink's task attempts.

The user sets the transactional id of the sink (`sink_id`). Invariant: an id of the form
`sink_id/generation/partition/attempt-slot` is always the id of a task attempt. No part contains a
character that has a special meaning in regular expressions or paths.

The ids are reused, so a sink has a limited number of ids, regardless of its number of batches, runs
and jobs. Coordinators retain each id for `transactional.id.expiration.ms` (7 days). Reuse does not
affect correctness, because a transaction is identified by its producer id and epoch. However, an
earlier attempt that is still running aborts the transaction of a later attempt with the same id,
and the later batch fails. Therefore, an id is reused as late as possible.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from typing import Final

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, is_sink_id

GENERATIONS: Final = 32
"""The number of generations. The generation is derived from the producer epoch. The epoch is bumped
by each planning run and by each decision, so the generation advances by one or two per planning
run."""

ATTEMPTS: Final = 16
"""The number of task attempts for a partition that have different ids. Spark's default is 4
attempts."""

SLOTS: Final = 4
"""The slot of an attempt is Spark's `taskAttemptId` modulo this number. `taskAttemptId` counts the
task attempts of all stages. The slot distinguishes task attempts of different stage attempts: in
each stage attempt, Spark numbers the attempts of a partition from 0, and a task cannot determine
its stage attempt."""

_TASK_ID: Final = re.compile(
    r"(?P<sink_id>[A-Za-z0-9._-]{1,200})/(?P<generation>[0-9]{1,10})"
    r"/(?P<partition>[0-9]{1,10})/(?P<attempt>[0-9]{1,2})-(?P<slot>[0-9])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskId:
    """The parts of a task attempt's transactional id."""

    sink_id: str
    generation: int
    partition: int
    attempt: int
    slot: int

    def __str__(self) -> str:
        return f"{self.sink_id}/{self.generation}/{self.partition}/{self.attempt}-{self.slot}"


def task_id(
    sink_id: str, generation: int, *, partition: int, attempt: int, task_attempt_id: int
) -> TaskId:
    """Return the id of a task attempt. `generation` is the generation of the batch."""
    assert is_sink_id(sink_id), sink_id
    return TaskId(
        sink_id=sink_id,
        generation=generation,
        partition=partition,
        attempt=attempt % ATTEMPTS,
        slot=task_attempt_id % SLOTS,
    )


def unused_task_id(sink_id: str) -> str:
    """Return a task id that no task of the sink uses, for checks of the ACLs on task ids."""
    last = 2**31 - 1
    return str(task_id(sink_id, 0, partition=last, attempt=0, task_attempt_id=0))


def next_generation(owner: ProducerIdAndEpoch, unfinished: Collection[str]) -> int:
    """Return the generation for the task ids of the batch that `owner` has planned.

    `unfinished` contains the ids of decided transactions that may not be committed yet. None of
    these ids contains the returned generation, so no task reuses these ids.
    """
    used = {parsed.generation for name in unfinished if (parsed := parse_task_id(name))}
    rotated = ((owner.producer_epoch + n) % GENERATIONS for n in range(GENERATIONS))
    free = next((one for one in rotated if one not in used), None)
    return free if free is not None else next(n for n in count(GENERATIONS) if n not in used)


def parse_task_id(text: str) -> TaskId | None:
    """Return the parts of a transactional id, or None if it is not the id of a task attempt."""
    match = _TASK_ID.fullmatch(text)
    if match is None:
        return None
    parsed = TaskId(
        sink_id=match["sink_id"],
        generation=int(match["generation"]),
        partition=int(match["partition"]),
        attempt=int(match["attempt"]),
        slot=int(match["slot"]),
    )
    is_legal = parsed.attempt < ATTEMPTS and parsed.slot < SLOTS and str(parsed) == text
    return parsed if is_legal else None


def is_task_id_of(text: str, sink_id: str, *, generation: int | None = None) -> bool:
    """Return whether the id belongs to a task attempt of the sink.

    If `generation` is not None, the generation in the id must also be equal to it.
    """
    parsed = parse_task_id(text)
    return (
        parsed is not None and parsed.sink_id == sink_id and generation in (None, parsed.generation)
    )


def prefix(sink_id: str, *, generation: int | None = None) -> str:
    """Return the common prefix of the ids of the sink's task attempts.

    If `generation` is not None, return the common prefix of the ids in this generation.
    """
    return f"{sink_id}/" if generation is None else f"{sink_id}/{generation}/"
