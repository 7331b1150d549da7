"""Tests of decisions as records: reading returns the written decision or an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka.errors import CommitTopicError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.sink.exactly_once.decisions import (
    Decision,
    Entry,
    QueryState,
    RowTotals,
    finished_record,
    key_prefix,
    query_states,
    to_records,
    tombstones,
)

Records = list[tuple[bytes, bytes]]

LARGE = 100_000


def entry(partition: int, **changes: Any) -> Entry:
    one = Entry(
        partition=partition,
        transactional_id=f"X/7/{partition}/0-{partition % 4}",
        producer=ProducerIdAndEpoch(producer_id=4000 + partition, producer_epoch=3),
        version=2,
        started_ms=1_700_000_000_000,
        totals=RowTotals(row_count=10, checksum=2**64 - 1 - partition),
        last_offsets={TopicPartition("out", 0): 99, TopicPartition("other.topic", 12): 2**40},
    )
    return replace(one, **changes)


def decision(number: int = 1, *, entries: int = 2, **changes: Any) -> Decision:
    one = Decision(
        sink_id="X",
        query_id='a "query" of ours: ü',
        number=number,
        batch_id=number + 10,
        run="run-1",
        task_count=3,
        offsets_hash="ab12",
        totals=RowTotals(row_count=20, checksum=17),
        entries=tuple(entry(partition) for partition in range(entries)),
        decided_ms=1_700_000_000_123,
    )
    return replace(one, **changes)


def only(states: dict[str, QueryState]) -> QueryState:
    (state,) = states.values()
    return state


@pytest.mark.parametrize(
    "one",
    [
        decision(),
        decision(entries=0),
        decision(batch_id=None, offsets_hash=None),
        decision(batch_id=0, entries=1),
        decision(entries=1, totals=RowTotals(row_count=0, checksum=2**64 - 1)),
        decision(entries=500),
        replace(decision(), entries=(entry(3, version=1, last_offsets={}),)),
    ],
    ids=["usual", "empty", "job", "first", "checksum", "many-tasks", "version-1"],
)
@pytest.mark.parametrize("chunk_bytes_max", [90, 200, 1000, LARGE])
def test_decision_survives_serialisation(one: Decision, chunk_bytes_max: int) -> None:
    records = to_records(one, chunk_bytes_max=chunk_bytes_max)
    assert all(len(value) <= chunk_bytes_max for _, value in records)
    assert len({key for key, _ in records}) == len(records)
    state = only(query_states("X", records))
    assert state.decision == one
    assert list(query_states("X", records)) == [one.query_id]
    assert state.chunk_count == len(records)
    assert not state.is_finished


def test_serialisation_is_deterministic() -> None:
    one = decision()
    turned = replace(
        one,
        entries=tuple(
            replace(each, last_offsets=dict(reversed(list(each.last_offsets.items()))))
            for each in one.entries
        ),
    )
    assert to_records(one, chunk_bytes_max=300) == to_records(turned, chunk_bytes_max=300)


def test_small_decision_after_a_large_one() -> None:
    """Records of the large decision that the small one does not replace stay in the log."""
    large, small = decision(1, entries=20), decision(2, entries=0)
    before, after = to_records(large, chunk_bytes_max=500), to_records(small, chunk_bytes_max=500)
    assert len(before) > len(after)
    compacted = [*before[len(after) :], *after]
    for records in ([*before, *after], compacted):
        state = only(query_states("X", records))
        assert state.decision == small
        assert state.chunk_count == len(before)
        assert query_states("X", [*records, *tombstones(state)]) == {}


def test_large_decision_after_a_small_one() -> None:
    small, large = decision(1, entries=0), decision(2, entries=20)
    records = [each for one in (small, large) for each in to_records(one, chunk_bytes_max=500)]
    assert only(query_states("X", records)).decision == large


def test_queries_and_sinks_are_kept_apart() -> None:
    others = [
        decision(5, sink_id="X2", entries=0),
        decision(6, sink_id="X.", entries=0),
        decision(7, sink_id="AX", entries=0),
    ]
    first, second = decision(1), decision(9, query_id="another")
    records = [
        record
        for one in (others[0], first, others[1], second, others[2])
        for record in to_records(one, chunk_bytes_max=400)
    ]
    records.insert(3, finished_record(decision(1, sink_id="X2")))
    records.insert(4, finished_record(second))
    states = query_states("X", [*records, finished_record(decision(4, query_id="a third"))])
    assert {query: state.decision for query, state in states.items()} == {
        first.query_id: first,
        "another": second,
    }
    assert not states[first.query_id].is_finished
    assert not states["another"].is_finished  # the mark is before its decision


@pytest.mark.parametrize("sink_id", ["X", "X2", "a.b"])
def test_keys_begin_with_their_sink_id(sink_id: str) -> None:
    keys = [key for key, _ in to_records(decision(sink_id=sink_id, entries=0), chunk_bytes_max=200)]
    keys.append(finished_record(decision(sink_id=sink_id))[0])
    for key in keys:
        found = [
            other for other in ("X", "X2", "X.", "a", "a.b") if key.startswith(key_prefix(other))
        ]
        assert found == [sink_id]


def test_records_of_other_sinks_are_skipped() -> None:
    records: list[tuple[bytes | None, bytes | None]] = [
        (None, b"?"),
        (b"", None),
        (b"\xff\xfe", b"\x00"),
        (b'["X2",', b"?"),
        *to_records(decision(), chunk_bytes_max=LARGE),
        (b'["X"]', b"?"),
    ]
    assert only(query_states("X", records)).decision == decision()


# --- finished marks ---


def records_of(*numbers: int) -> Records:
    return [
        each for n in numbers for each in to_records(decision(n, entries=1), chunk_bytes_max=300)
    ]


def mark(number: int, **changes: Any) -> tuple[bytes, bytes]:
    return finished_record(decision(number, **changes))


@pytest.mark.parametrize(
    ("records", "is_finished"),
    [
        (records_of(3), False),
        ([*records_of(3), mark(3)], True),
        ([*records_of(3), mark(2)], False),
        ([*records_of(3), mark(3), mark(2)], True),
        ([*records_of(3), mark(3), mark(3)], True),
        ([*records_of(3), mark(3), *records_of(4)], False),
        ([*records_of(3), mark(3), *records_of(4), mark(3)], False),
        ([*records_of(3), mark(3), *records_of(4), mark(4)], True),
        # After compaction the replaced records are gone.
        ([mark(3), *records_of(4)], False),
        # The mark is written before the state is removed, and lies before or after the removal in
        # the log.
        ([mark(9), *records_of(1)], False),
        ([*records_of(1), mark(1, run="forgotten")], False),
        ([*records_of(1), mark(1, run="forgotten"), mark(1)], True),
    ],
)
def test_finished_mark_counts_for_the_decision_before_it(
    records: Records, is_finished: bool
) -> None:
    assert only(query_states("X", records)).is_finished is is_finished


def test_finished_mark_between_chunks_counts() -> None:
    """The order in the log counts, and a mark is written after all chunks of its decision."""
    chunks = records_of(3)
    assert len(chunks) > 1
    assert only(query_states("X", [*chunks, mark(3)])).finished_number == 3


def test_removed_finished_marks_do_not_count() -> None:
    state = only(query_states("X", [*records_of(3), mark(3), (mark(3)[0], None)]))
    assert not state.is_finished


# --- removed state ---


def test_tombstones_remove_all_records_of_a_query() -> None:
    other = to_records(decision(query_id="other"), chunk_bytes_max=300)
    mine = [*records_of(2), mark(2)]
    state = query_states("X", [*mine, *other])[decision().query_id]
    left = query_states("X", [*mine, *other, *tombstones(state)])
    assert list(left) == ["other"]
    again = query_states("X", [*mine, *other, *tombstones(state), *records_of(1)])
    assert again[decision().query_id].decision.number == 1
    assert not again[decision().query_id].is_finished


def test_late_finished_mark_does_not_restore_a_removed_query() -> None:
    state = only(query_states("X", records_of(2)))
    assert query_states("X", [*records_of(2), *tombstones(state), mark(2)]) == {}


# --- damaged records ---


def damaged(records: list[tuple[bytes | None, bytes | None]]) -> str:
    with pytest.raises(CommitTopicError) as caught:
        query_states("X", records)
    assert caught.value.transactional_id == "X"
    assert "python -m pyspark_kafka transactions --id=X" in caught.value.advice
    return caught.value.what


def changed(change: Callable[[dict[str, Any]], object], *, chunk: int = 0) -> list[Any]:
    """Return the records of a decision whose document was changed."""
    ((key, value),) = to_records(decision(), chunk_bytes_max=LARGE)
    header, _, part = value.partition(b"\n")
    document = json.loads(part)
    change(document)
    return [(key, header + b"\n" + json.dumps(document).encode())]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_missing_chunk(lost: int) -> None:
    records: list[Any] = list(to_records(decision(), chunk_bytes_max=300))
    assert len(records) > 3
    key, _ = records.pop(lost)
    assert key.decode() in damaged(records)


def test_chunk_of_another_decision() -> None:
    before, after = records_of(1), records_of(2)
    assert len(after) > 1
    text = damaged([*before, *after[:-1]])
    assert before[-1][0].decode() in text


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"?\n", b"\xff\xfe", b'{"format":0}\n', b"[]\n", b"7"]
)
def test_damaged_chunk(value: bytes) -> None:
    ((key, _),) = to_records(decision(), chunk_bytes_max=LARGE)
    text = damaged([(key, value)])
    assert key.decode() in text


@pytest.mark.parametrize("kind", ["decision", "finished"])
def test_newer_format(kind: str) -> None:
    ((key, value),) = sound = to_records(decision(), chunk_bytes_max=LARGE)
    if kind == "finished":
        key, value = mark(1)
    newer = value.replace(b'"format":1', b'"format":2')
    assert newer != value
    text = damaged([*sound, (key, newer)])
    assert "format 2" in text
    assert key.decode() in text


@pytest.mark.parametrize(
    "key",
    [
        b'["X","query","verdict"]',
        b'["X","query","decision"]',
        b'["X","query","decision",-1]',
        b'["X",7,"finished"]',
        b'["X","query"',
        b'["X",\xff]',
    ],
)
def test_record_of_an_unknown_kind(key: bytes) -> None:
    assert key.decode(errors="replace") in damaged([(key, b"{}")])


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("run"),
        lambda d: d.update(run=7),
        lambda d: d.update(number=2),
        lambda d: d.update(transactional_id="Y"),
        lambda d: d.update(query_id="other"),
        lambda d: d.update(batch_id="7"),
        lambda d: d.update(batch_id=True),
        lambda d: d.update(row_count=-1),
        lambda d: d.update(checksum=None),
        lambda d: d.update(entries={}),
        lambda d: d["entries"].append(7),
        lambda d: d["entries"].append(d["entries"][0]),
        lambda d: d["entries"][0].update(partition=d["entries"][1]["partition"]),
        lambda d: d["entries"][0].update(transactional_id=d["entries"][1]["transactional_id"]),
        lambda d: d["entries"][0].update(version=3),
        lambda d: d["entries"][0].update(producer_epoch=-1),
        lambda d: d["entries"][0].update(producer_id=1.5),
        lambda d: d["entries"][0].pop("last_offsets"),
        lambda d: d["entries"][0].update(last_offsets={"out": {"a": 1}}),
        lambda d: d["entries"][0].update(last_offsets={"out": {"0": -1}}),
        lambda d: d["entries"][0].update(last_offsets={"out": 7}),
    ],
)
def test_damaged_document(change: Callable[[dict[str, Any]], object]) -> None:
    damaged(changed(change))


@pytest.mark.parametrize("other", ["X2/1/0/0-0", "Y/1/0/0-0", "X", "X/1/0/0-9", ""])
def test_decision_with_a_transaction_of_another_sink(other: str) -> None:
    text = damaged(changed(lambda d: d["entries"][0].update(transactional_id=other)))
    assert f"'{other}'" in text
