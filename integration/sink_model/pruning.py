"""Pruning: removes parts of a state that no action can observe.

This reduces the number of states. Invariant: pruning does not change the behavior of the model.
"""

from __future__ import annotations

from integration.sink_model.case import Case
from integration.sink_model.state import (
    NO_MESSAGE,
    ONGOING,
    PREPARED,
    Partition,
    State,
    TaskId,
)


def prune(case: Case, state: State) -> State:
    """Remove markers and closed ids that are no longer referenced.

    References come from decisions, drivers, attempts and delayed requests.
    """
    partitions = tuple(_pruned(case, part) for part in state.partitions)
    return state if partitions == state.partitions else state._replace(partitions=partitions)


def _pruned(case: Case, part: Partition) -> Partition:
    if not part.markers and all(current.status == ONGOING for _, current in part.ids):
        return part
    named: set[tuple[TaskId, int]] = {(entry.task_id, entry.epoch) for entry in part.entries}
    listed: set[TaskId] = {request.task_id for request in part.late}
    for work in part.works:
        for entries in (work.to_do, work.lost):
            named.update((entry.task_id, entry.epoch) for entry in entries)
        if work.message != NO_MESSAGE:
            named.add((work.message.task_id, work.message.epoch))
        listed.update(work.listed)
    for attempt in part.attempts:
        task_id = case.task_id(attempt.run, attempt.batch, attempt.attempt)
        named.add((task_id, attempt.epoch))
        listed.add(task_id)
    markers = tuple(each for each in part.markers if (each.task_id, each.epoch) in named)
    listed.update(task_id for task_id, _ in named)
    ids = part.ids
    if case.ids_are_unique:
        ids = tuple(
            each
            for each in ids
            if each[1].status == ONGOING or each[1].status in PREPARED or each[0] in listed
        )
    if len(markers) == len(part.markers) and len(ids) == len(part.ids):
        return part
    return part._replace(markers=markers, ids=ids)
