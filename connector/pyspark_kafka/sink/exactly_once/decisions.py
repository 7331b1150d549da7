"""Defines decisions. A decision commits a batch and lists the transactions with the batch's rows.

In memory, a decision is a Python value. In the commit topic, it is stored as records. Invariant:
reading returns exactly the decision that was written, or raises an error with the key of a record
that is corrupt, missing or in a newer format.

    key                                    value
    ["sink id","registered"]               {"format":1,"forgotten_number":0}
    ["sink id","query","decision",7,0]     {"chunks":2,"format":1,"number":7}\\n and the first part
    ["sink id","query","decision",7,1]     {"chunks":2,"format":1,"number":7}\\n and the second part
    ["sink id","query","finished",7]       {"chunks":1,"format":1,"number":7}\\n and the document

The parts form one JSON document, which is split into chunks of limited size. All chunks of a
decision are written in one transaction. When all transactions of a decision are committed, the
document is written again as the finished record, without the list of transactions, and the chunks
are deleted. Therefore the topic retains only one small record per query.

The records with the highest number represent the state of a query: the finished record if it
exists, otherwise the decision. Keys contain the number, so that a record never replaces a record of
another decision. Records with numbers up to the `forgotten_number` are ignored, because a process
that was paused before a `--forget` can still write such records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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
_REGISTERED: Final = "registered"
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

    `partition` is the number of the DataFrame's partition in Spark. `last_offsets` contains the
    offset of the transaction's last record in each Kafka partition.
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
    """The decision for a batch. The batch is committed as soon as its decision is committed.

    `number` increases by one for each decision with the same `sink_id` and `query_id`. `batch_id`
    is None for a job without `batchId`. `task_count` is the number of tasks. `offsets_hash` is the
    hash of the micro-batch's offsets in the checkpoint, or None. `totals` covers all tasks of the
    batch, including those that have no `Entry`.
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
    """The last decision of a query. `keys` contains the keys of its records.

    The `entries` of a finished decision are empty, because all of its transactions are committed.
    """

    decision: Decision
    is_finished: bool = False
    keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """The state of every query of a sink, by query id.

    `forgotten_number` is None if the sink is not registered, which means that its records may be
    incomplete. Otherwise it is the highest number that was used before the last `--forget`, or 0.
    `obsolete` contains the keys of superseded records.
    """

    forgotten_number: int | None
    queries: Mapping[str, QueryState]
    obsolete: tuple[bytes, ...] = ()


# --- writing ---

Tombstone = tuple[bytes, None]


def to_records(decision: Decision, *, chunk_bytes_max: int) -> list[tuple[bytes, bytes]]:
    """Return the records of a decision. Each value has at most `chunk_bytes_max` bytes.

    All records must be written in one transaction. Equal decisions produce identical bytes.
    """
    part_bytes = chunk_bytes_max - _HEADER_BYTES_MAX
    assert part_bytes > 0, chunk_bytes_max
    data = _json(_document(decision))
    parts = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    header = _header(decision, chunk_count=len(parts))
    key = [decision.sink_id, decision.query_id, _DECISION, decision.number]
    return [(_json([*key, chunk]), header + part) for chunk, part in enumerate(parts)]


def finishing_records(state: QueryState) -> list[tuple[bytes, bytes] | Tombstone]:
    """Return the finished record of a decision, and tombstones for the records that it replaces.

    The records must be written in the returned order. If only the first few are written, the
    topic still contains the state of the query.
    """
    decision = state.decision
    assert not state.is_finished, decision
    value = _header(decision, chunk_count=1) + _json(_document(replace(decision, entries=())))
    previous = _finished_key(decision, decision.number - 1)
    return [(_finished_key(decision, decision.number), value), *tombstones((*state.keys, previous))]


def deletion(decision: Decision) -> Tombstone:
    """Return the tombstone for the finished record of a decision.

    It deletes the decision and must follow the `finishing_records`: without the finished record, a
    decision with only a part of its chunks is corrupt.
    """
    return _finished_key(decision, decision.number), None


