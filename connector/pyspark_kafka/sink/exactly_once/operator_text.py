"""Formats the operator's report as text and as JSON.

The text is easy to read and to search with grep. Each line starts with the kind of the item that it
describes, such as `decision` or `transaction`, followed by `name=value` pairs. Invariant: text and
JSON have the same content, and times are in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark_kafka.kafka.transactions import TransactionDescription, TransactionState
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB
from pyspark_kafka.sink.exactly_once.operator_report import (
    DecisionReport,
    EntryReport,
    EntryState,
    HeldPartition,
    OpenTransaction,
    Report,
    RowRange,
    is_open,
)

_MEANINGS = {
    EntryState.PREPARED: "is prepared and will be committed",
    EntryState.COMMITTING: "is being committed",
    EntryState.COMMITTED: "is committed",
    EntryState.LOST: "WAS ABORTED by a timeout or manually; its rows are not visible",
    EntryState.UNKNOWN: "UNKNOWN OUTCOME: the outcome is no longer recorded in Kafka",
}


def lines(report: Report) -> Iterator[str]:
    """Yield the lines of the report."""
    yield _owner(report)
    for decision in report.decisions:
        yield from _decision(decision)
    if report.damage is not None:
        yield f"decision UNREADABLE {report.damage}"
    elif not report.decisions:
        yield f"decision none found in topic '{report.commit_topic}'"
    for transaction in report.open_transactions:
        yield _transaction(transaction, report.taken_ms)
    if not report.open_transactions:
        yield (
            "transaction none: no task has an open transaction "
            f"(transactional ids of tasks: {report.known_ids})"
        )
    for held in report.held:
        yield _held(held, report.taken_ms)
    if report.held_is_unknown is not None:
        yield f"held UNKNOWN {report.held_is_unknown}"
    elif not report.held:
        yield "held none: no read_committed consumer is waiting for a transaction of this sink"


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as a dictionary for `json.dumps`."""
    return {
        "transactional_id": report.sink_id,
        "commit_topic": report.commit_topic,
        "taken_ms": report.taken_ms,
        "owner": None if report.owner is None else _described(report.owner),
        "damage": None if report.damage is None else str(report.damage),
        "decisions": [_decision_json(decision) for decision in report.decisions],
        "open_transactions": [
            {**_described(one.description), "is_decided": one.is_decided}
            for one in report.open_transactions
        ],
        "held_partitions": [_held_json(held) for held in report.held],
        "held_is_unknown": report.held_is_unknown,
        "known_ids": report.known_ids,
        "needs_operator": report.needs_operator,
    }


def _owner(report: Report) -> str:
    owner = report.owner
    if owner is None:
        return f"owner id={report.sink_id} none: the transaction coordinator does not know this id"
    activity = "no open transaction"
    if is_open(owner.state):
        is_writing = owner.state is TransactionState.ONGOING
        activity = "is writing a commit decision" if is_writing else "is ending its transaction"
    return (
        f"owner id={report.sink_id} producer_id={owner.producer.producer_id} "
        f"epoch={owner.producer.producer_epoch} state={owner.state.value}: {activity}"
    )


def _decision(report: DecisionReport) -> Iterator[str]:
    decision = report.decision
    if report.is_finished:
        state = "finished"
    else:
        state = "LOST-ROWS" if report.needs_operator else "unfinished"
    batch = "none" if decision.batch_id is None else str(decision.batch_id)
    query = f"{decision.query_id} (jobs with batchId)" if _is_job(report) else decision.query_id
    yield (
        f"decision query={query} batch={batch} number={decision.number} state={state} "
        f"rows={decision.totals.row_count} tasks={decision.task_count} "
        f"run={decision.run} decided={time_text(decision.decided_ms)}"
    )
    for entry in report.entries:
        yield (
            f"  {entry.state.value} id={entry.entry.transactional_id} "
            f"partition={entry.entry.partition} rows={entry.entry.totals.row_count}: "
            f"{_MEANINGS[entry.state]}"
        )
        yield from (f"    rows {range_text(rows)}" for rows in entry.rows)


