"""Tests of new offsets, of the resets that are refused, and of the edited micro-batches."""

from __future__ import annotations

import pytest

from pyspark_kafka.checkpoint.offset_log import OffsetLogEntry, parse_offset_log
from pyspark_kafka.checkpoint.progress import Batch, Progress
from pyspark_kafka.commands.offset_reset import (
    LogRange,
    Reset,
    check_reset,
    edited_batches,
    plan_reset,
)
from pyspark_kafka.errors import CheckpointError
from pyspark_kafka.kafka.topics import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def entry(*sources: str) -> OffsetLogEntry:
    return parse_offset_log("\n".join(["v1", "{}", *sources]).encode())


def progress(
    committed: OffsetLogEntry, planned: OffsetLogEntry | None = None, *, has_state: bool = False
) -> Progress:
    return Progress(
        query_id="q",
        committed=Batch(batch_id=4, entry=committed),
        planned=None if planned is None else Batch(batch_id=5, entry=planned),
        has_state=has_state,
    )


def new_offset(source: str, partition: TopicPartition, current: int, new: int) -> Reset:
    return Reset(partition=(source, partition), current=current, requested=new, new=new)


@pytest.mark.parametrize(
    ("requested", "expected"), [(-5, 10), (10, 10), (15, 15), (20, 20), (21, 20)]
)
def test_an_offset_outside_the_log_is_replaced(requested: int, expected: int) -> None:
    [reset] = plan_reset({("0", T0): 12}, lambda *_: requested, {T0: LogRange(start=10, end=20)})
    assert reset == Reset(partition=("0", T0), current=12, requested=requested, new=expected)


def test_each_source_of_a_partition_is_moved_from_its_own_offset() -> None:
    offsets = {("0", T0): 12, ("1", T0): 15}
    resets = plan_reset(offsets, lambda _, now: now - 1, {T0: LogRange(start=0, end=20)})
    assert [reset.new for reset in resets] == [11, 14]


REWIND = [new_offset("0", T0, 12, 3), new_offset("0", T1, 5, 5)]
ADVANCE = [new_offset("0", T0, 12, 30)]
LAST = entry('{"t":{"0":12,"1":5}}')
NEXT = entry('{"t":{"0":14,"1":9}}')


@pytest.mark.parametrize(
    ("state", "resets", "accepts"),
    [
        (progress(LAST), REWIND, set()),
        (progress(LAST, NEXT), REWIND, {"discards_planned"}),
        (progress(LAST, NEXT), ADVANCE, {"discards_planned"}),
        (progress(LAST, has_state=True), REWIND, {"keeps_state"}),
        (progress(LAST, has_state=True), ADVANCE, set()),
        (progress(LAST, NEXT, has_state=True), REWIND, {"discards_planned", "keeps_state"}),
    ],
)
def test_resets_that_require_a_confirmation(
    state: Progress, resets: list[Reset], accepts: set[str]
) -> None:
    for left_out in accepts:
        given = {name: name != left_out for name in ("discards_planned", "keeps_state")}
        with pytest.raises(CheckpointError):
            check_reset(state, resets, **given)
    needed = {name: name in accepts for name in ("discards_planned", "keeps_state")}
    check_reset(state, resets, **needed)


def test_the_last_committed_batch_is_edited() -> None:
    [(batch, content)] = edited_batches(progress(LAST), REWIND)
    assert batch.batch_id == 4
    assert parse_offset_log(content) == entry('{"t":{"0":3,"1":5}}')


def test_the_planned_batch_reads_nothing_from_the_reset_partitions() -> None:
    """It reads all that it had planned of the other partitions, sources and new partitions."""
    last = entry('{"t":{"0":12,"1":5}}', '{"t":{"0":2}}', "7")
    planned = entry('{"t":{"0":14,"1":9,"2":1}}', '{"t":{"0":4}}', "8")
    resets = [new_offset("0", T0, 12, 3)]
    edits = edited_batches(progress(last, planned), resets)
    assert [(batch.batch_id, parse_offset_log(content)) for batch, content in edits] == [
        (4, entry('{"t":{"0":3,"1":5}}', '{"t":{"0":2}}', "7")),
        (5, entry('{"t":{"0":3,"1":9,"2":1}}', '{"t":{"0":4}}', "8")),
    ]


def test_a_planned_batch_can_be_emptied_without_moving_the_query() -> None:
    stays = [new_offset("0", T0, 12, 12), new_offset("0", T1, 5, 5)]
    [(batch, content)] = edited_batches(progress(LAST, NEXT), stays)
    assert (batch.batch_id, parse_offset_log(content)) == (5, LAST)
    assert edited_batches(progress(LAST), stays) == []