def registration(sink_id: str, *, forgotten_number: int = 0) -> tuple[bytes, bytes]:
    """Return the record that registers a sink.

    The record must be written before the transaction coordinator creates the transactional id of
    the sink.
    """
    return _registered_key(sink_id), _json({"format": FORMAT, "forgotten_number": forgotten_number})


def tombstones(keys: Iterable[bytes]) -> list[Tombstone]:
    return [(key, None) for key in keys]


def last_number_in(keys: Iterable[bytes]) -> int:
    """Return the highest number in the keys of a sink's records, or 0. Corrupt keys are ignored."""
    numbers = [0]
    for key in keys:
        with suppress(_RecordError):
            numbers.append(_parse_key(key).number)
    return max(numbers)


def _header(decision: Decision, *, chunk_count: int) -> bytes:
    header = _json({"format": FORMAT, "number": decision.number, "chunks": chunk_count}) + b"\n"
    assert len(header) <= _HEADER_BYTES_MAX, header
    return header


def _finished_key(decision: Decision, number: int) -> bytes:
    return _json([decision.sink_id, decision.query_id, _FINISHED, number])


def _registered_key(sink_id: str) -> bytes:
    return _json([sink_id, _REGISTERED])


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
    """Raised for a record that cannot be used.

    The message completes a sentence that begins with "The record".
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A record. `position` is its index among all records that were read."""

    position: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """The key of a decision chunk or of a finished record. In a finished record, `chunk` is 0."""

    query_id: str
    number: int
    is_finished: bool
    chunk: int


_Chunks = dict[int, _Record]
"""The records of a decision or its finished record, by chunk."""


def sink_state(
    sink_id: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    location: Callable[[int], str] = "number {}".format,
) -> SinkState:
    """Derive the state of every query of the sink from the committed records in log order.

    Records of other sinks are skipped, and a null value removes the record with the same key.
    Raises `CommitTopicError` with the key of a record that is corrupt, missing or in a newer
    format. `location` returns the location of the n-th record, for the error message.
    """
    prefix = key_prefix(sink_id)
    kept: dict[bytes, _Record] = {}
    for position, (key, value) in enumerate(records):
        if key is None or not key.startswith(prefix):
            continue
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = _Record(position=position, key=key, value=value)
    return _StateReader(sink_id, location).read(kept)


@dataclass(frozen=True, slots=True)
class _StateReader:
    """Builds the state from the records of a sink.

    Raises `CommitTopicError` with the key of the corrupt record.
    """

    sink_id: str
    location: Callable[[int], str]

    def read(self, kept: dict[bytes, _Record]) -> SinkState:
        forgotten_number = self._forgotten_number(kept.pop(_registered_key(self.sink_id), None))
        queries = {}
        obsolete: list[bytes] = []
        for query_id, found in self._by_query(kept.values()).items():
            current = max(found)
            number, is_finished = current
            if number > (forgotten_number or 0):
                chunks = found.pop(current)
                queries[query_id] = QueryState(
                    decision=self._decision(query_id, number, chunks),
                    is_finished=is_finished,
                    keys=tuple(record.key for record in chunks.values()),
                )
            obsolete += [each.key for chunks in found.values() for each in chunks.values()]
        return SinkState(
            forgotten_number=forgotten_number, queries=queries, obsolete=tuple(sorted(obsolete))
        )

    def _forgotten_number(self, record: _Record | None) -> int | None:
        if record is None:
            return None
        try:
            return _number(_of_this_format(record.value), "forgotten_number")
        except _RecordError as wrong:
            raise self._corrupt(record.key, record.position, wrong) from None

    def _by_query(self, records: Iterable[_Record]) -> dict[str, dict[tuple[int, bool], _Chunks]]:
        """Group the records by query id, and within each query by `(number, is_finished)`."""
        found: dict[str, dict[tuple[int, bool], _Chunks]] = {}
        for record in records:
            try:
                key = _parse_key(record.key)
            except _RecordError as wrong:
                raise self._corrupt(record.key, record.position, wrong) from None
            of_query = found.setdefault(key.query_id, {})
            of_query.setdefault((key.number, key.is_finished), {})[key.chunk] = record
        return found

    def _decision(self, query_id: str, number: int, chunks: _Chunks) -> Decision:
        some = next(iter(chunks.values()))
        count, _ = self._chunk(some, number)
        parts = []
        for index in range(count):
            record = chunks.get(index)
            if record is None:
                key = _json([self.sink_id, query_id, _DECISION, number, index])
                raise self._corrupt(key, None, _RecordError("is missing"))
            parts.append(self._chunk(record, number)[1])
        try:
            document = _object(_parsed(b"".join(parts)))
            return _parse_decision(self.sink_id, query_id, number, document)
        except _RecordError as wrong:
            raise self._corrupt(chunks[0].key, chunks[0].position, wrong) from None

    def _chunk(self, record: _Record, number: int) -> tuple[int, bytes]:
        """Return the decision's number of chunks, and the part of the decision in this chunk."""
        header, _, part = record.value.partition(b"\n")
        try:
            fields = _of_this_format(header)
            _check_field(fields, "number", number)
            return _number(fields, "chunks", least=1), part
        except _RecordError as wrong:
            raise self._corrupt(record.key, record.position, wrong) from None

    def _corrupt(self, key: bytes, position: int | None, wrong: _RecordError) -> CommitTopicError:
        at = "" if position is None else f" ({self.location(position)})"
        return CommitTopicError(
            f"The record with the key {key.decode(errors='replace')}{at} {wrong}.",
            advice="If the record has a newer format, upgrade pyspark-kafka. Otherwise restore the "
            "topic. If that is impossible, compare the output of the query with its input, and "
            "then remove the state with "
            f"{operator_command(self.sink_id, '--forget --accept-loss')}.",
            transactional_id=self.sink_id,
        )


