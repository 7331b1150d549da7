"""A trial, which runs a scenario in one or more driver runs and then calls the oracle.

Invariant: a trial passes only if all of these conditions are met:

- Every fault was injected, and no driver run failed without a fault.
- A consumer reads each row exactly once.
- `integration.sink_model` allows the steps and requests of every process.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
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
from integration.failpoints.scenarios import BATCH, BATCHES, Loss, Scenario, Wake
from integration.failpoints.sink_calls import Sink
from integration.sink_model.trace_validation import first_invalid
from pyspark_kafka.sink.exactly_once.names import GENERATIONS, parse_task_id

_FENCED: Final = 0
"""The Spark partition whose transaction is fenced."""

_SHORT: Final = {"transactionTimeout": "4s"}
"""A timeout that is long enough for a batch, but short enough to wait for."""

_OPEN: Final = "Ongoing"
_FENCED_SINK: Final = "plan.fence.init_producer_id.after"


class _Background:
    """A driver run in a thread."""

    def __init__(self, driver_run: DriverRun) -> None:
        self._driver_run = driver_run
        self._outcome: DriverOutcome | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._outcome = self._driver_run.run()

    def await_reached(self, stall: Stall) -> None:
        """Wait until a process of the driver run is stalled."""
        if not stall.await_reached(self._thread):
            raise NotReachedError("the failpoint was not reached")

    def join(self) -> DriverOutcome | None:
        """Wait until the driver run has ended, and return its outcome."""
        _join(self._thread)
        return self._outcome

    def join_tasks(self) -> None:
        """Wait for the stalled tasks that the driver run has abandoned."""
        for each in self._driver_run.zombies:
            _join(each)


def _join(thread: threading.Thread) -> None:
    thread.join(STALL_TIMEOUT_S)
    if thread.is_alive():
        raise DeliveryError("a driver run or a stalled task did not end in time")


class NotReachedError(AssertionError):
    """A case did not reach its failpoint, or did not lose rows as its scenario requires."""


class InvalidTraceError(AssertionError):
    """A process took a step or sent a request that `integration.sink_model` does not allow."""


@dataclass(kw_only=True)
class Trial:
    """A run of a scenario with faults in addition to the scenario's preconditions.

    `reached` and `timeline` cover all driver runs of the scenario. With `transactional=False`, the
    `transactionalId` option is omitted, so delivery is at least once.
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
        self._zombie_loses_rows = False
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

    def run_with_zombie(self, wake: Wake, *, lost_task: bool) -> None:
        """Stall a process until its successor has completed the batch.

        The only element of `injections` stalls the process. With `lost_task`, the successor is the
        next attempt of the task. Otherwise, it is the next driver run. `wake` determines when the
        stalled process (the zombie) wakes. If it wakes in a later batch, one more batch follows.
        The planning of that batch cleans up transactions that the zombie left open. Raises the same
        errors as `run`.
        """
        (injection,) = self.injections
        until = BATCH + self._batches_before_reuse(lost_task=lost_task)
        batches = until + (1 if wake is Wake.AFTERWARDS else 2)
        with self._prepared(batches=batches) as (workload, checkpoint, starts):
            for _ in range(injection.process_key.driver_run):
                self._next_run(workload, checkpoint)
            stall = Stall()
            zombie = _Background(
                self._driver_run(
                    workload,
                    checkpoint,
                    stall=stall,
                    abandons_stalled_tasks=lost_task,
                    until=until if lost_task else None,
                )
            )
            try:
                zombie.await_reached(stall)
                if not lost_task:
                    self._run_without_failure(workload, checkpoint, until=until)
                elif zombie.join() is not DriverOutcome.COMPLETED:
                    raise DeliveryError("the batch failed although Spark started another attempt")
                if wake is Wake.AFTERWARDS:
                    self._wake(stall, zombie)
                else:
                    self._wake_during_commit(workload, checkpoint, stall, zombie, wake)
            finally:
                stall.release()
            self._run_without_failure(workload, checkpoint)
            self._check(workload, checkpoint, starts)

    def _batches_before_reuse(self, *, lost_task: bool) -> int:
        """Return the number of batches from the zombie's batch to the batch in which it resumes.

        With `wraps`, both batches must use the same generation of transactional ids. The
        generations repeat after `GENERATIONS` epochs. Each batch raises the epoch by one or two,
        depending on the transaction version. If the successor is another driver run, the epoch is
        raised two more times: once by the stalled process and once by its successor.
        """
        if not self.scenario.wraps:
            return 1
        epochs = GENERATIONS - (0 if lost_task else 2)
        return epochs // self.lane.transaction_version()

    def _wake(self, stall: Stall, zombie: _Background) -> None:
        if stall.was_killed:
            raise NotReachedError("the zombie was killed because it was stalled for too long")
        self.timeline.append("the zombie wakes")
        stall.release()
        zombie.join()
        zombie.join_tasks()

    def _wake_during_commit(
        self,
        workload: Workload,
        checkpoint: Checkpoint,
        stall: Stall,
        zombie: _Background,
        wake: Wake,
    ) -> None:
        """Wake the zombie while the next driver run's first commit is stalled.

        The next driver run may fail if planning in the zombie's driver run has fenced the sink id,
        or if the zombie has fenced the transactional id of a task. Raises `DeliveryError` after any
        other failure.
        """
        holding = Stall()
        process_key = ProcessKey(
            driver_run=self._driver_run_count, batch=checkpoint.done, kind=ProcessKind.COMMIT
        )
        fault = InjectedFault(failpoint=wake.value, action=Action.STALL)
        current = _Background(
            self._driver_run(
                workload,
                checkpoint,
                until=checkpoint.done + 1,
                stall=holding,
                injections=[Injection(process_key=process_key, fault=fault)],
            )
        )
        try:
            current.await_reached(holding)
            if self.scenario.wraps:
                self._check_reuse()
            ended = set(self.reached)
            self._wake(stall, zombie)
        finally:
            holding.release()
        outcome = current.join()
        takes_over = self.scenario.wraps and self._takes_over()
        self._zombie_loses_rows = takes_over and wake is Wake.AFTER_DECISION
        if takes_over and outcome is DriverOutcome.COMPLETED:
            raise DeliveryError("a zombie has aborted a transaction, but its batch did not fail")
        may_fail = takes_over or self._has_fenced_since(ended)
        if outcome is not DriverOutcome.COMPLETED and not may_fail:
            raise DeliveryError("a zombie has failed a batch of the owner of the sink id")

    def _has_fenced_since(self, ended: Set[ProcessKey]) -> bool:
        """Return whether the zombie's driver run has fenced the sink id since the zombie woke up.

        `ended` contains the processes that ended before the zombie woke up.
        """
        (injection,) = self.injections
        for process_key in self.reached.keys() - ended:
            if process_key.driver_run == injection.process_key.driver_run:
                failpoints = self.reached[process_key]
                is_zombie = process_key == injection.process_key
                begin = failpoints.index(injection.fault.failpoint) + 1 if is_zombie else 0
                if _FENCED_SINK in failpoints[begin:]:
                    return True
        return False

    def _takes_over(self) -> bool:
        """Return whether the zombie fences transactional ids of tasks that it no longer owns.

        This happens if the zombie sends InitProducerId without checking the owner again. A sweep
        sends InitProducerId only with transaction version 1.
        """
        failpoint = self.injections[0].fault.failpoint
        is_sweep = failpoint.endswith("init_producer_ids.before")
        return failpoint.endswith("init_producer_id.before") or (
            is_sweep and self.lane.transaction_version() == 1
        )

    def _check_reuse(self) -> None:
        """Check that the transactional ids of open transactions have the zombie's generation.

        A new sink id has epoch 0. Each batch raises the epoch by 1 with transaction version 1, and
        by 2 with transaction version 2. Therefore, the generation of batch 1 equals the transaction
        version.
        """
        zombies = BATCH * self.lane.transaction_version()
        transactions = self.lane.transactions(f"{self._sink_id}/")
        open_ids = [parse_task_id(name) for name, state in transactions.items() if state == _OPEN]
        found = {task_id.generation for task_id in open_ids if task_id is not None}
        if found != {zombies}:
            raise NotReachedError(f"the generations {found} are in use instead of {zombies}")

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
                tasks=self.scenario.tasks,
                empty_tasks=self.scenario.empty_tasks,
                repeats_slots=self.scenario.wraps,
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

    def _run_to_the_end(self, workload: Workload, checkpoint: Checkpoint) -> None:
        failures = 0
        while checkpoint.done < workload.batches:
            failures += self._next_run(workload, checkpoint) is not DriverOutcome.COMPLETED
            allowed = sum(map(self._may_fail_a_run, self._injected)) + self.scenario.failures
            if failures > allowed:
                raise DeliveryError("a driver run failed without a fault")

    def _run_without_failure(
        self, workload: Workload, checkpoint: Checkpoint, *, until: int | None = None
    ) -> None:
        outcome = self._next_run(workload, checkpoint, until=until)
        if outcome is not DriverOutcome.COMPLETED:
            raise DeliveryError("a driver run failed because of a process of an earlier run")

    def _next_run(
        self, workload: Workload, checkpoint: Checkpoint, *, until: int | None = None
    ) -> DriverOutcome:
        outcome = self._driver_run(workload, checkpoint, until=until).run()
        loss = self.scenario.loss_between_runs
        if outcome is not DriverOutcome.COMPLETED and self._driver_run_count == 1 and loss:
            self._lose(loss)
        return outcome

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
            if state == _OPEN and task_id is not None and task_id.partition == _FENCED:
                self.lane.fence(transactional_id)

    @property
    def _expects_loss(self) -> bool:
        meanwhile = [precondition.meanwhile for precondition in self.scenario.preconditions]
        if self.scenario.is_refused:
            return False
        has_loss = self.scenario.loss_between_runs is not None or any(meanwhile)
        return has_loss or self._zombie_loses_rows

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
