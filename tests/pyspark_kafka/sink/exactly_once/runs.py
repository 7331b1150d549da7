"""Batches without Spark: planning, tasks, commit and abort, by several runs, in any order.

The runs use the sink as Spark does, with any `TransactionalClient`. A test can kill a run, let it
fail, or run another one at any failpoint. Everything runs in one thread, so a scenario is
deterministic.

    run = Run(world, topic)
    run.write(0, [b"a"], [b"b"])              # like Spark: tasks, then commit or abort

    batch = run.begin(1)                      # or step by step
    batch.task(0, [b"c"])
    with at(3, lambda: other.begin(1)):       # called at the fourth failpoint
        batch.commit()
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import pyarrow as pa

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import ClientOptions, ExactlyOnce, SinkOptions
from pyspark_kafka.records.partitioning import partition_of_key
from pyspark_kafka.sink.exactly_once import commit_log
from pyspark_kafka.sink.exactly_once.abort import abort
from pyspark_kafka.sink.exactly_once.commit import commit
from pyspark_kafka.sink.exactly_once.commit_topic import PARTITIONS
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.messages import Task, TaskMessage
from pyspark_kafka.sink.exactly_once.planning import Plan, plan
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from pyspark_kafka.sink.exactly_once.steps import VARIABLE
from pyspark_kafka.sink.exactly_once.task import write_task

COMMIT_TOPIC = "__spark_commits"


def neighbour_of(sink_id: str) -> str:
    """Return another sink id whose records are in the same partition of the commit topic."""
    same = partition_of_key(sink_id.encode(), PARTITIONS)
    others = (f"{sink_id}-{n}" for n in count())
    return next(one for one in others if partition_of_key(one.encode(), PARTITIONS) == same)


Rows = Sequence[bytes]


class _Memories(dict[Any, Any]):
    """The cached commit logs, separate for each simulated process."""

    def __init__(self) -> None:
        self._process = threading.local()

    @contextmanager
    def of(self, process: object) -> Iterator[None]:
        before = self._current
        self._process.name = process
        try:
            yield
        finally:
            self._process.name = before

    @property
    def _current(self) -> object:
        return getattr(self._process, "name", None)

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__((self._current, key), value)

    def pop(self, key: object, default: object = None) -> Any:
        return super().pop((self._current, key), default)


_MEMORIES = _Memories()
vars(commit_log)["_READ"] = _MEMORIES


class Killed(BaseException):
    """The process was killed."""


class World(Protocol):
    def fresh(self) -> World:
        """Return a new world of the same kind, or this world if a new one is expensive."""

    def client(self, name: str) -> TransactionalClient:
        """Return a client of one process."""

    def now_ms(self) -> int: ...

    def topic(self, partitions: int = 1) -> str:
        """Return a new topic."""

    def name(self) -> str:
        """Return a new transactional id."""

    def committed(self, topic: str) -> list[bytes]:
        """Return the sorted values that a `read_committed` consumer reads."""

    def is_stable(self, topic: str) -> bool:
        """Return whether no open transaction blocks consumers of the topic."""

    def group_offset(self, group_id: str, partition: TopicPartition) -> int | None:
        """Return the committed offset of a group."""


@dataclass(kw_only=True)
class Run:
    """A run of a query, which ends with its last batch or with `Killed`.

    Like Spark it calls `abort` after any failure after planning, unless it was killed.
    """

    world: World
    topic: str
    sink_id: str
    commit_topic: str = COMMIT_TOPIC
    query_id: str = "query"
    run: str = "run-1"
    group_id: str | None = None
    batch_id: int | None = None
    fail_on_replay_mismatch: bool = True
    timeout_ms: int = 600_000
    task_attempt_ids: Iterator[int] = field(default_factory=count)

    @property
    def options(self) -> ExactlyOnce:
        return ExactlyOnce(
            transactional_id=self.sink_id,
            transaction_timeout_ms=self.timeout_ms,
            commit_topic=self.commit_topic,
            group_id=self.group_id,
            checkpoint=None,
            batch_id=self.batch_id,
            fail_on_replay_mismatch=self.fail_on_replay_mismatch,
        )

    def successor(self, run: str = "run-2", **changes: Any) -> Run:
        return replace(self, run=run, **changes)

    def begin(self, batch_id: int | None) -> Batch:
        with _MEMORIES.of(id(self)), self.process("planning") as client:
            planned = plan(client, self.options, is_single_job=batch_id is None)
        return Batch(run=self, batch_id=batch_id, plan=planned)

    def write(
        self, batch_id: int | None, *partitions: Rows, offsets: SourceOffsets | None = None
    ) -> None:
        batch = self.begin(batch_id)
        batch.play(*partitions, offsets=offsets)

    @contextmanager
    def process(self, name: str) -> Iterator[TransactionalClient]:
        client = self.world.client(f"{self.run}-{name}")
        try:
            yield FailpointClient(client)
        finally:
            client.close()


@dataclass(kw_only=True)
class Batch:
    """One planned batch of one run; `messages` are the results of the successful tasks."""

    run: Run
    batch_id: int | None
    plan: Plan
    messages: dict[int, TaskMessage] = field(default_factory=dict)

    def play(self, *partitions: Rows, offsets: SourceOffsets | None = None) -> None:
        """Run all tasks in order and commit; abort after a failure."""
        try:
            for partition, rows in enumerate(partitions):
                self.task(partition, rows)
            self.commit(offsets=offsets)
        except Exception:
            missing = [None] * (len(partitions) - len(self.messages))
            self.abort([*self.messages.values(), *missing])
            raise

    def task(
        self, partition: int, rows: Rows, *, attempt: int = 0, task_attempt_id: int | None = None
    ) -> TaskMessage:
        """Run one task attempt; the last result of a partition is used."""
        if task_attempt_id is None:
            task_attempt_id = next(self.run.task_attempt_ids)
        with self.run.process("task") as client:
            self.messages[partition] = write_task(
                [values(rows)],
                plan=self.plan,
                task=Task(
                    query_id=self.run.query_id,
                    batch_id=self.batch_id,
                    run=self.run.run,
                    partition=partition,
                    attempt=attempt,
                    task_attempt_id=task_attempt_id,
                ),
                options=SinkOptions(
                    client=_CLIENT, topic=self.run.topic, exactly_once=self.run.options
                ),
                client=client,
                now_ms=self.run.world.now_ms,
            )
        return self.messages[partition]

    def commit(self, *, offsets: SourceOffsets | None = None) -> None:
        with self.run.process("commit") as client:
            commit(
                client,
                self.run.options,
                list(self.messages.values()),
                offsets=offsets,
                now_ms=self.run.world.now_ms,
            )

    def abort(self, messages: Sequence[TaskMessage | None] | None = None) -> None:
        if messages is None:
            messages = list(self.messages.values())
        with self.run.process("abort") as client:
            abort(client, self.run.options, messages)


_CLIENT = ClientOptions(bootstrap_servers="none:1", kafka={}, group_id="none")


def values(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], ["value"])


@dataclass
class Failpoints:
    """The failpoints that were reached, in order; `action` runs once, at `place`."""

    place: int | str | None = None
    action: Callable[[], object] = lambda: None
    met: list[str] = field(default_factory=list)
    is_done: bool = False
    is_killed: bool = False

    def reach(self, failpoint: str) -> None:
        if self.is_killed:
            raise Killed
        self.met.append(failpoint)
        if not self.is_done and self.place in (len(self.met) - 1, failpoint):
            self.is_done = True
            _stack.append(Failpoints())
            try:
                self.action()
            except Killed:
                self.is_killed = True
                raise
            finally:
                _stack.pop()


class Reached(Protocol):
    def reach(self, failpoint: str) -> None: ...


_stack: list[Reached] = []


def reach(failpoint: str) -> None:
    """Handle a failpoint; `PYSPARK_KAFKA_FAILPOINTS` names this function."""
    if _stack:
        _stack[-1].reach(failpoint)


@contextmanager
def reaching(handler: Reached) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = f"{__name__}:{reach.__name__}"
    _stack.append(handler)
    try:
        yield
    finally:
        _stack.pop()
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


@contextmanager
def at(
    place: int | str | None = None, action: Callable[[], object] = lambda: None
) -> Iterator[Failpoints]:
    """Run an action at one failpoint of the block, given by name or by number in order.

    The action itself has no failpoints. `kill` ends the process.
    """
    failpoints = Failpoints(place, action)
    with reaching(failpoints):
        yield failpoints


def kill() -> None:
    raise Killed
