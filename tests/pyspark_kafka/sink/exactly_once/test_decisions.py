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
    SinkState,
    finishing_records,
    key_prefix,
    last_number_in,
    registration,
    sink_state,
    to_records,
    tombstones,
)

Records = list[tuple[bytes, bytes] | tuple[bytes, None]]

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


def only(state: SinkState) -> QueryState:
    (of_query,) = state.queries.values()
    return of_query


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
    state = sink_state("X", records)
    keys = tuple(key for key, _ in records)
    assert state.queries == {one.query_id: QueryState(decision=one, keys=keys)}
    assert state.forgotten_number is None
    finishing = finishing_records(only(state))
    finished = sink_state("X", [*records, *finishing])
    assert finished.queries == {
        one.query_id: QueryState(
            decision=replace(one, entries=()), is_finished=True, keys=(finishing[0][0],)
        )
    }
    assert finished.obsolete == ()


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


def test_queries_and_sinks_are_kept_apart() -> None:
    others = [
        decision(5, sink_id="X2", entries=0),
        decision(6, sink_id="X.", entries=0),
        decision(7, sink_id="AX", entries=0),
    ]
    first, second = decision(1), decision(9, query_id="another")
    records: Records = [
        record
        for one in (others[0], first, others[1], second, others[2])
        for record in to_records(one, chunk_bytes_max=400)
    ]
    records += finished(1, sink_id="X2") + finished(8, query_id="another")
    state = sink_state("X", records)
    assert {query: each.decision for query, each in state.queries.items()} == {
        first.query_id: first,
        "another": second,
    }
    assert not any(each.is_finished for each in state.queries.values())


@pytest.mark.parametrize("sink_id", ["X", "X2", "a.b"])
def test_keys_begin_with_their_sink_id(sink_id: str) -> None:
    keys = [key for key, _ in to_records(decision(sink_id=sink_id, entries=0), chunk_bytes_max=200)]
    keys += [finished(1, sink_id=sink_id)[0][0], registration(sink_id)[0]]
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
    assert only(sink_state("X", records)).decision == decision()


# --- finished records and obsolete records ---


def records_of(number: int, **changes: Any) -> list[tuple[bytes, bytes]]:
    return to_records(decision(number, **{"entries": 1} | changes), chunk_bytes_max=300)


def finished(number: int, **changes: Any) -> Records:
    """Return the records that finish a decision."""
    keys = tuple(key for key, _ in records_of(number, **changes))
    one = decision(number, **{"entries": 1} | changes)
    return finishing_records(QueryState(decision=one, keys=keys))


@pytest.mark.parametrize(
    ("records", "number", "is_finished"),
    [
        (records_of(3), 3, False),
        ([*records_of(3), *finished(3)], 3, True),
        ([*records_of(3), *finished(3), *finished(3)], 3, True),
        ([*records_of(3), *finished(3), *records_of(4)], 4, False),
        ([*records_of(3), *finished(3), *records_of(4), *finished(4)], 4, True),
        # A process that was paused finishes its decision after a newer one.
        ([*records_of(3), *records_of(4), *finished(3)], 4, False),
        ([*records_of(3), *records_of(4), *finished(4), *finished(3)], 4, True),
        # Only a part of the finishing records was written, or compaction removed superseded ones.
        ([*records_of(3), finished(3)[0]], 3, True),
        ([finished(3)[0], *records_of(4)], 4, False),
        ([*records_of(3)[1:], finished(3)[0]], 3, True),
        ([*records_of(3)[1:], *records_of(4)], 4, False),
    ],
)
def test_highest_number_is_the_state(records: Records, number: int, is_finished: bool) -> None:
    state = sink_state("X", records)
    assert only(state).decision.number == number
    assert only(state).is_finished is is_finished
    # Without the obsolete records the topic has the same state, in as few records as possible.
    cleaned = sink_state("X", [*records, *tombstones(state.obsolete)])
    assert cleaned == replace(state, obsolete=())
    left = {
        key for key, value in {**dict(records), **dict.fromkeys(state.obsolete)}.items() if value
    }
    assert left == set(only(state).keys)


def test_numbers_from_before_a_removal_are_ignored() -> None:
    """A process that was paused before --forget writes its records after it."""
    before: Records = [registration("X"), *records_of(7)]
    keys = [key for key, _ in before]
    assert last_number_in([*keys, b'["X",', b'["X","registered"]']) == 7
    removal: Records = [*tombstones(keys[1:]), registration("X", forgotten_number=7)]
    assert sink_state("X", [*before, *removal]) == SinkState(forgotten_number=7, queries={})
    late = sink_state("X", [*before, *removal, *records_of(8), finished(7)[0]])
    assert only(late).decision.number == 8
    assert not only(late).is_finished
    assert late.obsolete == (finished(7)[0][0],)
    alone = sink_state("X", [*before, *removal, finished(7)[0]])
    assert (alone.queries, alone.obsolete) == ({}, (finished(7)[0][0],))


# --- damaged records ---


def damaged(records: list[tuple[bytes | None, bytes | None]]) -> str:
    with pytest.raises(CommitTopicError) as caught:
        sink_state("X", records)
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
    (key, _), (_, value) = records_of(1)[0], records_of(2)[0]
    assert key.decode() in damaged([(key, value), *records_of(1)[1:]])


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"?\n", b"\xff\xfe", b'{"format":0}\n', b"[]\n", b"7"]
)
def test_damaged_chunk(value: bytes) -> None:
    ((key, _),) = to_records(decision(), chunk_bytes_max=LARGE)
    text = damaged([(key, value)])
    assert key.decode() in text


@pytest.mark.parametrize("kind", ["decision", "finished", "registered"])
def test_newer_format(kind: str) -> None:
    kinds = {
        "decision": to_records(decision(), chunk_bytes_max=LARGE)[0],
        "finished": finished(1)[0],
        "registered": registration("X"),
    }
    key, value = kinds[kind]
    assert value is not None
    newer = value.replace(b'"format":1', b'"format":2')
    assert newer != value
    text = damaged([(key, newer)])
    assert "format 2" in text
    assert key.decode() in text


@pytest.mark.parametrize(
    "key",
    [
        b'["X","query","verdict"]',
        b'["X","query","decision"]',
        b'["X","query","decision",1]',
        b'["X","query","decision",1,-1]',
        b'["X","query","finished"]',
        b'["X",7,"finished",1]',
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
