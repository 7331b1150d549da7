"""Plays Spark's driver: micro-batches or batch jobs one after another, with tasks and restarts.

Purpose: call the parts in the order and with the numbers that Spark gives, and do what Spark does
when one of them dies or fails: a task is tried again or fails its batch, a batch that failed in its
tasks or its commit is aborted, a query that failed is started again from its checkpoint. Invariant:
what a life of the driver knows of another it has from the checkpoint. What it must not know: the
sink's protocol.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

from integration.failpoints.hook import Action, Order
from integration.failpoints.messages import Call, Died, Failed, Finished, Outcome
from integration.failpoints.parts import Sink, TaskPart
from integration.failpoints.processes import ForkServer, NoAnswer, Process

TASKS: Final = 2
TOPIC_PARTITIONS: Final = 2
STALL_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.005

Rows = Sequence[tuple[bytes, int]]


class Kind(Enum):
    """Which of Spark's processes."""

    PLANNING = "planning"
    TASK = "task"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process of a run: which life of the driver, which batch, and for what.

    `partition` and `attempt` are of tasks.
    """

    life: int
    batch: int
    kind: Kind
    partition: int = 0
    attempt: int = 0

    def __str__(self) -> str:
        task = f" {self.partition}.{self.attempt}" if self.kind is Kind.TASK else ""
        return f"{self.kind.value}{task} of batch {self.batch}, life {self.life}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An order for the process that takes a seat.

    `takes_driver`: Spark's driver dies with it, and with that all of its processes. `meanwhile` is
    what happens while it is stalled; then it goes on.
    """

    seat: Seat
    order: Order
    takes_driver: bool = False
    meanwhile: Callable[[], None] | None = None


class Stall:
    """A process that is stopped at its failpoint until it is released."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()
        self.was_killed = False

    def hold(self, process: Process) -> None:
        """Stop the process, and return when it was woken; or, where nobody does, was killed."""
        process.stop()
        self._reached.set()
        if not self._released.wait(STALL_TIMEOUT_S):
            self.was_killed = True
            process.kill()
            return
        process.wake()

    def await_reached(self, thread: threading.Thread, *, timeout_s: float = 60.0) -> bool:
        """Whether the failpoint is met before the thread that leads there ends."""
        deadline_s = time.monotonic() + timeout_s
        while not self._reached.wait(_POLL_S):
            if not thread.is_alive() or time.monotonic() > deadline_s:
                return self._reached.is_set()
        return True

    def release(self) -> None:
        """Let it go on."""
        self._released.set()


@dataclass(kw_only=True)
class Checkpoint:
    """What a life of the driver leaves to the next: which batches are done; a directory.

    `source` is the topic whose offsets the batches are said to have been read from.
    """

    directory: Path
    source: str
    done: int = 0
    query_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def begin(self, batch: int) -> None:
        """Spark writes down what a micro-batch is of before it plans it."""
        offsets = self.directory / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        ends = ",".join(f'"{p}":{end}' for p, end in self.ends(batch).items())
        metadata = f'{{"batchWatermarkMs":0,"batchTimestampMs":{batch},"conf":{{}}}}'
        text = f'v1\n{metadata}\n{{"{self.source}":{{{ends}}}}}'
        (offsets / str(batch)).write_text(text)

    def ends(self, batch: int) -> Mapping[int, int]:
        """Where the micro-batch ends in the source, by partition."""
        return {partition: 10 * (batch + 1) + partition for partition in range(TOPIC_PARTITIONS)}

    def end(self, batch: int) -> None:
        """Spark writes down that it has committed a micro-batch."""
        self.done = max(self.done, batch + 1)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is written, and where things go wrong by themselves.

    `failing` are tasks (life, batch, partition) whose rows fail in the middle; `attempts_max` is
    `spark.task.maxFailures`; `options_of` are options of one batch of one life alone.
    """

    sink: Sink
    batches: int
    attempts_max: int = 1
    failing: frozenset[tuple[int, int, int]] = frozenset()
    options_of: Mapping[tuple[int, int], Mapping[str, str]] = field(default_factory=dict)

    def rows(self, batch: int, partition: int) -> Rows:
        """The last task of the last batch has none."""
        if batch == self.batches - 1 and partition == TASKS - 1:
            return []
        return [
            (f"{batch}:{partition}:{row}".encode(), row % TOPIC_PARTITIONS)
            for row in range(3 + partition)
        ]

    def all_rows(self) -> list[tuple[bytes, int]]:
        """Of all batches: what has to be in the topic, once."""
        places = itertools.product(range(self.batches), range(TASKS))
        return [row for batch, partition in places for row in self.rows(batch, partition)]

    def sink_of(self, life: int, batch: int) -> Sink:
        """A batch job says which it is."""
        options = {**self.sink.options, **self.options_of.get((life, batch), {})}
        if not self.sink.is_streaming:
            options["batchId"] = str(batch)
        return replace(self.sink, options=options)


