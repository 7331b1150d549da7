"""One scenario run to its end: lives of the driver one after another, and the verdict.

Purpose: `Trial`. Invariant: it ends well only if every order was carried out, no life failed without
a reason, and a reader then sees each row once. What it must not know: which orders there are to try.
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

from integration.failpoints import verdict
from integration.failpoints.driver import (
    STALL_TIMEOUT_S,
    Assignment,
    Checkpoint,
    Ending,
    Kind,
    Life,
    Seat,
    Stall,
    Work,
)
from integration.failpoints.hook import Action, Order
from integration.failpoints.lanes import Lane
from integration.failpoints.parts import Sink
from integration.failpoints.processes import ForkServer
from integration.failpoints.scenarios import BATCH, BATCHES, Loss, Scenario
from integration.failpoints.verdict import Wrong
from pyspark_kafka.sink.exactly_once.names import parse_task_id

_FENCED: Final = 0
"""The Spark partition whose task loses its transaction."""

_SHORT: Final = {"transactionTimeout": "4s"}
"""Enough for a batch, and not long to wait."""

_BEFORE_WAKING: Final = BATCH + 1
"""How far the successor of a zombie gets before that wakes: the batch of both is done."""


class NotMet(AssertionError):  # noqa: N818
    """A failpoint was not met where a recorded run had met it."""


@dataclass(kw_only=True)
class Trial:
    """A scenario on a lane, with orders beside those of its premises.

    `met` and `story` are of all lives. `transactional` False leaves out the option that makes
    writes exactly once.
    """

    server: ForkServer
    lane: Lane
    scenario: Scenario
    assignments: Sequence[Assignment] = ()
    attempts_max: int = 1
    transactional: bool = True
    met: dict[Seat, tuple[str, ...]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._x = f"x-{uuid.uuid4().hex[:12]}"
        self._lives = 0
        self._failures = 0
        self._carried_out: list[Assignment] = []
        self._lost_transactional_ids: set[str] = set()
        self._premises = [
            Assignment(
                seat=Seat(life=0, batch=BATCH, kind=premise.kind),
                order=Order(failpoint=premise.failpoint, action=premise.action),
                takes_driver=premise.with_driver,
                meanwhile=premise.meanwhile and partial(self._lose, premise.meanwhile),
            )
            for premise in self.scenario.premises
        ]

    def run(self) -> None:
        """Lives until all batches are done. Raises `Wrong`, `NotSettled` or `NotMet`."""
        with self._begun() as (work, checkpoint, starts):
            self._live_to_the_end(work, checkpoint)
            self._judge(work, checkpoint, starts)

    def run_with_zombie(self, *, lost_task: bool, amid: bool) -> None:
        """The process of the one order stalls and wakes when its successor has done the batch.

        `lost_task`: its successor is the next attempt at the task, else the next life. `amid`: the
        commit of the batch after stalls in its turn while the zombie does what it does. What the
        zombie has left open in the end is cleaned up by the planning of one more batch. Raises as
        `run` does.
        """
        with self._begun(batches=BATCHES + amid) as (work, checkpoint, starts):
            stall = Stall()
            zombie = self._life(
                work,
                checkpoint,
                stall=stall,
                spares_stalled_tasks=lost_task,
                until=_BEFORE_WAKING if lost_task else None,
            )
            endings: list[Ending] = []
            thread = threading.Thread(target=lambda: endings.append(zombie.run()), daemon=True)
            thread.start()
            try:
                if not stall.await_reached(thread):
                    raise NotMet("the failpoint was not met")
                if lost_task:
                    thread.join(STALL_TIMEOUT_S)
                    if endings != [Ending.COMPLETED]:
                        raise Wrong("the batch failed, though another attempt was made")
                else:
                    self._live_to_the_end(work, checkpoint, until=_BEFORE_WAKING)
                if amid:
                    with self._amid_a_batch(work, checkpoint):
                        self._wake(stall, zombie, thread)
                else:
                    self._wake(stall, zombie, thread)
            finally:
                stall.release()
            # Whatever the zombie ended with is its own affair.
            self._failures = 0
            self._live_to_the_end(work, checkpoint)
            self._judge(work, checkpoint, starts)

    def _wake(self, stall: Stall, zombie: Life, thread: threading.Thread) -> None:
        if stall.was_killed:
            raise NotMet("the zombie was killed: it stood too long")
        self.story.append("the zombie wakes")
        stall.release()
        for each in (thread, *zombie.zombies):
            each.join(STALL_TIMEOUT_S)
            if each.is_alive():
                raise Wrong("the zombie did not come to an end")

    @contextmanager
    def _amid_a_batch(self, work: Work, checkpoint: Checkpoint) -> Iterator[None]:
        """The next life's first commit stands between its verification and its decision."""
        stall = Stall()
        seat = Seat(life=self._lives, batch=checkpoint.done, kind=Kind.COMMIT)
        order = Order(failpoint="commit.verify.after", action=Action.STALL)
        life = self._life(
            work,
            checkpoint,
            until=BATCHES,
            stall=stall,
            assignments=[Assignment(seat=seat, order=order)],
        )
        thread = threading.Thread(target=life.run, daemon=True)
        thread.start()
        try:
            if not stall.await_reached(thread):
                raise NotMet("the successor was not in the middle of a batch")
            yield
        finally:
            stall.release()
            thread.join(STALL_TIMEOUT_S)

    @contextmanager
    def _begun(self, *, batches: int = BATCHES) -> Iterator[tuple[Work, Checkpoint, Sequence[int]]]:
        starts = self.lane.prepare(fresh_commit_topic=self.scenario.fresh_commit_topic)
        with tempfile.TemporaryDirectory(prefix="failpoint-") as directory:
            sink = Sink(options=self._options(directory), is_streaming=self.scenario.is_streaming)
            work = Work(
                sink=sink,
                batches=batches,
                attempts_max=self.attempts_max,
                failing=frozenset((0, BATCH, task) for task in self.scenario.fails),
                options_of={(0, BATCH): _SHORT} if self.scenario.short_transactions else {},
            )
            checkpoint = Checkpoint(directory=Path(directory), source=self.lane.topic)
            yield work, checkpoint, starts

    def _options(self, checkpoint: str) -> Mapping[str, str]:
        options = {
            "kafka.bootstrap.servers": self.lane.bootstrap_servers,
            "topic": self.lane.topic,
        }
        if not self.transactional:
            return options
        options |= {"transactionalId": self._x, "commitTopic": self.lane.commit_topic}
        if self.scenario.commits_offsets:
            options |= {
                "commitOffsets": "true",
                "kafka.group.id": self._group_id,
                "checkpointLocation": checkpoint,
            }
        return {**options, **self.scenario.options}

    @property
    def _group_id(self) -> str:
        return f"group-{self._x}"

    def _live_to_the_end(
        self, work: Work, checkpoint: Checkpoint, *, until: int | None = None
    ) -> None:
        until = work.batches if until is None else until
        while checkpoint.done < until:
            ending = self._life(work, checkpoint, until=until).run()
            allowed = sum(map(self._may_fail_a_life, self._carried_out)) + self.scenario.failures
            self._failures += ending is not Ending.COMPLETED
            if self._failures > allowed:
                raise Wrong("a life of the driver failed with nothing that befell it")
            loss = self.scenario.loss_between_lives
            if self._failures and self._lives == 1 and loss is not None:
                self._lose(loss)

    def _may_fail_a_life(self, assigned: Assignment) -> bool:
        return self.attempts_max == 1 or assigned.seat.kind is not Kind.TASK

    def _life(
        self,
        work: Work,
        checkpoint: Checkpoint,
        *,
        until: int | None = None,
        stall: Stall | None = None,
        spares_stalled_tasks: bool = False,
        assignments: Sequence[Assignment] = (),
    ) -> Life:
        number = self._lives
        self._lives += 1
        return Life(
            server=self.server,
            work=work,
            checkpoint=checkpoint,
            number=number,
            assignments=(*self.assignments, *self._premises, *assignments),
            stall=stall,
            spares_stalled_tasks=spares_stalled_tasks,
            until=until,
            story=self.story,
            met=self.met,
            carried_out=self._carried_out,
            lost_transactional_ids=self._lost_transactional_ids,
        )

    def _lose(self, loss: Loss) -> None:
        self.story.append(loss.value)
        if loss is Loss.TIMED_OUT:
            self.lane.await_timeout(f"{self._x}/")
            return
        for transactional_id, state in self.lane.transactions(f"{self._x}/").items():
            task_id = parse_task_id(transactional_id)
            if state == "Ongoing" and task_id is not None and task_id.partition == _FENCED:
                self.lane.fence(transactional_id)

    @property
    def _expects_loss(self) -> bool:
        meanwhile = [premise.meanwhile for premise in self.scenario.premises]
        if self.scenario.is_refused:
            return False
        return self.scenario.loss_between_lives is not None or any(meanwhile)

    def _judge(self, work: Work, checkpoint: Checkpoint, starts: Sequence[int]) -> None:
        for assigned in (*self._premises, *self.assignments):
            if assigned not in self._carried_out:
                raise NotMet(f"{assigned.seat} did not meet {assigned.order.failpoint}")
        has_lost = bool(self._lost_transactional_ids)
        if has_lost and not self._expects_loss:
            raise Wrong("decided rows were lost, and written again, though nobody took them away")
        if self._expects_loss and not has_lost:
            raise NotMet("no decided rows were lost, though the scenario takes them away")
        if self.transactional:
            verdict.check(self.lane, self._x, work, starts)
        else:
            verdict.check_rows(self.lane.read(starts), work.all_rows())
        if self.scenario.commits_offsets:
            verdict.check_offsets(self.lane, self._group_id, checkpoint)
