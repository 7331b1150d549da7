"""A streaming query as Spark runs it: drivers, Python workers, task attempts, and a checkpoint.

The driver plans each micro-batch, runs its tasks, commits it, and records it in the checkpoint. If
anything fails, the driver calls `abort`, and the query is started again. The driver calls the real
functions of the sink. Each call runs in its own process, like Spark's Python workers. A killed
driver can leave task attempts behind. Two drivers can run at the same time.

Invariant: like Spark, a driver runs micro-batch N only if the checkpoint contains all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final, Protocol

import pyarrow as pa

from integration.simulation.sink.processes import KilledError, SimulatedProcess, current
from integration.simulation.sink.workload import Workload
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import ClientOptions, ExactlyOnce, SinkOptions
from pyspark_kafka.sink.exactly_once.abort import abort
from pyspark_kafka.sink.exactly_once.commit import commit
from pyspark_kafka.sink.exactly_once.messages import Task, TaskMessage
from pyspark_kafka.sink.exactly_once.planning import Plan, plan
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from pyspark_kafka.sink.exactly_once.task import write_task

SINK_ID: Final = "sink"
QUERY_ID: Final = "query"
GROUP_ID: Final = "group"
COMMIT_TOPIC: Final = "commits"
OUTPUT: Final = "out"
SOURCE: Final = TopicPartition("in", 0)

_ATTEMPTS_MAX: Final = 4
_RESTART_MS: Final = 300
_OPTIONS: Final = ClientOptions(bootstrap_servers="none:1", kafka={}, group_id="none")
_ROWS: Final = pa.schema([("value", pa.binary()), ("partition", pa.int32())])


class WorkerDiedError(Exception):
    """A Python worker was killed, and Spark's driver continues."""


class Machines(Protocol):
    """Starts processes and opens the clients that they use."""

    def start(
        self,
        name: str,
        main: Callable[[], object],
        *,
        owner: str,
        on_end: Callable[[], None] = ...,
    ) -> SimulatedProcess: ...

    def client(self) -> TransactionalClient:
        """Return a client for the current process."""

    def wall_clock_ms(self) -> int:
        """Return the time of the current process's clock."""

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Run an action, such as a restart, after a delay and outside any simulated process."""

    def violate(self, what: str) -> None:
        """Report the violation of an invariant."""

    def note(self, line: str) -> None:
        """Add a line to the trace."""


@dataclass(slots=True, kw_only=True)
class Query:
    """A query and its checkpoint. `completed` is the number of micro-batches in the checkpoint."""

    workload: Workload
    machines: Machines
    random: Random
    completed: int = 0
    drivers: list[Driver] = field(default_factory=list)
    task_attempt_ids: Iterator[int] = field(default_factory=count)

    @property
    def is_complete(self) -> bool:
        return self.completed == len(self.workload.batches)

    @property
    def is_running(self) -> bool:
        return any(not driver.process.is_ended for driver in self.drivers)

    @property
    def options(self) -> ExactlyOnce:
        return ExactlyOnce(
            transactional_id=SINK_ID,
            transaction_timeout_ms=self.workload.timeout_ms,
            commit_topic=COMMIT_TOPIC,
            group_id=GROUP_ID if self.workload.commits_offsets else None,
            checkpoint=None,
            batch_id=None,
            fail_on_replay_mismatch=True,
        )

    def start(self) -> None:
        """Start a driver."""
        self.drivers.append(Driver(self, len(self.drivers)))

    def restart(self) -> None:
        """Start a driver if none is running and the query is not complete."""
        if not self.is_running and not self.is_complete:
            self.start()

    def rows(self, batch_id: int, partition: int) -> list[bytes]:
        """Return the rows of a task."""
        count_of_rows = self.workload.batches[batch_id][partition]
        return [f"{batch_id}/{partition}/{number}".encode() for number in range(count_of_rows)]

    @property
    def expected(self) -> list[bytes]:
        """All rows, sorted."""
        return sorted(
            row
            for batch_id, tasks in enumerate(self.workload.batches)
            for partition in range(len(tasks))
            for row in self.rows(batch_id, partition)
        )


class Driver:
    """Spark's driver in one run of the query."""

    def __init__(self, query: Query, number: int) -> None:
        self.name = f"driver-{number}"
        self._query = query
        self._machines = query.machines
        self._children: list[SimulatedProcess] = []
        self.process = self._machines.start(
            self.name, self._main, owner=self.name, on_end=self._ended
        )

    def kill(self) -> None:
        """Kill the driver and its workers. Executors run on other machines and may keep running."""
        self.process.kill()
        for child in self._children:
            is_task = child.owner != self.name
            if not is_task or self._query.random.random() >= self._query.workload.zombie_chance:
                child.kill()

    def _ended(self) -> None:
        error = self.process.error
        self._machines.note(f"{self.name} ended: {type(error).__name__} {error or ''}")
        if not isinstance(error, Exception):
            self.kill()
        self._machines.later(_RESTART_MS, self._query.restart)

    def _main(self) -> None:
        query = self._query
        for batch_id in range(query.completed, len(query.workload.batches)):
            self._run(batch_id)
            if query.completed != batch_id:
                raise RuntimeError(f"the checkpoint already contains batch {batch_id}")
            query.completed += 1
            self._machines.note(f"{self.name} completed batch {batch_id}")

    def _run(self, batch_id: int) -> None:
        options = self._query.options
        planned = self._in_worker("plan", self._plan)
        task_count = len(self._query.workload.batches[batch_id])
        job = _Job(self, self._query, planned, batch_id)
        try:
            job.run()
            offsets = SourceOffsets(hash=f"{batch_id}", offsets={SOURCE: batch_id + 1})
            self._in_worker(
                "commit",
                lambda client: commit(
                    client,
                    options,
                    [job.messages[partition] for partition in range(task_count)],
                    offsets=offsets,
                    now_ms=self._machines.wall_clock_ms,
                ),
            )
        except Exception as error:
            self._machines.note(f"{self.name} fails: {type(error).__name__}: {error}")
            messages = [job.messages.get(partition) for partition in range(task_count)]
            self._in_worker("abort", lambda client: abort(client, options, messages))
            raise

    def _plan(self, client: TransactionalClient) -> Plan:
        """Plan a micro-batch. The group's committed offset must be the offset of a decision."""
        offset = None
        if self._query.workload.commits_offsets:
            offset = client.committed_offsets(GROUP_ID, [SOURCE])[SOURCE]
        planned = plan(client, self._query.options)
        last = planned.last.get(QUERY_ID)
        decided = 0 if last is None or last.batch_id is None else last.batch_id + 1
        if (offset or 0) > decided:
            self._machines.violate(f"group offset {offset}, but {decided} batches are decided")
        return planned

    def _in_worker(self, what: str, act: Callable[[TransactionalClient], Any]) -> Any:
        """Run a function of the sink in a Python worker, and wait for its result."""
        worker = self.start(f"{self.name}-{what}", act, owner=self.name)
        self.await_end([worker])
        if isinstance(worker.error, KilledError):
            raise WorkerDiedError(what)
        if worker.error is not None:
            raise worker.error
        return worker.result

    def start(
        self, name: str, act: Callable[[TransactionalClient], Any], *, owner: str
    ) -> SimulatedProcess:
        machines = self._machines

        def main() -> object:
            client = machines.client()
            try:
                return act(client)
            finally:
                client.close()

        child = machines.start(name, main, owner=owner, on_end=self.process.wake)
        self._children.append(child)
        return child

    def await_end(self, processes: Sequence[SimulatedProcess]) -> None:
        """Wait until one of the processes has ended."""
        self.process.wait_for(lambda: any(each.is_ended for each in processes), 1_000_000.0)