def _parse_key(key: bytes) -> _Key:
    match _parsed(key):
        case [str(), str(query_id), "decision", int(number), int(chunk)] if chunk >= 0:
            return _Key(query_id=query_id, number=number, is_finished=False, chunk=chunk)
        case [str(), str(query_id), "finished", int(number)]:
            return _Key(query_id=query_id, number=number, is_finished=True, chunk=0)
    raise _RecordError("has a key that this version of pyspark-kafka does not support")


def _parsed(data: bytes) -> object:
    try:
        return cast("object", json.loads(data))
    except ValueError as error:
        raise _RecordError(f"is corrupt: {error}") from None


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _RecordError("is corrupt: a value that must be a JSON object has another type")
    return value


def _field(fields: Mapping[str, object], name: str, kind: type[_T]) -> _T:
    value = fields.get(name)
    if type(value) is not kind:
        raise _RecordError(
            f"is corrupt: the value {value!r:.50} of '{name}' is not of type {kind.__name__}"
        )
    return value


def _number(fields: Mapping[str, object], name: str, *, least: int = 0) -> int:
    value = _field(fields, name, int)
    if value < least:
        raise _RecordError(f"is corrupt: '{name}' is {value}, which is less than {least}")
    return value


def _check_field(fields: Mapping[str, object], name: str, expected: object) -> None:
    if fields.get(name) != expected:
        raise _RecordError(f"is corrupt: '{name}' is {fields.get(name)!r} instead of {expected!r}")


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
    _check_field(fields, "transactional_id", sink_id)
    _check_field(fields, "query_id", query_id)
    _check_field(fields, "number", number)
    entries = tuple(_parse_entry(sink_id, each) for each in _field(fields, "entries", list))
    if len({entry.partition for entry in entries}) < len(entries):
        raise _RecordError("is corrupt: two of its entries have the same partition")
    if len({entry.transactional_id for entry in entries}) < len(entries):
        raise _RecordError("is corrupt: two of its entries have the same transactional id")
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
            f"is corrupt: '{transactional_id}' is not the transactional id of a task of sink "
            f"'{sink_id}'"
        )
    version = _number(fields, "version", least=1)
    if version not in (1, 2):
        raise _RecordError(f"is corrupt: 'version' is {version} instead of 1 or 2")
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
                    f"is corrupt: '{number}' is not a partition number of topic '{topic}'"
                )
            found[TopicPartition(topic, int(number))] = _number(offsets, number)
    return found
