"""Decisions. A decision commits a batch and lists the transactions that contain its rows.

Defines decisions as values, and their record format in the commit topic. Invariant: reading returns
exactly the decision that was written, or raises an error that names the record that is damaged,
missing or in a newer format.

    key                                  value
    ["sink id","query","decision",0]     {"chunks":2,"format":1,"number":7}\\n and the first part
    ["sink id","query","decision",1]     {"chunks":2,"format":1,"number":7}\\n and the second part
    ["sink id","query","finished"]       {"format":1,"number":7,"run":"..."}

The parts are one JSON document, which is split into chunks of a maximum size. All chunks of a
decision are written in one transaction. If a decision has fewer chunks than the previous one, old
chunks remain in the topic; their `number` identifies them. Keys contain the sink's transactional
id, the query id and the kind of the record, so that records of different queries never replace each
other. A finished mark is ignored if it precedes its decision or has the run of another decision
with the same number. Such a mark was written before a `--forget`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from pyspark_kafka.errors import CommitTopicError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.sink.exactly_once.names import is_task_id_of
from pyspark_kafka.sink.exactly_once.operator_command import operator_command

FORMAT: Final = 1
BATCH_JOB: Final = "batch"
"""The query id of every batch job with `batchId`."""

_CHECKSUMS: Final = 2**64
_DECISION: Final = "decision"
_FINISHED: Final = "finished"
_HEADER_BYTES_MAX: Final = 80
"""The maximum size of a chunk's header. Its numbers have at most 19 digits."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTotals:
    """The row count, and the sum of the rows' checksums modulo 2**64.

    The sum does not depend on the order of the rows.
    """

    row_count: int = 0
    checksum: int = 0

    def __add__(self, other: RowTotals) -> RowTotals:
        return RowTotals(
            row_count=self.row_count + other.row_count,
            checksum=(self.checksum + other.checksum) % _CHECKSUMS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prepared transaction that contains the rows of one task.

    `partition` is Spark's partition of the DataFrame. `last_offsets` contains the offset of the
    transaction's last record in each Kafka partition.
    """

    partition: int
    transactional_id: str
    producer: ProducerIdAndEpoch
    version: TransactionVersion
    started_ms: int
    totals: RowTotals
    last_offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of a batch. The batch is committed as soon as its decision is committed.

    `number` increases by one with each decision of (`sink_id`, `query_id`). `batch_id` is None for
    a job without `batchId`. `task_count` is the number of tasks. `offsets_hash` is the hash of the
    micro-batch's offsets in the checkpoint, or None. `totals` covers all tasks of the batch,
    including tasks without an entry.
    """

    sink_id: str
    query_id: str
    number: int
    batch_id: int | None
    run: str
    task_count: int
    offsets_hash: str | None
    totals: RowTotals
    entries: tuple[Entry, ...]
    decided_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """The last decision of a query, and the number of its last finished decision.

    `chunk_count` is the number of records of the decision.
    """

    decision: Decision
    finished_number: int = 0
    chunk_count: int = 1

    @property
    def is_finished(self) -> bool:
        return self.finished_number >= self.decision.number


# --- writing ---


def to_records(decision: Decision, *, chunk_bytes_max: int) -> list[tuple[bytes, bytes]]:
    """Return the records of a decision. Each value has at most `chunk_bytes_max` bytes.

    All records must be written in one transaction. Equal decisions produce identical bytes.
    """
    part_bytes = chunk_bytes_max - _HEADER_BYTES_MAX
    assert part_bytes > 0, chunk_bytes_max
    data = _json(_document(decision))
    parts = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    header = _json({"format": FORMAT, "number": decision.number, "chunks": len(parts)})
    assert len(header) < _HEADER_BYTES_MAX, header
    return [
        (_json([decision.sink_id, decision.query_id, _DECISION, chunk]), header + b"\n" + part)
        for chunk, part in enumerate(parts)
    ]


def finished_record(decision: Decision) -> tuple[bytes, bytes]:
    """Return the record that marks a decision as finished (all its transactions are committed)."""
    value = {"format": FORMAT, "number": decision.number, "run": decision.run}
    return _finished_key(decision.sink_id, decision.query_id), _json(value)


def tombstones(state: QueryState) -> list[tuple[bytes, None]]:
    """Return tombstones for all records of a query, which must be written in one producer batch."""
    sink_id, query_id = state.decision.sink_id, state.decision.query_id
    chunks = [_json([sink_id, query_id, _DECISION, chunk]) for chunk in range(state.chunk_count)]
    return [(key, None) for key in (*chunks, _finished_key(sink_id, query_id))]


def _finished_key(sink_id: str, query_id: str) -> bytes:
    return _json([sink_id, query_id, _FINISHED])


def key_prefix(sink_id: str) -> bytes:
    """Return the prefix of this sink's keys. No other sink has keys with this prefix."""
    return _json([sink_id])[:-1] + b","


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _document(decision: Decision) -> dict[str, object]:
    return {
        "transactional_id": decision.sink_id,
        "query_id": decision.query_id,
        "number": decision.number,
        "batch_id": decision.batch_id,
        "run": decision.run,
        "task_count": decision.task_count,
        "offsets_hash": decision.offsets_hash,
        "row_count": decision.totals.row_count,
        "checksum": decision.totals.checksum,
        "decided_ms": decision.decided_ms,
        "entries": [_entry_document(entry) for entry in decision.entries],
    }


def _entry_document(entry: Entry) -> dict[str, object]:
    last_offsets: dict[str, dict[str, int]] = {}
    for partition, offset in entry.last_offsets.items():
        last_offsets.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return {
        "partition": entry.partition,
        "transactional_id": entry.transactional_id,
        "producer_id": entry.producer.producer_id,
        "producer_epoch": entry.producer.producer_epoch,
        "version": entry.version,
        "started_ms": entry.started_ms,
        "row_count": entry.totals.row_count,
        "checksum": entry.totals.checksum,
        "last_offsets": last_offsets,
    }


# --- reading ---


class _RecordError(Exception):
    """A record that cannot be used.

    The message completes a sentence that begins with "The record".
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The value of a record. `position` is its index among all records that were read."""

    position: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """A record of a decision that has `count` chunks.

    `part` is this chunk's part of the document.
    """

    position: int
    number: int
    count: int
    part: bytes


@dataclass(slots=True)
class _QueryRecords:
    """The latest record of each chunk of one query, and all finished marks of the query."""

    chunks: dict[int, _Record] = field(default_factory=dict)
    marks: list[_Record] = field(default_factory=list)


def query_states(
    sink_id: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    location: Callable[[int], str] = "number {}".format,
) -> dict[str, QueryState]:
    """Return the state of every query of the sink, from the committed records in log order.

    Records of other sinks are skipped, and a null value removes the record with the same key.
    Raises `CommitTopicError` with the key of a record that is damaged, missing or in a newer
    format. For its message, `location` returns the location of the n-th record.
    """
    prefix = key_prefix(sink_id)
    kept: dict[bytes, list[_Record]] = {}
    for position, (key, value) in enumerate(records):
        if key is None or not key.startswith(prefix):
            continue
        if value is None:
            kept.pop(key, None)
        else:
            kept.setdefault(key, []).append(_Record(position=position, value=value))
    reader = _StateReader(sink_id, location)
    return {
        query_id: reader.state(query_id, query)
        for query_id, query in reader.queries(kept).items()
        if query.chunks
    }


@dataclass(frozen=True, slots=True)
class _StateReader:
    """Builds query states from the records of a sink.

    Raises errors that name the damaged record.
    """

    sink_id: str
    location: Callable[[int], str]

    def queries(self, kept: Mapping[bytes, list[_Record]]) -> dict[str, _QueryRecords]:
        found: dict[str, _QueryRecords] = {}
        for key, records in kept.items():
            try:
                query_id, chunk = _parse_key(key)
            except _RecordError as wrong:
                raise self._damaged(key, records[-1].position, wrong) from None
            query = found.setdefault(query_id, _QueryRecords())
            if chunk is None:
                query.marks = records
            else:
                query.chunks[chunk] = records[-1]
        return found

    def state(self, query_id: str, query: _QueryRecords) -> QueryState:
        chunks = self._chunks(query_id, query)
        try:
            document = _object(_parsed(b"".join(chunk.part for chunk in chunks)))
            decision = _parse_decision(self.sink_id, query_id, chunks[0].number, document)
        except _RecordError as wrong:
            raise self._damaged(self._key(query_id, 0), chunks[0].position, wrong) from None
        finished = [
            self._mark(query_id, mark, decision)
            for mark in query.marks
            if mark.position > chunks[0].position
        ]
        return QueryState(
            decision=decision,
            finished_number=max(finished, default=0),
            chunk_count=max(query.chunks) + 1,
        )

    def _chunks(self, query_id: str, query: _QueryRecords) -> list[_Chunk]:
        first = self._chunk(query_id, query, 0)
        chunks = [first, *(self._chunk(query_id, query, n) for n in range(1, first.count))]
        for index, chunk in enumerate(chunks):
            if chunk.number != first.number:
                wrong = _RecordError(
                    f"is missing: the topic contains this chunk of decision {chunk.number} instead "
                    f"of decision {first.number}"
                )
                raise self._damaged(self._key(query_id, index), chunk.position, wrong)
        return chunks

    def _chunk(self, query_id: str, query: _QueryRecords, index: int) -> _Chunk:
        record, key = query.chunks.get(index), self._key(query_id, index)
        if record is None:
            raise self._damaged(key, None, _RecordError("is missing"))
        header, _, part = record.value.partition(b"\n")
        try:
            fields = _of_this_format(header)
            return _Chunk(
                position=record.position,
                number=_number(fields, "number", least=1),
                count=_number(fields, "chunks", least=1),
                part=part,
            )
        except _RecordError as wrong:
            raise self._damaged(key, record.position, wrong) from None

    def _mark(self, query_id: str, record: _Record, decision: Decision) -> int:
        """Return the number of a finished mark, or 0 if its run differs from the decision's run."""
        try:
            fields = _of_this_format(record.value)
            number, run = _number(fields, "number", least=1), _field(fields, "run", str)
        except _RecordError as wrong:
            key = _finished_key(self.sink_id, query_id)
            raise self._damaged(key, record.position, wrong) from None
        return 0 if (number == decision.number and run != decision.run) else number

    def _key(self, query_id: str, chunk: int) -> bytes:
        return _json([self.sink_id, query_id, _DECISION, chunk])

    def _damaged(self, key: bytes, position: int | None, wrong: _RecordError) -> CommitTopicError:
        at = "" if position is None else f" ({self.location(position)})"
        return CommitTopicError(
            f"The record with the key {key.decode(errors='replace')}{at} {wrong}.",
            advice="If the record has a newer format, upgrade pyspark-kafka. Otherwise restore the "
            "topic. If that is impossible, compare the output of the query with its input, and "
            "then remove the state with "
            f"{operator_command(self.sink_id, '--forget --accept-loss')}.",
            transactional_id=self.sink_id,
        )


def _parse_key(key: bytes) -> tuple[str, int | None]:
    """Return the query id and the chunk index. The index is None for a finished mark."""
    match _parsed(key):
        case [str(), str(query_id), "decision", int(chunk)] if chunk >= 0:
            return query_id, chunk
        case [str(), str(query_id), "finished"]:
            return query_id, None
    raise _RecordError("has a key that this version of pyspark-kafka does not support")


def _parsed(data: bytes) -> object:
    try:
        return cast("object", json.loads(data))
    except ValueError as error:
        raise _RecordError(f"is damaged: {error}") from None


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _RecordError("is damaged: it does not contain a JSON object where one is required")
    return value


def _field(fields: Mapping[str, object], name: str, kind: type[_T]) -> _T:
    value = fields.get(name)
    if type(value) is not kind:
        raise _RecordError(
            f"is damaged: the value {value!r:.50} of '{name}' is not of type {kind.__name__}"
        )
    return value


def _number(fields: Mapping[str, object], name: str, *, least: int = 0) -> int:
    value = _field(fields, name, int)
    if value < least:
        raise _RecordError(f"is damaged: '{name}' is {value}, which is less than {least}")
    return value


def _of_this_format(data: bytes) -> Mapping[str, object]:
    fields = _object(_parsed(data))
    record_format = _number(fields, "format", least=1)
    if record_format > FORMAT:
        raise _RecordError(
            f"has format {record_format}, which requires a newer version of pyspark-kafka. This "
            f"version supports formats up to {FORMAT}"
        )
    return fields


def _parse_decision(
    sink_id: str, query_id: str, number: int, fields: Mapping[str, object]
) -> Decision:
    for name, expected in (
        ("transactional_id", sink_id),
        ("query_id", query_id),
        ("number", number),
    ):
        if fields.get(name) != expected:
            raise _RecordError(
                f"is damaged: '{name}' is {fields.get(name)!r} instead of {expected!r}"
            )
    entries = tuple(_parse_entry(sink_id, each) for each in _field(fields, "entries", list))
    if len({entry.partition for entry in entries}) < len(entries):
        raise _RecordError("is damaged: two of its entries have the same partition")
    if len({entry.transactional_id for entry in entries}) < len(entries):
        raise _RecordError("is damaged: two of its entries have the same transactional id")
    return Decision(
        sink_id=sink_id,
        query_id=query_id,
        number=number,
        batch_id=None if fields.get("batch_id") is None else _field(fields, "batch_id", int),
        run=_field(fields, "run", str),
        task_count=_number(fields, "task_count", least=1),
        offsets_hash=(
            None if fields.get("offsets_hash") is None else _field(fields, "offsets_hash", str)
        ),
        totals=_totals(fields),
        entries=entries,
        decided_ms=_number(fields, "decided_ms"),
    )


def _parse_entry(sink_id: str, value: object) -> Entry:
    fields = _object(value)
    transactional_id = _field(fields, "transactional_id", str)
    if not is_task_id_of(transactional_id, sink_id):
        raise _RecordError(
            f"is damaged: '{transactional_id}' is not the transactional id of a task of sink "
            f"'{sink_id}'"
        )
    version = _number(fields, "version", least=1)
    if version not in (1, 2):
        raise _RecordError(f"is damaged: 'version' is {version} instead of 1 or 2")
    return Entry(
        partition=_number(fields, "partition"),
        transactional_id=transactional_id,
        producer=ProducerIdAndEpoch(
            producer_id=_number(fields, "producer_id"),
            producer_epoch=_number(fields, "producer_epoch"),
        ),
        version=1 if version == 1 else 2,
        started_ms=_number(fields, "started_ms"),
        totals=_totals(fields),
        last_offsets=_last_offsets(_object(fields.get("last_offsets"))),
    )


def _totals(fields: Mapping[str, object]) -> RowTotals:
    return RowTotals(row_count=_number(fields, "row_count"), checksum=_number(fields, "checksum"))


def _last_offsets(fields: Mapping[str, object]) -> dict[TopicPartition, int]:
    found = {}
    for topic in fields:
        offsets = _object(fields[topic])
        for number in offsets:
            if not number.isdecimal():
                raise _RecordError(
                    f"is damaged: '{number}' is not a partition number of topic '{topic}'"
                )
            found[TopicPartition(topic, int(number))] = _number(offsets, number)
    return found
