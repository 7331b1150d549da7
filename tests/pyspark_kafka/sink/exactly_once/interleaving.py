"""Concurrent drivers and stragglers, which a seeded scheduler switches at failpoints.

They find unexpected interleavings. Only one thread runs at a time and all random draws come from
the seed, so a seed always produces the same history.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from pyspark_kafka.errors import BrokerUnreachableError, PysparkKafkaError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from tests.pyspark_kafka.sink.exactly_once.query import MIDDLE, SHORT, Query, flat
from tests.pyspark_kafka.sink.exactly_once.runs import COMMIT_TOPIC, Batch, Killed, Run, reaching
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

_BLOCKED_S = 60.0
_RESTARTS = 3


class _Lane:
    """A thread that runs only when it is scheduled."""

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
    """The scheduler, which also injects faults; each failpoint calls it."""

    def __init__(self, seed: int, world: FakeWorld) -> None:
        self.random = Random(seed)
        self.history: list[str] = []
        self._world = world
        self._lanes: list[_Lane] = []
        self._errors: list[BaseException] = []
        self._current: _Lane | None = None
        self._over = threading.Event()
        self.is_running = False
        self._switches = self.random.choice((0.02, 0.1, 0.5))
        self._kills = self.random.choice((0.0, 0.004))
        self._losses = self.random.choice((0.0, 0.004, 0.02))
        self._delays = self.random.choice((0.0, 0.004, 0.03))
        self._stalls = self.random.choice((0.0, 0.0, 0.02))
        self._compactions = self.random.choice((0.0, 0.02))

    def spawn(self, body: Callable[[], object]) -> None:
        self._lanes.append(_Lane(self, body))

    def run(self) -> None:
        """Run until all threads have ended; raise their first unexpected error."""
        with reaching(self):
            self.is_running = True
            self._next()
            assert self._over.wait(_BLOCKED_S), self.history[-20:]
            self.is_running = False
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
        if self.random.random() < self._stalls:
            self._world.cluster.holds_markers = not self._world.cluster.holds_markers
            self._world.cluster.write_markers()
        if self.random.random() < self._compactions and COMMIT_TOPIC in self._world.cluster.topics:
            for log in self._world.cluster.topic(COMMIT_TOPIC).logs:
                log.compact()
        if self.random.random() < self._kills:
            self.history.append("  killed")
            lane.is_killed = True
            raise Killed
        if failpoint.count(".") > 2 and self.random.random() < self._losses:
            self.history.append("  lost")
            raise BrokerUnreachableError("a request or its response is lost")

    def revive(self) -> None:
        assert self._current is not None
        self._current.is_killed = False


def play(seed: int, world: FakeWorld) -> list[str]:
    """Run concurrent drivers and stragglers with random faults, and then without faults.

    Return the history. Raises `AssertionError` if a consumer then reads anything but the input, or
    if the offset of a group is not at the end of the input.
    """
    schedule = Schedule(seed, world)
    queries = _queries(schedule.random, world)
    for query in (*queries, queries[0]):
        schedule.spawn(partial(_supervise, schedule, query))
    schedule.run()
    world.cluster.holds_markers = False
    world.cluster.write_markers()
    for query in queries:
        for _ in range(_RESTARTS):
            try:
                _drive(schedule, query, query.restarted())
            except PysparkKafkaError as error:
                schedule.history.append(f"at last: {error}")
    queries[0].restarted().begin(
        len(queries[0].input)
    )  # aborts the transactions that are still open
    where = "\n".join([f"seed {seed}", *schedule.history])
    for query in queries:
        query.check(where)
        assert world.cluster.is_stable(query.first.topic), (
            f"open transactions block consumers after {where}"
        )
        group_offset = world.group_offset(query.first.group_id or "", _source(query))
        assert group_offset == _end_of(query, len(query.input) - 1), where
    return schedule.history


def _queries(random: Random, world: FakeWorld) -> list[Query]:
    """Return one query, or two that wrongly share an id, perhaps at the id's last epochs."""
    first = Query.of(world, MIDDLE, group_id="first")
    if random.random() < 0.2:
        first.first.begin(0)
        world.cluster.exhaust(first.first.sink_id)
    if random.random() < 0.7:
        return [first]
    second = Query.of(
        world, SHORT, sink_id=first.first.sink_id, query_id="second", group_id="second"
    )
    return [first, second]


def _supervise(schedule: Schedule, query: Query) -> None:
    """Start the query, and restart it after a failure or a kill."""
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
            if schedule.is_running and schedule.random.random() < 0.1:
                schedule.spawn(_straggler(schedule, query, batch, partition))
        batch.play(*partitions, offsets=_offsets(query, batch_id))
        query.completed = max(query.completed, batch_id)


def _straggler(
    schedule: Schedule, query: Query, batch: Batch, partition: int
) -> Callable[[], object]:
    """Return another attempt of a task, whose result is ignored."""
    alone = replace(batch, messages={})
    rows = query.input[batch.batch_id or 0][partition]

    def attempt() -> None:
        try:
            alone.task(partition, rows, attempt=1)
        except PysparkKafkaError as error:
            schedule.history.append(f"  straggler {type(error).__name__}: {error}")

    return attempt


def _source(query: Query) -> TopicPartition:
    return TopicPartition(f"source of {query.first.query_id}", 0)


def _end_of(query: Query, batch_id: int) -> int:
    """Return the end offset of the source for a batch: each row has one offset."""
    return len(flat(query.input[: batch_id + 1]))


def _offsets(query: Query, batch_id: int) -> SourceOffsets:
    end = _end_of(query, batch_id)
    return SourceOffsets(hash=str(end), offsets={_source(query): end})
