"""Measure the requests and bytes of exactly-once micro-batches, and the time to plan and commit.

    python -m integration.benchmarks.sink_costs --tasks 1 --tasks 200

Runs the connector's planning, tasks and commits without Spark. As in a streaming query, planning
uses one client for all micro-batches, and the commits use another client. The tasks run in
`WORKERS` threads, and each thread has one client, like a Python worker. Every task writes one small
row. Invariant: each request that a client sends is counted, including retries and ApiVersions. The
results exclude the first micro-batches, in which the clients open their connections.

This is not a benchmark case: it reports counts and milliseconds, not ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from unittest import mock

import pyarrow as pa

from integration.clusters import BACKENDS, Cluster, open_cluster
from pyspark_kafka.client.factory import open_transactional_client
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import ClientOptions, ExactlyOnce, SinkOptions
from pyspark_kafka.sink.exactly_once.commit import commit
from pyspark_kafka.sink.exactly_once.decisions import key_prefix
from pyspark_kafka.sink.exactly_once.messages import Task, TaskMessage
from pyspark_kafka.sink.exactly_once.planning import Plan, plan
from pyspark_kafka.sink.exactly_once.task import write_task
from pyspark_kafka.wire.connection import Connection, InFlightRequest, Request

TASKS: Final = (1, 10, 100, 200, 1_000, 10_000)
WORKERS: Final = 2
BROKERS: Final = 3
ROUNDS: Final = 9
ROUNDS_OF_LARGE: Final = 3
"""The number of measured micro-batches with `LARGE` or more tasks. Such a batch takes minutes."""
LARGE: Final = 10_000
COMMIT_TOPIC: Final = "commits"

_WARM_UP: Final = 3
_TASKS_OF_WARM_UP: Final = 100
"""The number of tasks in a warm-up micro-batch, which opens the connections to all brokers."""
_PARTITIONS: Final = 3
_TRANSACTION_TIMEOUT_MS: Final = 900_000
_ROW: Final = pa.record_batch({"value": pa.array([b"x" * 100], pa.binary())})
_HEAD: Final = (
    "tasks",
    "planning: requests",
    "ms",
    "after a crash: requests",
    "ms",
    "a task: requests",
    "without rows",
    "commit: requests",
    "ms",
    "decision: bytes",
    "kept: bytes",
)

Requests = Mapping[str, int]
"""The number of requests by API name."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of a micro-batch. Each value is the median of the measured micro-batches.

    `task_requests` counts the requests from all tasks of a micro-batch with rows.
    `empty_task_requests` counts the requests from all tasks of a micro-batch without rows.
    `restart_requests` and `restart_ms` are the costs of planning after the previous driver stopped
    without writing a decision. In this case, planning aborts the open transactions of all tasks.
    `decision_bytes` is the size of the keys and values of the decision. `kept_bytes` is the size of
    the sink's records that log compaction retains in the commit topic after a micro-batch.
    """

    tasks: int
    planning_requests: Requests
    planning_ms: float
    restart_requests: Requests
    restart_ms: float
    task_requests: Requests
    empty_task_requests: Requests
    commit_requests: Requests
    commit_ms: float
    decision_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    requests: Requests
    taken_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicroBatch:
    planning: _Phase
    tasks: _Phase
    commit: _Phase
    decision_bytes: int


def measure(cluster: Cluster, tasks: int, *, rounds: int) -> Costs:
    """Run micro-batches of `tasks` tasks with a new sink id and return their costs."""
    with sent_requests() as sent, _Sink(cluster, f"costs-{tasks}", sent) as sink:
        for _ in range(_WARM_UP):
            sink.micro_batch(_TASKS_OF_WARM_UP)
        found = [sink.micro_batch(tasks) for _ in range(rounds)]
        kept_bytes = sink.kept_bytes()
        empty = sink.micro_batch(tasks, is_empty=True)
        restarts = [sink.restart(tasks) for _ in range(rounds)]
    return Costs(
        tasks=tasks,
        planning_requests=_medians([one.planning.requests for one in found]),
        planning_ms=statistics.median(one.planning.taken_ms for one in found),
        restart_requests=_medians([one.requests for one in restarts]),
        restart_ms=statistics.median(one.taken_ms for one in restarts),
        task_requests=_medians([one.tasks.requests for one in found]),
        empty_task_requests=empty.tasks.requests,
        commit_requests=_medians([one.commit.requests for one in found]),
        commit_ms=statistics.median(one.commit.taken_ms for one in found),
        decision_bytes=statistics.median_low(one.decision_bytes for one in found),
        kept_bytes=kept_bytes,
    )


def table(costs: Iterable[Costs]) -> Iterator[str]:
    """Yield a Markdown table, and then the number of requests to each API."""
    costs = list(costs)
    yield f"| {' | '.join(_HEAD)} |"
    yield f"|{' ---: |' * len(_HEAD)}"
    for one in costs:
        cells = (
            f"{one.tasks:,}",
            f"{_sum(one.planning_requests):,}",
            f"{one.planning_ms:,.0f}",
            f"{_sum(one.restart_requests):,}",
            f"{one.restart_ms:,.0f}",
            f"{_sum(one.task_requests) / one.tasks:.2f}",
            f"{_sum(one.empty_task_requests) / one.tasks:.2f}",
            f"{_sum(one.commit_requests):,}",
            f"{one.commit_ms:,.0f}",
            f"{one.decision_bytes:,}",
            f"{one.kept_bytes:,}",
        )
        yield f"| {' | '.join(cells)} |"
    for one in costs:
        yield ""
        yield f"Requests with {one.tasks:,} tasks:"
        yield ""
        yield f"- planning: {_listing(one.planning_requests)}"
        yield f"- planning after a crash: {_listing(one.restart_requests)}"
        yield f"- all tasks: {_listing(one.task_requests)}"
        yield f"- commit: {_listing(one.commit_requests)}"


class _Sink:
    """The driver and the workers of a streaming query with one sink."""

    def __init__(self, cluster: Cluster, sink_id: str, sent: list[str]) -> None:
        self._sent = sent
        self._topic = f"{sink_id}-output"
        replicas = min(3, len(cluster.broker_ids))
        cluster.create_topic(self._topic, partitions=_PARTITIONS, replication_factor=replicas)
        servers = cluster.bootstrap_servers
        self._client = ClientOptions(
            bootstrap_servers=servers,
            kafka={"bootstrap.servers": servers},
            group_id="benchmark",
            engine="native",
        )
        self._exactly_once = ExactlyOnce(
            transactional_id=sink_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            commit_topic=COMMIT_TOPIC,
            group_id=None,
            checkpoint=None,
            batch_id=None,
            fail_on_replay_mismatch=True,
        )
        self._options = SinkOptions(
            client=self._client, topic=self._topic, exactly_once=self._exactly_once
        )
        self._opened = ExitStack()
        self._planner, self._committer, self._reader = (self._open() for _ in range(3))
        self._workers = [self._open() for _ in range(WORKERS)]
        self._threads = self._opened.enter_context(ThreadPoolExecutor(WORKERS))
        self._next_batch = 0
        self._next_attempt = 0
        self._commit_partition = TopicPartition(COMMIT_TOPIC, 0)

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def micro_batch(self, tasks: int, *, is_empty: bool = False) -> _MicroBatch:
        """Plan, write and commit the next micro-batch, with one row or no row for each task."""
        planned, planning = self._measure(lambda: plan(self._planner, self._exactly_once))
        self._commit_partition = TopicPartition(COMMIT_TOPIC, planned.commit_partition)
        messages, writing = self._measure(lambda: self._work(planned, tasks, is_empty=is_empty))
        start_offset = self._end_offset()
        _, committing = self._measure(
            lambda: commit(self._committer, self._exactly_once, messages, offsets=None)
        )
        # In the commit topic, only decisions are written in transactions.
        decision = self._records(start_offset, lambda batch: batch.is_transactional)
        self._next_batch += 1
        self._next_attempt += tasks
        return _MicroBatch(
            planning=planning,
            tasks=writing,
            commit=committing,
            decision_bytes=_size_of(decision),
        )

    def restart(self, tasks: int) -> _Phase:
        """Write a micro-batch without committing it, and measure the planning of its replay."""
        planned = plan(self._planner, self._exactly_once)
        self._work(planned, tasks)
        self._next_attempt += tasks
        _, planning = self._measure(lambda: plan(self._planner, self._exactly_once))
        return planning

    def _work(self, planned: Plan, tasks: int, *, is_empty: bool = False) -> list[TaskMessage]:
        """Run the tasks of a micro-batch and return their results by partition."""
        rows = () if is_empty else (_ROW,)

        def work(worker: int) -> list[TaskMessage]:
            client, partitions = self._workers[worker], range(worker, tasks, WORKERS)
            return [self._write(client, planned, rows, partition) for partition in partitions]

        found = [
            message for messages in self._threads.map(work, range(WORKERS)) for message in messages
        ]
        return sorted(found, key=lambda message: message.task.partition)

    def kept_bytes(self) -> int:
        """Return the total size of the sink's latest records, one per key, without tombstones."""
        kept = dict(self._records(0, lambda _: True))
        return _size_of((key, value) for key, value in kept.items() if value is not None)

    def _end_offset(self) -> int:
        found = self._reader.list_offsets(
            {self._commit_partition: LATEST}, IsolationLevel.READ_UNCOMMITTED
        )
        end_offset = found[self._commit_partition]
        assert end_offset is not None
        return end_offset

    def _records(
        self, start_offset: int, is_wanted: Callable[[LogBatch], bool]
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the records of the sink in the commit topic."""
        prefix = key_prefix(self._exactly_once.transactional_id)
        batches = self._reader.read_log(self._commit_partition, start_offset, self._end_offset())
        return [
            (key, value)
            for batch in batches
            if is_wanted(batch)
            for key, value in batch.records
            if key is not None and key.startswith(prefix)
        ]

    def _write(
        self,
        client: TransactionalClient,
        planned: Plan,
        rows: Iterable[pa.RecordBatch],
        partition: int,
    ) -> TaskMessage:
        task = Task(
            query_id="query",
            batch_id=self._next_batch,
            run="run",
            partition=partition,
            attempt=0,
            task_attempt_id=self._next_attempt + partition,
        )
        return write_task(rows, plan=planned, task=task, options=self._options, client=client)

    def _measure(self, work: Callable[[], T]) -> tuple[T, _Phase]:
        self._sent.clear()
        since_s = time.perf_counter()
        found = work()
        taken_ms = 1000 * (time.perf_counter() - since_s)
        return found, _Phase(requests=Counter(self._sent), taken_ms=taken_ms)

    def _open(self) -> TransactionalClient:
        return self._opened.enter_context(open_transactional_client(self._client))


@contextmanager
def sent_requests() -> Iterator[list[str]]:
    """Collect the APIs of all requests that the `native` engine sends in this process."""
    sent: list[str] = []
    post = Connection.post

    def noting(connection: Connection, request: Request[T]) -> InFlightRequest[T]:
        sent.append(request.api.title)
        return post(connection, request)

    with mock.patch.object(Connection, "post", noting):
        yield sent


def _medians(found: Sequence[Requests]) -> Requests:
    apis = sorted({api for requests in found for api in requests})
    medians = {api: statistics.median_low(one.get(api, 0) for one in found) for api in apis}
    return {api: count for api, count in medians.items() if count}


def _size_of(records: Iterable[tuple[bytes, bytes | None]]) -> int:
    return sum(len(key) + len(value or b"") for key, value in records)


def _sum(requests: Requests) -> int:
    return sum(requests.values())


def _listing(requests: Requests) -> str:
    return ", ".join(f"{api} {count:,}" for api, count in requests.items()) or "none"


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = _parser().parse_args(arguments)
    found = []
    with open_cluster(parsed.cluster, brokers=BROKERS, is_measured=True) as cluster:
        sys.stdout.write(f"{cluster.version}, {BROKERS} brokers, {WORKERS} workers\n")
        for tasks in parsed.tasks or TASKS:
            rounds = parsed.rounds or (ROUNDS_OF_LARGE if tasks >= LARGE else ROUNDS)
            sys.stdout.write(f"{tasks:,} tasks, {rounds} micro-batches\n")
            sys.stdout.flush()
            found.append(measure(cluster, tasks, rounds=rounds))
    sys.stdout.write("\n".join(["", *table(found)]) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks.sink_costs", description=__doc__
    )
    parser.add_argument("--cluster", choices=BACKENDS, default="kafka")
    parser.add_argument("--tasks", type=int, action="append", metavar="N", help="tasks per batch")
    parser.add_argument("--rounds", type=int, metavar="N", help="measured micro-batches")
    return parser


if __name__ == "__main__":
    main()
