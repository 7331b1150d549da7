"""One run of a sink plan: the cluster, the query, the faults, and the final check.

Processes of the query are killed, stalled and duplicated at failpoints. Faults are also injected
into the cluster, but only in the first part of the run. The query must complete. The outcome
depends only on the plan. Invariants:

- Every row is committed exactly once.
- After the sink has planned one more micro-batch at the end, no transaction is open.
- If the query commits offsets, the committed offset of the consumer group is the end offset of the
  input topic.
- `integration.sink_model` allows the steps and requests of every process.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from unittest.mock import patch

from broker_ref.config import BrokerConfig
from integration.simulation.administrator import Administrator
from integration.simulation.client import Client
from integration.simulation.cluster import PORT, SimulatedCluster, UnexplainedFailureError, host_of
from integration.simulation.event_queue import START_MS, EndlessLoopError, EventQueue
from integration.simulation.faults import Faults
from integration.simulation.invariants import InvariantViolationError
from integration.simulation.plan import FAULTS_BEGIN_MS, FAULTS_END_MS, Settings
from integration.simulation.run import WORK_BEGINS_MS, config_of, quiet_logs
from integration.simulation.sink import transport
from integration.simulation.sink.processes import KilledError, SimulatedProcess, current
from integration.simulation.sink.spark import GROUP_ID, OUTPUT, SOURCE, Query
from integration.simulation.sink.workload import SinkPlan, Workload
from integration.sink_model.trace_validation import first_invalid
from pyspark_kafka.client.native import client as native_client
from pyspark_kafka.client.native.producer import NativeProducer
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.transactional_client import NativeTransactionalClient
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionResult
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.sink.exactly_once import commit_log, commit_topic, planning, steps
from pyspark_kafka.sink.exactly_once.failpoint_client import FailpointClient
from pyspark_kafka.sink.exactly_once.planning import plan as run_planning
from pyspark_kafka.sink.exactly_once.roll_forward import roll_forward
from pyspark_kafka.wire import connection
from pyspark_kafka.wire.retry import Clock

COMPLETE_LIMIT_MS: Final = 120_000
"""The time limit for the query to complete after all faults are repaired: several API timeouts."""
_KILLS_END_MS: Final = 25_000
_STARTS_MAX: Final = 10
"""The number of drivers that may fail after all faults are repaired. Usually, none fails."""
_FOCUSED_CHANCE: Final = 0.25
_INTERVAL_MS: Final = 250
_CLIENT_SETTINGS: Final = {
    "default.api.timeout.ms": "6000",
    "request.timeout.ms": "2000",
    "socket.connection.setup.timeout.ms": "1000",
    "delivery.timeout.ms": "6000",
}


@dataclass(slots=True, kw_only=True)
class SinkOutcome:
    """The outcome of a run. `violation` is None if all invariants held."""

    plan: SinkPlan
    violation: str | None
    trace: list[str] = field(repr=False)
    digest: int
    elapsed_ms: int
    failpoints: int
    kills: int

    @property
    def identity(self) -> tuple[str | None, int, int, int]:
        """A value that is equal for all runs of the same plan."""
        return self.violation, self.digest, self.elapsed_ms, self.failpoints


def run_sink(plan: SinkPlan) -> SinkOutcome:
    """Run a plan and return its outcome."""
    return _SinkRun(plan).outcome()


def _config_of(broker_id: int, settings: Settings, workload: Workload) -> BrokerConfig:
    """Return a broker's config with log compaction.

    If the workload requires it, transactional ids expire after a few seconds.
    """
    config = replace(
        config_of(broker_id, settings), log_cleaner_enable=True, log_cleaner_backoff_ms=500
    )
    if workload.expires_ids:
        config = replace(
            config,
            transactional_id_expiration_ms=4_000,
            transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
        )
    return config


class _SinkRun:
    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan
        self.trace: list[str] = []
        self.failpoints = self.kills = 0
        self._is_calm = self._is_over = False
        self._violations: list[str] = []
        self._processes: list[SimulatedProcess] = []
        self._reached: dict[SimulatedProcess, list[str]] = {}
        self._random = Random(f"processes {plan.seed}")
        self._event_queue = EventQueue()
        settings = replace(
            plan.cluster.settings,
            min_insync_replicas=2,
            replication_factor=3,
            partitions=plan.workload.partitions,
        )
        self._broker_ids = settings.broker_ids
        self.cluster = SimulatedCluster(
            {each: _config_of(each, settings, plan.workload) for each in self._broker_ids},
            event_queue=self._event_queue,
            random=Random(f"network {plan.seed}"),
            network_conditions=settings.network_conditions,
            seed=str(plan.seed),
            features={"transaction.version": settings.transaction_version},
            on_step=lambda _, __: None,
            note=self.note,
        )
        self._administrator = Administrator(
            Client(
                "admin",
                event_queue=self._event_queue,
                network=self.cluster.network,
                random=Random(f"admin {plan.seed}"),
                broker_ids=self._broker_ids,
            )
        )
        self._faults = Faults(
            self.cluster,
            self._administrator,
            event_queue=self._event_queue,
            settings=settings,
            note=self.note,
        )
        self._query = Query(
            workload=plan.workload, machines=self, random=Random(f"spark {plan.seed}")
        )

    def outcome(self) -> SinkOutcome:
        violation = None
        with quiet_logs(), quiet_logs("pyspark_kafka"), _in_virtual_time(self):
            try:
                self._go()
            except (InvariantViolationError, EndlessLoopError, UnexplainedFailureError) as found:
                violation = str(found)
            except Exception as error:  # An exception of any class is a bug.
                violation = f"{type(error).__name__}: {error}"
                self.trace += traceback.format_exception(error)
            finally:
                self._end_processes()
        if violation is not None:
            self.note(f"VIOLATION: {violation}")
        return SinkOutcome(
            plan=self.plan,
            violation=violation,
            trace=self.trace,
            digest=self.cluster.digest,
            elapsed_ms=self._event_queue.elapsed_ms,
            failpoints=self.failpoints,
            kills=self.kills,
        )

    def _go(self) -> None:
        for host in self.cluster.hosts:
            self.cluster.start(host)
        for topic in (OUTPUT, SOURCE.topic):
            self._administrator.make_topic(topic)
        self._event_queue.run_until(START_MS + WORK_BEGINS_MS)
        self._await(
            lambda: len(self._administrator.made) == 2,
            "the topics were not created, although no fault was injected",
        )
        self._faults.schedule(self.plan.cluster.faults)
        for _ in range(self.plan.workload.duplicates):
            at_ms = self._random.randint(FAULTS_BEGIN_MS, FAULTS_END_MS)
            self._event_queue.at(START_MS + at_ms, self._duplicate)
        if self.plan.workload.upgrades_at_ms is not None:
            self._administrator.upgrade(
                "transaction.version", 2, at_ms=START_MS + self.plan.workload.upgrades_at_ms
            )
        self._query.start()
        self._event_queue.run_until(START_MS + FAULTS_END_MS)
        self._faults.repair()
        while self._event_queue.elapsed_ms < _KILLS_END_MS and not self._query.is_complete:
            self._event_queue.run_until(self._event_queue.now_ms + _INTERVAL_MS)
            self._faults.restart_failed()
        self._is_calm = True
        for driver in self._query.drivers[:-1]:  # Two drivers can fence each other forever.
            driver.kill()
        starts_max = len(self._query.drivers) + _STARTS_MAX
        self._await(
            lambda: (
                (self._query.is_complete and not self._query.is_running)
                or len(self._query.drivers) >= starts_max
            ),
            "the last driver hangs",
        )
        self._check()

    def _await(self, is_reached: Callable[[], bool], otherwise: str) -> None:
        limit_ms = self._event_queue.now_ms + COMPLETE_LIMIT_MS
        while not is_reached():
            if self._event_queue.now_ms >= limit_ms:
                raise InvariantViolationError(otherwise)
            self._event_queue.run_until(self._event_queue.now_ms + _INTERVAL_MS)
            if self._is_calm:
                self._faults.restart_failed()

    def _duplicate(self) -> None:
        if not self._query.is_complete:
            self.note("another driver starts")
            self._query.start()

    def _end_processes(self) -> None:
        self._is_over = True
        for process in self._processes:
            process.kill()
        while any(not process.is_ended for process in self._processes):
            self._event_queue.run_until(self._event_queue.now_ms + 1)

    # --- the machines ---

    def start(
        self,
        name: str,
        main: Callable[[], object],
        *,
        owner: str,
        on_end: Callable[[], None] = lambda: None,
    ) -> SimulatedProcess:
        skew_ms = self.plan.workload.skew_ms_max
        process = SimulatedProcess(
            name,
            main,
            owner=owner,
            event_queue=self._event_queue,
            skew_ms=self._random.randint(-skew_ms, skew_ms),
            on_end=on_end,
        )
        self._processes.append(process)
        return process

    def client(self) -> TransactionalClient:
        servers = ",".join(f"{host_of(broker_id)}:{PORT}" for broker_id in self._broker_ids)
        options = ClientOptions(
            bootstrap_servers=servers, kafka=_CLIENT_SETTINGS, group_id=GROUP_ID
        )
        settings = NativeSettings.of(options, "producer")
        clock = Clock(
            now=lambda: self._event_queue.elapsed_ms / 1_000,
            sleep=_sleep,
            random=Random(self._random.getrandbits(64)).random,
        )
        client = NativeTransactionalClient.with_producers(
            settings, ProducerSettings.of(options.kafka, settings), clock
        )
        return FailpointClient(client)

    def wall_clock_ms(self) -> int:
        process = current()
        return self._event_queue.now_ms + (process.skew_ms if process is not None else 0)

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._event_queue.after(delay_ms, lambda: None if self._is_over else act())

    def violate(self, what: str) -> None:
        if not self._violations:
            self._event_queue.after(0, self._raise_violation)
        self._violations.append(what)

    def _raise_violation(self) -> None:
        raise InvariantViolationError(self._violations[0])

    def note(self, line: str) -> None:
        self.trace.append(f"{self._event_queue.elapsed_ms:6d} ms  {line}")

    def reached(self, failpoint: str) -> None:
        """Kill or stall the current process with the probabilities in the workload."""
        process = current()
        if process is None:
            return
        self._reached.setdefault(process, []).append(failpoint)
        if self._is_calm:
            return
        self.failpoints += 1
        self.note(f"{process.name} {failpoint}")
        workload, number = self.plan.workload, self._random.random()
        is_focus = failpoint.startswith(workload.focus)
        kill_chance = _FOCUSED_CHANCE if is_focus else workload.kill_chance
        stall_chance = _FOCUSED_CHANCE if is_focus else workload.stall_chance
        if number < kill_chance:
            self.kills += 1
            self._kill(process)
            raise KilledError
        if number < kill_chance + stall_chance:
            stall_ms = self._random.randint(1, workload.stall_ms_max)
            self.note(f"{process.name} stalls for {stall_ms} ms")
            process.pause(stall_ms)

    def _kill(self, process: SimulatedProcess) -> None:
        driver = next((d for d in self._query.drivers if d.name == process.owner), None)
        if driver is not None and self._random.random() < 0.6:
            self.note(f"{driver.name} is killed")
            driver.kill()
        else:
            self.note(f"{process.name} is killed")
            process.kill()

    # --- the end ---

    def _check(self) -> None:
        """Plan one more micro-batch. Check that no transaction is open, and check the output."""
        result: dict[str, Any] = {}

        def main() -> None:
            client = self.client()
            run_planning(client, self._query.options)
            time.sleep(1.0)
            partitions = [
                TopicPartition(OUTPUT, index) for index in range(self.plan.workload.partitions)
            ]
            ends = client.list_offsets(
                dict.fromkeys(partitions, LATEST), IsolationLevel.READ_UNCOMMITTED
            )
            stable = client.list_offsets(
                dict.fromkeys(partitions, LATEST), IsolationLevel.READ_COMMITTED
            )
            starts = client.list_offsets(
                dict.fromkeys(partitions, EARLIEST), IsolationLevel.READ_UNCOMMITTED
            )
            result["stuck"] = {str(p): stable[p] for p in partitions if stable[p] != ends[p]}
            result["rows"] = sorted(
                row
                for partition in partitions
                for row in _committed(
                    client, partition, starts[partition] or 0, ends[partition] or 0
                )
            )
            result["offset"] = client.committed_offsets(GROUP_ID, [SOURCE])[SOURCE]
            client.close()

        checker = self.start("checker", main, owner="checker")
        self._await(lambda: checker.is_ended, "the last planning run did not end")
        if checker.error is not None:
            raise checker.error
        expected = self._query.expected
        missing = Counter(expected) - Counter(result["rows"])
        if twice := Counter(result["rows"]) - Counter(expected):
            raise InvariantViolationError(f"duplicate rows: {sorted(twice)}")
        if not self._query.is_complete:
            raise InvariantViolationError(
                f"the query did not complete: {self._query.drivers[-2].process.error}"
            )
        if missing:
            raise InvariantViolationError(f"lost rows: {sorted(missing)}")
        if result["stuck"]:
            raise InvariantViolationError(f"stuck readers: {result['stuck']}")
        end = len(self.plan.workload.batches) if self.plan.workload.commits_offsets else None
        if result["offset"] != end:
            raise InvariantViolationError(f"group offset {result['offset']} instead of {end}")
        self._validate_traces()

    def _validate_traces(self) -> None:
        """Replay the steps and requests of every process through the model."""
        for process, failpoints in self._reached.items():
            is_complete = process.is_ended and process.error is None and not process.is_killed
            invalid = first_invalid(failpoints, is_complete=is_complete)
            if invalid is not None:
                raise InvariantViolationError(f"the model does not allow {invalid}: {process.name}")


def _committed(
    client: TransactionalClient, partition: TopicPartition, start: int, end: int
) -> list[bytes]:
    """Return the values of committed transactions, as a read_committed consumer reads them."""
    values: list[bytes] = []
    pending: dict[int, list[bytes]] = {}
    for batch in client.read_log(partition, start, end) if start < end else ():
        producer_id = batch.producer.producer_id
        if batch.ends_with is not None:
            ended = pending.pop(producer_id, [])
            values += ended if batch.ends_with is TransactionResult.COMMIT else []
        else:
            into = pending.setdefault(producer_id, []) if batch.is_transactional else values
            into += [value for _, value in batch.records if value is not None]
    return values


# --- the environment of the processes ---

_running: list[_SinkRun] = []


def reach(failpoint: str) -> None:
    """Handle a failpoint; `PYSPARK_KAFKA_FAILPOINTS` names this function."""
    if _running:
        _running[-1].reached(failpoint)


def _sleep(seconds: float) -> None:
    process = current()
    if process is None:
        _REAL_SLEEP(seconds)
    else:
        process.sleep(seconds)


_REAL_SLEEP: Final = time.sleep
_REAL_MONOTONIC: Final = time.monotonic


class _PerOwner(dict[Any, Any]):
    """A cache of the sink (a dict or a set), with separate entries for each long-lived process."""

    def _key(self, key: object) -> object:
        process = current()
        return (process.owner if process is not None else None, key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._key(key))

    def __getitem__(self, key: object) -> Any:
        return super().__getitem__(self._key(key))

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(self._key(key), value)

    def add(self, key: object) -> None:
        self[key] = True

    def pop(self, key: object, default: object = None) -> Any:
        return super().pop(self._key(key), default)


class _Stack:
    """The active steps of the current process."""

    def __init__(self) -> None:
        self._by_process: dict[object, list[Any]] = {}

    def _own(self) -> list[Any]:
        return self._by_process.setdefault(current(), [])

    def append(self, step: object) -> None:
        self._own().append(step)

    def pop(self) -> object:
        return self._own().pop()

    def __getitem__(self, index: int) -> Any:
        return self._own()[index]

    def __bool__(self) -> bool:
        return bool(self._own())


@contextmanager
def _in_virtual_time(run: _SinkRun) -> Iterator[None]:
    """Run the client and the sink on the simulated network, in virtual time."""

    def monotonic() -> float:
        is_simulated = current() is not None
        return run._event_queue.elapsed_ms / 1_000 if is_simulated else _REAL_MONOTONIC()

    def connect(address: Any, _: float, *, family: str) -> transport.SimulatedTransport:
        del family
        return transport.connect(run.cluster.network, address)

    with ExitStack() as stack:
        for target, name, replacement in (
            (time, "sleep", _sleep),
            (time, "monotonic", monotonic),
            (native_client, "connect", connect),
            (connection, "wait", transport.wait),
            (steps, "_inside", _Stack()),
            (commit_log, "_READ", _PerOwner()),
            (commit_topic, "_CHECKED", _PerOwner()),
            (commit_topic, "_REGISTERED", _PerOwner()),
            (commit_topic, "PARTITIONS", 2),
            (planning, "_CHECKED", _PerOwner()),
            (planning, "_EXPIRED", _PerOwner()),
        ):
            stack.enter_context(patch.object(target, name, replacement))
        # Default arguments refer to the real functions.
        for function, name, replacement in (
            (roll_forward, "pause", _sleep),
            (NativeProducer.__init__, "wall_clock_s", lambda: run.wall_clock_ms() / 1_000),
        ):
            stack.enter_context(patch.dict(function.__kwdefaults__, {name: replacement}))
        stack.enter_context(
            patch.dict(os.environ, {steps.VARIABLE: f"{__name__}:{reach.__name__}"})
        )
        _running.append(run)
        try:
            yield
        finally:
            _running.pop()