def _is_job(report: DecisionReport) -> bool:
    return report.decision.query_id == BATCH_JOB


def range_text(rows: RowRange) -> str:
    """Return the offsets of a transaction's rows as text."""
    if rows.first_offset is None:
        return f"{rows.partition} up to offset {rows.last_offset} (first offset not found)"
    return f"{rows.partition} offsets {rows.first_offset} to {rows.last_offset}"


def _transaction(transaction: OpenTransaction, now_ms: int) -> str:
    one = transaction.description
    kind = "decided" if transaction.is_decided else "undecided"
    partitions = ",".join(str(partition) for partition in sorted(one.partitions)) or "none"
    return (
        f"transaction id={one.transactional_id} state={one.state.value} {kind} "
        f"producer_id={one.producer.producer_id} epoch={one.producer.producer_epoch} "
        f"{_since(one.started_ms, now_ms)} {_timeout(one, now_ms)} partitions={partitions}"
    )


def _timeout(one: TransactionDescription, now_ms: int) -> str:
    if one.started_ms is None:
        return f"timeout={duration_text(one.timeout_ms)}"
    return f"times_out_in={duration_text(one.started_ms + one.timeout_ms - now_ms)}"


def _held(held: HeldPartition, now_ms: int) -> str:
    holder = "holder=unknown"
    if held.transactional_id is not None:
        holder = f"holder={held.transactional_id} {_since(held.started_ms, now_ms)}"
    elif held.holder is not None:
        holder = f"holder=other-application producer_id={held.holder.producer_id}"
    return (
        f"held partition={held.partition} last_stable_offset={held.last_stable_offset} "
        f"high_watermark={held.high_watermark} "
        f"behind={held.high_watermark - held.last_stable_offset} {holder}"
    )


def _since(started_ms: int | None, now_ms: int) -> str:
    if started_ms is None:
        return "open_since=unknown"
    return f"open_since={time_text(started_ms)} open_for={duration_text(now_ms - started_ms)}"


def time_text(time_ms: int) -> str:
    """Return a time as text, in UTC with a resolution of one second."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration_text(duration_ms: int) -> str:
    """Return a duration as text: `1h02m`, `3m05s` or `7s`. For a negative duration, return `0s`."""
    seconds = max(0, duration_ms // 1_000)
    if seconds >= 3_600:
        return f"{seconds // 3_600}h{seconds % 3_600 // 60:02}m"
    return f"{seconds // 60}m{seconds % 60:02}s" if seconds >= 60 else f"{seconds}s"


def _described(one: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state.value,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "timeout_ms": one.timeout_ms,
        "started_ms": one.started_ms,
        "partitions": [str(partition) for partition in sorted(one.partitions)],
    }


def _decision_json(report: DecisionReport) -> dict[str, Any]:
    decision = report.decision
    return {
        "query_id": decision.query_id,
        "batch_id": decision.batch_id,
        "number": decision.number,
        "is_finished": report.is_finished,
        "run": decision.run,
        "decided_ms": decision.decided_ms,
        "row_count": decision.totals.row_count,
        "task_count": decision.task_count,
        "transactions": [_entry_json(entry) for entry in report.entries],
    }


def _entry_json(report: EntryReport) -> dict[str, Any]:
    return {
        "transactional_id": report.entry.transactional_id,
        "state": report.state.value,
        "partition": report.entry.partition,
        "row_count": report.entry.totals.row_count,
        "rows": _ranges_json(report.rows),
    }


def _ranges_json(ranges: Sequence[RowRange]) -> list[dict[str, Any]]:
    return [
        {
            "partition": str(rows.partition),
            "first_offset": rows.first_offset,
            "last_offset": rows.last_offset,
        }
        for rows in ranges
    ]


def _held_json(held: HeldPartition) -> dict[str, Any]:
    return {
        "partition": str(held.partition),
        "last_stable_offset": held.last_stable_offset,
        "high_watermark": held.high_watermark,
        "producer_id": None if held.holder is None else held.holder.producer_id,
        "transactional_id": held.transactional_id,
        "started_ms": held.started_ms,
    }
