"""A trial: runs one scenario to its end with successive driver runs, and then calls the oracle.

Invariant: a trial passes only if every fault was injected, no driver run failed without a fault,
a consumer reads each row once, and the model allows the steps and requests of every process.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from integration.failpoints import oracle
from integration.failpoints.driver import (
    STALL_TIMEOUT_S,
    Checkpoint,
    DriverOutcome,
    DriverRun,
    Injection,
    ProcessKey,
    ProcessKind,
    Stall,
    Workload,
)
from integration.failpoints.hook import Action, InjectedFault
from integration.failpoints.lanes import PREFIXES, Lane
from integration.failpoints.oracle import DeliveryError
from integration.failpoints.processes import ForkServer
from integration.failpoints.scenarios import BATCH, BATCHES, Loss, Scenario
from integration.failpoints.sink_calls import Sink
from integration.sink_model.trace_validation import first_invalid
from pyspark_kafka.sink.exactly_once.names import parse_task_id

_FENCED: Final = 0
"""The Spark partition whose transaction is fenced."""

_SHORT: Final = {"transactionTimeout": "4s"}
"""A timeout that is long enough for a batch, but short enough to wait for."""

_BEFORE_WAKING: Final = BATCH + 1
"""The number of batches that are completed, including its own, before the zombie wakes."""


class NotReachedError(AssertionError):
    """A case did not reach its failpoint, or did not lose rows as its scenario requires."""


class InvalidTraceError(AssertionError):
    """A process took a step or sent a request that `integration.sink_model` does not allow."""


@dataclass(kw_only=True)
class Trial:
    """A scenario on a lane, with injections in addition to its preconditions.

    `reached` and `timeline` cover all driver runs. With `transactional=False`, the
    `transactionalId` option is omitted, so that delivery is at least once.
    """

    server: ForkServer
    lane: Lane
    scenario: Scenario
    injections: Sequence[Injection] = ()
    attempts_max: int = 1
    transactional: bool = True
    reached: dict[ProcessKey, tuple[str, ...]] = field(default_factory=dict)
    timeline: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sink_id = f"{PREFIXES.sink_ids}{uuid.uuid4().hex[:12]}"
        self._driver_run_count = 0
        self._failures = 0
        self._injected: list[Injection] = []
        self._lost_transactional_ids: set[str] = set()
        self._preconditions = [
            Injection(
                process_key=ProcessKey(driver_run=0, batch=BATCH, kind=precondition.kind),
                fault=InjectedFault(failpoint=precondition.failpoint, action=precondition.action),
                kills_driver=precondition.kills_driver,
                meanwhile=precondition.meanwhile and partial(self._lose, precondition.meanwhile),
            )
            for precondition in self.scenario.preconditions
        ]

    def run(self) -> None:
        """Run the driver until all batches are done.

        Raises `DeliveryError`, `NotSettledError`, `NotReachedError` or `InvalidTraceError`.
        """
        with self._prepared() as (workload, checkpoint, starts):
            self._run_to_the_end(workload, checkpoint)
            self._check(workload, checkpoint, starts)

    def run_with_zombie(self, *, lost_task: bool, during_next_batch: bool) -> None:
        """Stall the process of the only injection until its successor has completed the batch.

        The successor is the next attempt of the task with `lost_task`, and the next driver run
        otherwise. With `during_next_batch`, the zombie continues while the commit of the next batch
        is stalled, and the planning of one more batch cleans up transactions that the zombie left
        open. Raises the errors of `run`.
        """
        with self._prepared(batches=BATCHES + during_next_batch) as (workload, checkpoint, starts):
            stall = Stall()
            zombie = self._driver_run(
                workload,
                checkpoint,
                stall=stall,
                abandons_stalled_tasks=lost_task,
                until=_BEFORE_WAKING if lost_task else None,
            )
            endings: list[DriverOutcome] = []
            thread = threading.Thread(target=lambda: endings.append(zombie.run()), daemon=True)
            thread.start()
            try:
                if not stall.await_reached(thread):
                    raise NotReachedError("the failpoint was not reached")
                if lost_task:
                    thread.join(STALL_TIMEOUT_S)
                    if endings != [DriverOutcome.COMPLETED]:
                        raise DeliveryError(
                            "the batch failed although Spark started another attempt"
                        )
                else:
                    self._run_to_the_end(workload, checkpoint, until=_BEFORE_WAKING)
                if during_next_batch:
                    with self._during_next_commit(workload, checkpoint):
                        self._wake(stall, zombie, thread)
                else:
                    self._wake(stall, zombie, thread)
            finally:
                stall.release()
            # A failure of the zombie is allowed.
            self._failures = 0
            self._run_to_the_end(workload, checkpoint)
            self._check(workload, checkpoint, starts)

    def _wake(self, stall: Stall, zombie: DriverRun, thread: threading.Thread) -> None:
        if stall.was_killed:
            raise NotReachedError("the zombie was killed because it was stalled for too long")
        self.timeline.append("the zombie wakes")
        stall.release()
        for each in (thread, *zombie.zombies):
            each.join(STALL_TIMEOUT_S)
            if each.is_alive():
                raise DeliveryError("the zombie did not end in time")

    @contextmanager
    def _during_next_commit(self, workload: Workload, checkpoint: Checkpoint) -> Iterator[None]:
        """Stall the next driver run's first commit between its verification and its decision."""
        stall = Stall()
        process_key = ProcessKey(
            driver_run=self._driver_run_count, batch=checkpoint.done, kind=ProcessKind.COMMIT
        )
        fault = InjectedFault(failpoint="commit.verify.after", action=Action.STALL)
        driver_run = self._driver_run(
            workload,
            checkpoint,
            until=BATCHES,
            stall=stall,
            injections=[Injection(process_key=process_key, fault=fault)],
        )
        thread = threading.Thread(target=driver_run.run, daemon=True)
        thread.start()
        try:
            if not stall.await_reached(thread):
                raise NotReachedError("the successor's commit did not reach its failpoint")
            yield
        finally:
            stall.release()
            thread.join(STALL_TIMEOUT_S)

    @contextmanager
    def _prepared(
        self, *, batches: int = BATCHES
    ) -> Iterator[tuple[Workload, Checkpoint, Sequence[int]]]:
        starts = self.lane.prepare(fresh_commit_topic=self.scenario.fresh_commit_topic)
        with tempfile.TemporaryDirectory(prefix="failpoint-") as directory:
            sink = Sink(options=self._options(directory), is_streaming=self.scenario.is_streaming)
            workload = Workload(
                sink=sink,
                batches=batches,
                attempts_max=self.attempts_max,
                failing=frozenset((0, BATCH, task) for task in self.scenario.fails),
                options_of={(0, BATCH): _SHORT} if self.scenario.short_transactions else {},
            )
            checkpoint = Checkpoint(directory=Path(directory), source=self.lane.topic)
            yield workload, checkpoint, starts

    def _options(self, checkpoint: str) -> Mapping[str, str]:
        options = {**self.lane.connection, "topic": self.lane.topic}
        if not self.transactional:
            return options
        options |= {"transactionalId": self._sink_id, "commitTopic": self.lane.commit_topic}
        if self.scenario.commits_offsets:
            options |= {
                "commitOffsets": "true",
                "kafka.group.id": self._group_id,
                "checkpointLocation": checkpoint,
            }
        return {**options, **self.scenario.options}

    @property
    def _group_id(self) -> str:
        return f"{PREFIXES.groups}{self._sink_id}"

    def _run_to_the_end(
        self, workload: Workload, checkpoint: Checkpoint, *, until: int | None = None
    ) -> None:
        until = workload.batches if until is None else until
        while checkpoint.done < until:
            ending = self._driver_run(workload, checkpoint, until=until).run()
            allowed = sum(map(self._may_fail_a_run, self._injected)) + self.scenario.failures
            self._failures += ending is not DriverOutcome.COMPLETED
            if self._failures > allowed:
                raise DeliveryError("a driver run failed without a fault")
            loss = self.scenario.loss_between_runs
            if self._failures and self._driver_run_count == 1 and loss is not None:
                self._lose(loss)

    def _may_fail_a_run(self, injection: Injection) -> bool:
        return self.attempts_max == 1 or injection.process_key.kind is not ProcessKind.TASK

    def _driver_run(
        self,
        workload: Workload,
        checkpoint: Checkpoint,
        *,
        until: int | None = None,
        stall: Stall | None = None,
        abandons_stalled_tasks: bool = False,
        injections: Sequence[Injection] = (),
    ) -> DriverRun:
        number = self._driver_run_count
        self._driver_run_count += 1
        return DriverRun(
            server=self.server,
            workload=workload,
            checkpoint=checkpoint,
            number=number,
            injections=(*self.injections, *self._preconditions, *injections),
            stall=stall,
            abandons_stalled_tasks=abandons_stalled_tasks,
            until=until,
            timeline=self.timeline,
            reached=self.reached,
            injected=self._injected,
            lost_transactional_ids=self._lost_transactional_ids,
        )

    def _lose(self, loss: Loss) -> None:
        self.timeline.append(loss.value)
        if loss is Loss.TIMED_OUT:
            self.lane.await_timeout(f"{self._sink_id}/")
            return
        for transactional_id, state in self.lane.transactions(f"{self._sink_id}/").items():
            task_id = parse_task_id(transactional_id)
            if state == "Ongoing" and task_id is not None and task_id.partition == _FENCED:
                self.lane.fence(transactional_id)

    @property
    def _expects_loss(self) -> bool:
        meanwhile = [precondition.meanwhile for precondition in self.scenario.preconditions]
        if self.scenario.is_refused:
            return False
        return self.scenario.loss_between_runs is not None or any(meanwhile)

    def _check(self, workload: Workload, checkpoint: Checkpoint, starts: Sequence[int]) -> None:
        for injection in (*self._preconditions, *self.injections):
            if injection not in self._injected:
                raise NotReachedError(
                    f"{injection.process_key} did not reach {injection.fault.failpoint}"
                )
        for process_key, failpoints in self.reached.items():
            invalid = first_invalid(failpoints)
            if invalid is not None:
                raise InvalidTraceError(f"{process_key}: the model does not allow {invalid}")
        has_lost = bool(self._lost_transactional_ids)
        if has_lost and not self._expects_loss:
            raise DeliveryError("decided rows were lost, but the scenario should not lose any")
        if self._expects_loss and not has_lost:
            raise NotReachedError("no decided rows were lost, but the scenario should lose some")
        if self.transactional:
            oracle.check(self.lane, self._sink_id, workload, starts)
        else:
            oracle.check_rows(self.lane.read(starts), workload.all_rows())
        if self.scenario.commits_offsets:
            oracle.check_offsets(self.lane, self._group_id, checkpoint)
