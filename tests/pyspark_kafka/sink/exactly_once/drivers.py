"""Drivers and tasks that send the requests of the protocol, in any order.

They bring a cluster into any state that planning, abort or an old driver may find. Each method
sends the requests of its name, without the checks that tasks and commit perform.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from kio.schema.errors import ErrorCode

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.options.values import ExactlyOnce
from pyspark_kafka.sink.exactly_once.abort import abort
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import (
    Decision,
    Entry,
    QueryState,
    RowTotals,
    to_records,
)
from pyspark_kafka.sink.exactly_once.messages import Empty, Prepared, Task, TaskMessage
from pyspark_kafka.sink.exactly_once.names import task_id
from pyspark_kafka.sink.exactly_once.planning import Plan, plan

TASK_TIMEOUT_MS = 120_000


def rows(topic: str, partition: int, values: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([value.encode() for value in values], type=pa.binary()),
            pa.array([topic] * len(values), type=pa.string()),
            pa.array([partition] * len(values), type=pa.int32()),
        ],
        names=["value", "topic", "partition"],
    )


def totals(values: Sequence[str]) -> RowTotals:
    return RowTotals(
        row_count=len(values), checksum=sum(zlib.crc32(value.encode()) for value in values)
    )


@dataclass(kw_only=True)
class Driver:
    """One run of one query."""

    client: TransactionalClient
    sink_id: str
    commit_topic: str
    run: str = "run-1"
    query_id: str = "query"
    version: TransactionVersion = 2
    plans: list[Plan] = field(default_factory=list)

    @property
    def options(self) -> ExactlyOnce:
        return ExactlyOnce(
            transactional_id=self.sink_id,
            transaction_timeout_ms=TASK_TIMEOUT_MS,
            commit_topic=self.commit_topic,
            group_id=None,
            checkpoint=None,
            batch_id=None,
            fail_on_replay_mismatch=True,
        )

    @property
    def topic(self) -> CommitTopic:
        return CommitTopic(self.client, self.commit_topic, self.sink_id)

    @property
    def owner(self) -> ProducerIdAndEpoch:
        return self.plans[-1].owner

    @property
    def generation(self) -> int:
        return self.plans[-1].generation if self.plans else 0

    def plan(self, *, is_single_job: bool = False) -> Plan:
        self.plans.append(plan(self.client, self.options, is_single_job=is_single_job))
        return self.plans[-1]

    def id_of(
        self, partition: int, *, attempt: int = 0, slot: int = 0, generation: int | None = None
    ) -> str:
        return str(
            task_id(
                self.sink_id,
                self.generation if generation is None else generation,
                partition=partition,
                attempt=attempt,
                task_attempt_id=slot,
            )
        )

    def prepare(
        self,
        partition: int,
        topic: str,
        *values: str,
        attempt: int = 0,
        slot: int = 0,
        generation: int | None = None,
        to: Sequence[int] = (0,),
    ) -> Entry:
        """Run a task attempt that writes the values to each partition in `to`."""
        own_id = self.id_of(partition, attempt=attempt, slot=slot, generation=generation)
        producer = self.client.init_producer_id(own_id, timeout_ms=TASK_TIMEOUT_MS)
        writer = self.client.transactional_producer(own_id, producer, self.version)
        for number in to:
            writer.send(rows(topic, number, values))
        writer.flush()
        last_offsets = dict(writer.last_offsets)
        writer.close()
        return Entry(
            partition=partition,
            transactional_id=own_id,
            producer=producer,
            version=self.version,
            started_ms=1,
            totals=totals(values),
            last_offsets=last_offsets,
        )

    def write_decision(self, decision: Decision) -> None:
        """Write the decision in a transaction of the sink's id and leave the transaction open."""
        writer = self.client.transactional_producer(self.sink_id, self.owner, self.version)
        topic = self.topic
        try:
            writer.send(topic.rows(to_records(decision, chunk_bytes_max=topic.chunk_bytes_max)))
            writer.flush()
        except BaseException:
            writer.abort()
            raise
        writer.close()

    def decision(self, batch_id: int | None, *entries: Entry, number: int = 1) -> Decision:
        return Decision(
            sink_id=self.sink_id,
            query_id=self.query_id,
            number=number,
            batch_id=batch_id,
            run=self.run,
            task_count=max(len(entries), 1),
            offsets_hash=None,
            totals=sum((entry.totals for entry in entries), RowTotals()),
            entries=entries,
            decided_ms=1,
        )

    def decide(self, batch_id: int | None, *entries: Entry, number: int = 1) -> Decision:
        """Run step 8 of the protocol, which must succeed."""
        decision = self.decision(batch_id, *entries, number=number)
        self.write_decision(decision)
        assert self.end(self.sink_id, self.owner) is ErrorCode.none
        return decision

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool = True
    ) -> ErrorCode | None:
        end = EndTransaction(
            transactional_id=transactional_id,
            producer=producer,
            is_commit=is_commit,
            version=self.version,
        )
        return self.client.end_transactions([end])[transactional_id]

    def commit(self, entry: Entry) -> ErrorCode | None:
        return self.end(entry.transactional_id, entry.producer)

    def message(self, partition: int, entry: Entry | None, *, batch_id: int = 0) -> TaskMessage:
        task = Task(
            query_id=self.query_id,
            batch_id=batch_id,
            run=self.run,
            partition=partition,
            attempt=0,
            task_attempt_id=0,
        )
        if entry is None:
            return Empty(
                task=task,
                owner=self.owner,
                version=self.version,
                generation=self.generation,
                commit_partition=self.plans[-1].commit_partition,
                last_number=0,
                rows_by_topic={},
            )
        return Prepared(
            task=task,
            owner=self.owner,
            version=self.version,
            generation=self.generation,
            commit_partition=self.plans[-1].commit_partition,
            last_number=0,
            rows_by_topic={},
            entry=entry,
        )

    def mark_finished(self, decision: Decision) -> None:
        self.topic.mark_finished(self._state(decision))

    def delete(self, decision: Decision) -> None:
        self.topic.delete(self._state(decision))

    def _state(self, decision: Decision) -> QueryState:
        records = to_records(decision, chunk_bytes_max=self.topic.chunk_bytes_max)
        return QueryState(decision=decision, keys=tuple(key for key, _ in records))

    def abort(self, *entries: Entry) -> None:
        """Abort as Spark does, with the results of these tasks and of a failed task."""
        messages = [self.message(entry.partition, entry) for entry in entries]
        abort(self.client, self.options, [*messages, None])
