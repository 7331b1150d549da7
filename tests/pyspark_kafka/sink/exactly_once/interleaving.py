"""Drivers and stragglers that run side by side, switched at failpoints as a seed says.

Purpose: find what nobody thought of. Invariant: one thread runs at a time and all draws are from
the seed, so that a seed is one history. What it must not know: the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from random import Random

from pyspark_kafka.errors import BrokerUnreachable, PysparkKafkaError
from tests.pyspark_kafka.sink.exactly_once.play import Batch, Killed, Run, reaching
from tests.pyspark_kafka.sink.exactly_once.query import Query
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

_BLOCKED_S = 60.0
_RESTARTS = 3


class _Lane:
    """A thread that waits for its turn."""

    def __init__(self, schedule: Schedule, body: Callable[[], object]) -> None:
        self.turn = threading.Semaphore(0)
        self.is_killed = False
        self.error: BaseException | None = None
        self._schedule = schedule
        self._body = body
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._body()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._schedule.ended(self)


class Schedule:
    """Whose turn it is, and what goes wrong. `play.reach` asks it at each failpoint."""

    def __init__(self, seed: int, world: FakeWorld) -> None:
        self.random = Random(seed)
        self.history: list[str] = []
        self._world = world
        self._lanes: list[_Lane] = []
        self._errors: list[BaseException] = []
        self._current: _Lane | None = None
        self._over = threading.Event()
        self._switches = self.random.choice((0.02, 0.1, 0.5))
        self._kills = self.random.choice((0.0, 0.004))
        self._losses = self.random.choice((0.0, 0.004, 0.02))
        self._delays = self.random.choice((0.0, 0.004))

    def spawn(self, body: Callable[[], object]) -> None:
        self._lanes.append(_Lane(self, body))

    def run(self) -> None:
        """Until all lanes have ended; raises what one of them did not expect."""
        with reaching(self):
            self._next()
            assert self._over.wait(_BLOCKED_S), self.history[-20:]
        if self._errors:
            raise self._errors[0]

    def ended(self, lane: _Lane) -> None:
        self._lanes.remove(lane)
        if lane.error is not None:
            self._errors.append(lane.error)
        if self._lanes:
            self._next()
        else:
            self._over.set()

    def _next(self) -> None:
        self._current = self.random.choice(self._lanes)
        self._current.turn.release()

    def reach(self, failpoint: str) -> None:
        lane = self._current
        assert lane is not None
        if lane.is_killed:
            raise Killed
        if self.random.random() < self._switches:
            self._next()
            lane.turn.acquire()
        self.history.append(f"{id(lane) % 1000} {failpoint}")
        if self.random.random() < self._delays:
            self._world.cluster.advance(self.random.choice((30_001, 300_001, 600_001)))
        if self.random.random() < self._kills:
            self.history.append("  killed")
            lane.is_killed = True
            raise Killed
        if failpoint.count(".") > 2 and self.random.random() < self._losses:
            self.history.append("  lost")
            raise BrokerUnreachable("a request, or its answer, is lost")

    def revive(self) -> None:
        """A process that was killed is started again."""
        assert self._current is not None
        self._current.is_killed = False


def play(seed: int, world: FakeWorld, query: Query) -> list[str]:
    """Two drivers of one query at once, and stragglers; then one that has its peace.

    The answer is the history. Raises `AssertionError` where a reader then sees anything else than
    the input.
    """
    schedule = Schedule(seed, world)
    for _ in range(2):
        schedule.spawn(lambda: _supervise(schedule, query))
    schedule.run()
    for _ in range(_RESTARTS):
        try:
            query.drive(query.restarted())
        except PysparkKafkaError as error:
            schedule.history.append(f"at last: {error}")
    query.restarted().begin(None)  # what was left open, it ends
    found, wanted = world.committed(query.first.topic), query.rows()
    listing = "\n".join(schedule.history)
    assert found == wanted, f"seed {seed}: {found} instead of {wanted}, after\n{listing}"
    assert world.cluster.is_stable(query.first.topic), f"seed {seed}: readers wait"
    return schedule.history


def _supervise(schedule: Schedule, query: Query) -> None:
    """Start the query, and start it again when it has failed or died."""
    for _ in range(_RESTARTS):
        try:
            _drive(schedule, query, query.restarted())
        except PysparkKafkaError as error:
            schedule.history.append(f"  {type(error).__name__}: {error}")
        except Killed:
            schedule.revive()


def _drive(schedule: Schedule, query: Query, run: Run) -> None:
    for batch_id in range(query.completed + 1, len(query.input)):
        batch = run.begin(batch_id)
        partitions = query.input[batch_id]
        for partition in range(len(partitions)):
            if schedule.random.random() < 0.1:
                _straggle(schedule, query, batch, partition)
        batch.play(*partitions)
        query.completed = max(query.completed, batch_id)


def _straggle(schedule: Schedule, query: Query, batch: Batch, partition: int) -> None:
    """Another attempt, which nobody waits for."""
    alone = replace(batch, messages={})
    rows = query.input[batch.batch_id or 0][partition]

    def attempt() -> None:
        try:
            alone.task(partition, rows, attempt=1)
        except PysparkKafkaError as error:
            schedule.history.append(f"  straggler {type(error).__name__}: {error}")

    schedule.spawn(attempt)
