"""Simulates Spark's driver: successive micro-batches or batch jobs, tasks, and restarts.

Runs `sink_calls` in the same order and with the same ids as Spark. Handles failures as Spark does:
it retries a task or fails its batch, aborts a batch whose tasks or commit failed, and restarts a
failed query from its checkpoint. Invariant: successive runs of the driver share only the
checkpoint.
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

from integration.failpoints.hook import Action, InjectedFault
from integration.failpoints.messages import Call, Died, Failed, Finished, Outcome
from integration.failpoints.processes import ForkServer, Process, ProcessTimeoutError
from integration.failpoints.sink_calls import Sink, TaskInput
from pyspark_kafka.sink.exactly_once.names import SLOTS

TOPIC_PARTITIONS: Final = 2
STALL_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.005

Rows = Sequence[tuple[bytes, int]]


class ProcessKind(Enum):
    """The kind of work that a Spark process does."""

    PLANNING = "planning"
    TASK = "task"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKey:
    """The key of a process: driver run, batch, kind and, for a task, partition and attempt."""

    driver_run: int
    batch: int
    kind: ProcessKind
    partition: int = 0
    attempt: int = 0

    def __str__(self) -> str:
        task = f" {self.partition}.{self.attempt}" if self.kind is ProcessKind.TASK else ""
        return f"{self.kind.value}{task} of batch {self.batch}, driver run {self.driver_run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault for one process.

    With `kills_driver`, the fault also kills the driver and all other processes of the driver.
    `meanwhile` is called while the process is stalled. After the call, the process continues.
    """

    process_key: ProcessKey
    fault: InjectedFault
    kills_driver: bool = False
    meanwhile: Callable[[], None] | None = None


class Stall:
    """A process that is stopped at a failpoint until `release` is called."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()
        self.was_killed = False

    def hold(self, process: Process) -> None:
        """Stop the process until it is released; kill it after a timeout."""
        process.stop()
        self._reached.set()
        if not self._released.wait(STALL_TIMEOUT_S):
            self.was_killed = True
            process.kill()
            return
        process.wake()

    def await_reached(self, thread: threading.Thread, *, timeout_s: float = 60.0) -> bool:
        """Wait until the failpoint is reached.

        Returns False after a timeout, or if the thread that runs the process ends first.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._reached.wait(_POLL_S):
            if not thread.is_alive() or time.monotonic() > deadline_s:
                return self._reached.is_set()
        return True

    def release(self) -> None:
        """Let the process continue."""
        self._released.set()


@dataclass(kw_only=True)
class Checkpoint:
    """The checkpoint of a query: a directory and the number of completed batches.

    `source` is the topic whose offsets the checkpoint contains.
    """

    directory: Path
    source: str
    done: int = 0
    query_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def begin(self, batch: int) -> None:
        """Write `offsets/N`, as Spark does before it plans a micro-batch."""
        offsets = self.directory / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        ends = ",".join(f'"{p}":{end}' for p, end in self.ends(batch).items())
        metadata = f'{{"batchWatermarkMs":0,"batchTimestampMs":{batch},"conf":{{}}}}'
        text = f'v1\n{metadata}\n{{"{self.source}":{{{ends}}}}}'
        (offsets / str(batch)).write_text(text)

    def ends(self, batch: int) -> Mapping[int, int]:
        """Return the end offsets of a micro-batch in the source topic, by partition."""
        return {partition: 10 * (batch + 1) + partition for partition in range(TOPIC_PARTITIONS)}

    def end(self, batch: int) -> None:
        """Record that a micro-batch is committed."""
        self.done = max(self.done, batch + 1)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The batches to write, and the tasks that fail without an injected fault.

    `tasks` is the number of tasks per batch. `empty_tasks` contains the tasks without rows.
    `failing` contains tasks (driver run, batch, partition) that fail after they have written some
    of their rows. `attempts_max` is `spark.task.maxFailures`. `options_of` maps a driver run and a
    batch to additional options of the batch. With `repeats_slots`, the first attempt of a task uses
    the same transactional id slot in every batch. In Spark, this can happen if other jobs run tasks
    between the batches.
    """

    sink: Sink
    batches: int
    tasks: int = 2
    empty_tasks: frozenset[int] = frozenset()
    repeats_slots: bool = False
    attempts_max: int = 1
    failing: frozenset[tuple[int, int, int]] = frozenset()
    options_of: Mapping[tuple[int, int], Mapping[str, str]] = field(default_factory=dict)

    def rows(self, batch: int, partition: int) -> Rows:
        """Return the rows of a task.

        The tasks in `empty_tasks` and the last task of the last batch have no rows.
        """
        is_last = batch == self.batches - 1 and partition == self.tasks - 1
        if is_last or partition in self.empty_tasks:
            return []
        return [
            (f"{batch}:{partition}:{row}".encode(), row % TOPIC_PARTITIONS)
            for row in range(3 + partition)
        ]

    def all_rows(self) -> list[tuple[bytes, int]]:
        """Return the rows of all batches. The topic must contain each row exactly once."""
        tasks = itertools.product(range(self.batches), range(self.tasks))
        return [row for batch, partition in tasks for row in self.rows(batch, partition)]

    def sink_of(self, driver_run: int, batch: int) -> Sink:
        """Return the sink of a batch. The sink of a batch job has the `batchId` option."""
        options = {**self.sink.options, **self.options_of.get((driver_run, batch), {})}
        if not self.sink.is_streaming:
            options["batchId"] = str(batch)
        return replace(self.sink, options=options)


class DriverOutcome(Enum):
    """How a driver run ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    DIED = "died"