class _Job:
    """The tasks of one micro-batch."""

    def __init__(self, driver: Driver, query: Query, planned: Plan, batch_id: int) -> None:
        self.messages: dict[int, TaskMessage] = {}
        self._driver = driver
        self._query = query
        self._plan = planned
        self._batch_id = batch_id
        self._attempts: dict[int, int] = {}
        self._running: dict[SimulatedProcess, int] = {}

    def run(self) -> None:
        """Run the tasks until each of them has returned a message. Failed attempts are retried."""
        partitions = range(len(self._query.workload.batches[self._batch_id]))
        for partition in partitions:
            self._start(partition)
            if self._query.random.random() < self._query.workload.speculation_chance:
                self._start(partition)
        while len(self.messages) < len(partitions):
            self._driver.await_end(list(self._running))
            for process in [each for each in self._running if each.is_ended]:
                self._ended(process, self._running.pop(process))

    def _start(self, partition: int) -> None:
        query = self._query
        attempt = self._attempts.get(partition, 0)
        self._attempts[partition] = attempt + 1
        task = Task(
            query_id=QUERY_ID,
            batch_id=self._batch_id,
            run=self._driver.name,
            partition=partition,
            attempt=attempt,
            task_attempt_id=next(query.task_attempt_ids),
        )
        name = f"{self._driver.name}-batch-{self._batch_id}-task-{partition}-{attempt}"
        self._running[
            self._driver.start(
                name,
                lambda client: write_task(
                    self._rows(partition),
                    plan=self._plan,
                    task=task,
                    options=SinkOptions(client=_OPTIONS, topic=OUTPUT, exactly_once=query.options),
                    client=client,
                    now_ms=query.machines.wall_clock_ms,
                ),
                owner=name,
            )
        ] = partition

    def _ended(self, process: SimulatedProcess, partition: int) -> None:
        if partition in self.messages:
            return
        if process.error is None:
            assert isinstance(process.result, TaskMessage)
            self.messages[partition] = process.result
        elif partition in self._running.values():
            return
        elif self._attempts[partition] >= _ATTEMPTS_MAX:
            raise WorkerDiedError(f"task {partition}: {process.error}")
        else:
            self._start(partition)

    def _rows(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, with pauses between them."""
        process = current()
        assert process is not None
        for number, row in enumerate(self._query.rows(self._batch_id, partition)):
            process.sleep(self._query.random.randint(0, 60) / 1_000)
            to = (partition + number) % self._query.workload.partitions
            yield pa.RecordBatch.from_arrays(
                [pa.array([row], pa.binary()), pa.array([to], pa.int32())], schema=_ROWS
            )