class Ending(Enum):
    """How a life of the driver ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    DIED = "died"


class _PartFailed(Exception):  # noqa: N818
    """A process died or raised; the message says which and what."""


class _DriverDied(Exception):  # noqa: N818
    """An order took the driver."""


@dataclass(kw_only=True)
class Life:
    """One life of the driver, from start to end. `met` are the failpoints of its processes.

    `lost_transactional_ids` are those that the sink reported as lost after their decision.

    `spares_stalled_tasks`: a task that is stalled counts as lost, and the next attempt is made.
    """

    server: ForkServer
    work: Work
    checkpoint: Checkpoint
    number: int
    assignments: Sequence[Assignment] = ()
    stall: Stall | None = None
    spares_stalled_tasks: bool = False
    until: int | None = None
    met: dict[Seat, tuple[str, ...]] = field(default_factory=dict)
    carried_out: list[Assignment] = field(default_factory=list)
    lost_transactional_ids: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)
    zombies: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._run_id = str(uuid.uuid4())
        self._task_attempt_ids = itertools.count(self.number)  # slots differ from life to life
        self._running: set[Process] = set()

    def run(self) -> Ending:
        """Batches from where the checkpoint stands, until all are done or something ends it."""
        until = self.work.batches if self.until is None else self.until
        try:
            for batch in range(self.checkpoint.done, until):
                self._batch(batch)
        except _PartFailed as failed:
            self._tell(f"the query failed: {failed}")
            return Ending.FAILED
        except _DriverDied:
            self._tell("the driver died")
            return Ending.DIED
        return Ending.COMPLETED

    def _batch(self, batch: int) -> None:
        self.checkpoint.begin(batch)
        sink = self.work.sink_of(self.number, batch)
        planning = Seat(life=self.number, batch=batch, kind=Kind.PLANNING)
        planned = self._part(planning, "plan", sink)
        messages: list[bytes | None] = [None] * TASKS
        try:
            self._tasks(batch, planned, messages)
            committing = Seat(life=self.number, batch=batch, kind=Kind.COMMIT)
            self._part(committing, "commit", sink, planned, tuple(messages), batch)
        except _PartFailed as failed:
            self._tell(f"batch {batch} is aborted: {failed}")
            aborting = Seat(life=self.number, batch=batch, kind=Kind.ABORT)
            self._part(aborting, "abort", sink, planned, tuple(messages), batch)
            raise
        self.checkpoint.end(batch)

    def _part(self, seat: Seat, part: str, *arguments: object) -> bytes:
        process = self._start(seat, part, arguments)
        return self._value(seat, self._outcome(seat, process))

    def _tasks(self, batch: int, planned: bytes, messages: list[bytes | None]) -> None:
        """All at once; the messages of those that succeed are filled in."""
        running = {
            partition: self._start_task(batch, planned, partition, attempt=0)
            for partition in range(TASKS)
        }
        failure: _PartFailed | None = None
        for partition, (first, process) in running.items():
            seat, attempt = first, process
            while True:
                try:
                    messages[partition] = self._value(seat, self._task_outcome(seat, attempt))
                    break
                except _PartFailed as failed:
                    if seat.attempt + 1 >= self.work.attempts_max:
                        failure = failed
                        break
                    self._tell(f"{failed}: the next attempt")
                    seat, attempt = self._start_task(
                        batch, planned, partition, attempt=seat.attempt + 1
                    )
        if failure is not None:
            raise failure

    def _start_task(
        self, batch: int, planned: bytes, partition: int, *, attempt: int
    ) -> tuple[Seat, Process]:
        seat = Seat(
            life=self.number, batch=batch, kind=Kind.TASK, partition=partition, attempt=attempt
        )
        fails = (self.number, batch, partition) in self.work.failing
        task = TaskPart(
            partition=partition,
            attempt=attempt,
            task_attempt_id=next(self._task_attempt_ids),
            properties=self._properties(batch),
            rows=self.work.rows(batch, partition),
            fails_after=2 if fails else None,
        )
        return seat, self._start(seat, "write", (planned, task))

    def _properties(self, batch: int) -> Mapping[str, str]:
        if not self.work.sink.is_streaming:
            return {}
        return {
            "spark.jobGroup.id": self._run_id,
            "sql.streaming.queryId": self.checkpoint.query_id,
            "streaming.sql.batchId": str(batch),
        }

    def _start(self, seat: Seat, part: str, arguments: tuple[object, ...]) -> Process:
        orders = tuple(each.order for each in self._assigned(seat))
        process = self.server.start(Call(part=part, arguments=arguments, orders=orders))
        self._running.add(process)
        return process

    def _assigned(self, seat: Seat) -> list[Assignment]:
        return [each for each in self.assignments if each.seat == seat]

    def _task_outcome(self, seat: Seat, process: Process) -> Outcome:
        """Of a task that is stalled, and is to be taken for lost, the end is not waited for."""
        if not self.spares_stalled_tasks or self.stall is None or not self._assigned(seat):
            return self._outcome(seat, process)
        thread = threading.Thread(target=self._outcome, args=(seat, process), daemon=True)
        thread.start()
        if not self.stall.await_reached(thread):
            raise NoAnswer(f"{seat} never met its failpoint")
        self.zombies.append(thread)
        return Died()

    def _outcome(self, seat: Seat, process: Process) -> Outcome:
        met: list[Assignment] = []

        def carry_out(process: Process, order: Order) -> None:
            assigned = next(each for each in self._assigned(seat) if each.order == order)
            met.append(assigned)
            self.carried_out.append(assigned)
            self._tell(f"{seat} {order.action.value} at {order.failpoint}")
            if order.action is Action.STALL:
                self._stalled(assigned, process)

        outcome = process.outcome(carry_out, timeout_s=STALL_TIMEOUT_S)
        self._running.discard(process)
        self.lost_transactional_ids |= process.lost_transactional_ids
        if any(each.takes_driver for each in met):
            for other in self._running:
                other.end()
                self.lost_transactional_ids |= other.lost_transactional_ids
            raise _DriverDied
        if not isinstance(outcome, Died):
            self.met[seat] = outcome.met
        return outcome

    def _stalled(self, assigned: Assignment, process: Process) -> None:
        if assigned.meanwhile is not None:
            assigned.meanwhile()
            process.wake()
        elif self.stall is not None:
            self.stall.hold(process)

    def _value(self, seat: Seat, outcome: Outcome) -> bytes:
        match outcome:
            case Finished(value=value):
                return value
            case Failed(kind=kind) as failed:
                self._tell(f"{seat} raised {failed.line}")
                raise _PartFailed(f"{seat} raised {kind}")
        raise _PartFailed(f"{seat} died")

    def _tell(self, text: str) -> None:
        self.story.append(f"life {self.number}: {text}")