class _ProcessFailedError(Exception):
    """A process was killed or raised an error."""


class _DriverDiedError(Exception):
    """A fault killed the driver."""


@dataclass(kw_only=True)
class DriverRun:
    """One run of the simulated Spark driver.

    `reached` contains the failpoints that the processes of the driver reached.
    `lost_transactional_ids` contains the ids of decided transactions that the sink reported as
    lost. With `abandons_stalled_tasks`, the driver treats a stalled task attempt as lost and starts
    another attempt of the task.
    """

    server: ForkServer
    workload: Workload
    checkpoint: Checkpoint
    number: int
    injections: Sequence[Injection] = ()
    stall: Stall | None = None
    abandons_stalled_tasks: bool = False
    until: int | None = None
    reached: dict[ProcessKey, tuple[str, ...]] = field(default_factory=dict)
    injected: list[Injection] = field(default_factory=list)
    lost_transactional_ids: set[str] = field(default_factory=set)
    timeline: list[str] = field(default_factory=list)
    zombies: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._run_id = str(uuid.uuid4())
        # Each run starts with a different slot.
        self._next_task_attempt_id = self.number
        self._running: set[Process] = set()

    def run(self) -> DriverOutcome:
        """Run the uncompleted batches in order until all are completed or the run fails."""
        until = self.workload.batches if self.until is None else self.until
        try:
            for batch in range(self.checkpoint.done, until):
                self._batch(batch)
        except _ProcessFailedError as failed:
            self._log(f"the query failed: {failed}")
            return DriverOutcome.FAILED
        except _DriverDiedError:
            self._log("the driver died")
            return DriverOutcome.DIED
        return DriverOutcome.COMPLETED

    def _batch(self, batch: int) -> None:
        self.checkpoint.begin(batch)
        sink = self.workload.sink_of(self.number, batch)
        planning = ProcessKey(driver_run=self.number, batch=batch, kind=ProcessKind.PLANNING)
        planned = self._call(planning, "plan", sink)
        messages: list[bytes | None] = [None] * self.workload.tasks
        try:
            self._tasks(batch, planned, messages)
            committing = ProcessKey(driver_run=self.number, batch=batch, kind=ProcessKind.COMMIT)
            self._call(committing, "commit", sink, planned, tuple(messages), batch)
        except _ProcessFailedError as failed:
            self._log(f"batch {batch} is aborted: {failed}")
            aborting = ProcessKey(driver_run=self.number, batch=batch, kind=ProcessKind.ABORT)
            self._call(aborting, "abort", sink, planned, tuple(messages), batch)
            raise
        self.checkpoint.end(batch)

    def _call(self, process_key: ProcessKey, function: str, *arguments: object) -> bytes:
        process = self._start(process_key, function, arguments)
        return self._value(process_key, self._outcome(process_key, process))

    def _tasks(self, batch: int, planned: bytes, messages: list[bytes | None]) -> None:
        """Run all tasks in parallel, and store the messages of successful tasks in `messages`."""
        if self.workload.repeats_slots:
            self._next_task_attempt_id += -self._next_task_attempt_id % SLOTS
        running = {
            partition: self._start_task(batch, planned, partition, attempt=0)
            for partition in range(self.workload.tasks)
        }
        failure: _ProcessFailedError | None = None
        for partition, (first, process) in running.items():
            process_key, attempt = first, process
            while True:
                try:
                    messages[partition] = self._value(
                        process_key, self._task_outcome(process_key, attempt)
                    )
                    break
                except _ProcessFailedError as failed:
                    if process_key.attempt + 1 >= self.workload.attempts_max:
                        failure = failed
                        break
                    self._log(f"{failed}: Spark starts the next attempt")
                    process_key, attempt = self._start_task(
                        batch, planned, partition, attempt=process_key.attempt + 1
                    )
        if failure is not None:
            raise failure

    def _start_task(
        self, batch: int, planned: bytes, partition: int, *, attempt: int
    ) -> tuple[ProcessKey, Process]:
        process_key = ProcessKey(
            driver_run=self.number,
            batch=batch,
            kind=ProcessKind.TASK,
            partition=partition,
            attempt=attempt,
        )
        fails = (self.number, batch, partition) in self.workload.failing
        task = TaskInput(
            partition=partition,
            attempt=attempt,
            task_attempt_id=self._next_task_attempt_id,
            properties=self._properties(batch),
            rows=self.workload.rows(batch, partition),
            fails_after=2 if fails else None,
        )
        self._next_task_attempt_id += 1
        return process_key, self._start(process_key, "write", (planned, task))

    def _properties(self, batch: int) -> Mapping[str, str]:
        if not self.workload.sink.is_streaming:
            return {}
        return {
            "spark.jobGroup.id": self._run_id,
            "sql.streaming.queryId": self.checkpoint.query_id,
            "streaming.sql.batchId": str(batch),
        }

    def _start(
        self, process_key: ProcessKey, function: str, arguments: tuple[object, ...]
    ) -> Process:
        faults = tuple(each.fault for each in self._injections(process_key))
        process = self.server.start(Call(function=function, arguments=arguments, faults=faults))
        self._running.add(process)
        return process

    def _injections(self, process_key: ProcessKey) -> list[Injection]:
        return [each for each in self.injections if each.process_key == process_key]

    def _task_outcome(self, process_key: ProcessKey, process: Process) -> Outcome:
        """Return the outcome of a task. Do not wait for a stalled task that is treated as lost."""
        if (
            not self.abandons_stalled_tasks
            or self.stall is None
            or not self._injections(process_key)
        ):
            return self._outcome(process_key, process)
        thread = threading.Thread(target=self._outcome, args=(process_key, process), daemon=True)
        thread.start()
        if not self.stall.await_reached(thread):
            raise ProcessTimeoutError(f"{process_key} did not reach its failpoint")
        self.zombies.append(thread)
        return Died()

    def _outcome(self, process_key: ProcessKey, process: Process) -> Outcome:
        reached: list[Injection] = []

        def inject(process: Process, fault: InjectedFault) -> None:
            injection = next(each for each in self._injections(process_key) if each.fault == fault)
            reached.append(injection)
            self.injected.append(injection)
            self._log(f"{process_key} {fault.action.value} at {fault.failpoint}")
            if fault.action is Action.STALL:
                self._stalled(injection, process)

        outcome = process.outcome(inject, timeout_s=STALL_TIMEOUT_S)
        self._running.discard(process)
        self.lost_transactional_ids |= process.lost_transactional_ids
        if any(each.kills_driver for each in reached):
            for other in self._running:
                other.end()
                self.lost_transactional_ids |= other.lost_transactional_ids
            raise _DriverDiedError
        if not isinstance(outcome, Died):
            self.reached[process_key] = outcome.reached
        return outcome

    def _stalled(self, injection: Injection, process: Process) -> None:
        if injection.meanwhile is not None:
            injection.meanwhile()
            process.wake()
        elif self.stall is not None:
            self.stall.hold(process)

    def _value(self, process_key: ProcessKey, outcome: Outcome) -> bytes:
        match outcome:
            case Finished(value=value):
                return value
            case Failed(kind=kind) as failed:
                self._log(f"{process_key} raised {failed.line}")
                raise _ProcessFailedError(f"{process_key} raised {kind}")
        raise _ProcessFailedError(f"{process_key} died")

    def _log(self, text: str) -> None:
        self.timeline.append(f"driver run {self.number}: {text}")
