"""Injects the faults of a schedule into a cluster and a Spark driver.

Invariant: each fault is repaired when its duration has elapsed, and all faults are repaired at the
end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from integration.chaos import stalls
from integration.chaos.driver import Driver, Say
from integration.chaos.job import Job
from integration.chaos.schedule import Fault, FaultKind, Schedule
from integration.clusters import Cluster
from integration.faults.links import ProxiedLinks
from integration.faults.rules import of_api

_APIS_TO_DROP: Final = of_api(
    "produce",
    "init_producer_id",
    "end_txn",
    "add_partitions_to_txn",
    "txn_offset_commit",
    "describe_transactions",
    "list_transactions",
)
_LOST_RESPONSES: Final = 2
RUNNING_TIMEOUT_S: Final = 400.0
_END_TIMEOUT_S: Final = 400.0
"""The time within which a resumed driver that has a successor must exit."""

_TARGET_TIMEOUT_S: Final = 60.0
"""The time within which the query must reach the point at which a fault is injected."""

_POLL_S: Final = 0.05
_DELAY_S: Final = 0.3


class Chaos:
    """Injects faults into a cluster that clients reach through proxies, and into a query's driver.

    `fault_count` is the number of injected faults. A fault is not counted if no process can be
    selected as its target.
    """

    def __init__(
        self,
        cluster: Cluster,
        links: ProxiedLinks,
        driver: Driver,
        say: Say,
        *,
        job: Job,
    ) -> None:
        self._cluster = cluster
        self._links = links
        self._driver = driver
        self._say = say
        self._job = job
        self._down: set[int] = set()
        self._paused: set[int] = set()
        self._injected: list[Fault] = []

    @property
    def fault_count(self) -> int:
        return len(self._injected)

    def run(self, schedule: Schedule) -> None:
        """Inject faults into the cluster and the query in parallel. Repair all faults at the end.

        Each fault is injected only when the query is running.
        """
        try:
            with ThreadPoolExecutor(2) as executor:
                tracks = [schedule.of_cluster, schedule.of_query]
                for done in [executor.submit(self._run_track, track) for track in tracks]:
                    done.result()
        finally:
            self._repair()

    def _run_track(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            time.sleep(fault.pause_s)
            self._driver.await_running(RUNNING_TIMEOUT_S)
            self._inject(fault)

    def _repair(self) -> None:
        for broker_id in sorted(self._paused):
            self._resume(broker_id)
        for broker_id in sorted(self._down):
            self._start(broker_id)
        self._links.heal()
        self._say("all faults are repaired")

    def _inject(self, fault: Fault) -> None:
        self._say(str(fault))
        if fault.broker is not None:
            self._injected.append(fault)
            self.OF_BROKERS[fault.kind](self, fault.broker, fault.seconds)
        elif self.OF_DRIVER[fault.kind](self, fault):
            self._injected.append(fault)
        else:
            self._say("the fault found no target")

    def _kill_worker(self, fault: Fault) -> bool:
        return _kill_one(self._driver.workers(), fault.share)

    def _kill_executor(self, fault: Fault) -> bool:
        """Kill an executor while tasks of a second stage are running."""
        self._job.shuffled.unlink(missing_ok=True)
        return _await(self._job.shuffled.exists) and _kill_one(
            self._driver.executors(), fault.share
        )

    def _kill_workers(self, _fault: Fault) -> bool:
        workers = self._driver.workers()
        for worker in workers:
            _kill(worker)
        return bool(workers)

    def _kill_driver(self, _fault: Fault) -> bool:
        self._driver.kill()
        return True

    def _stop_driver(self, _fault: Fault) -> bool:
        self._driver.replace(start_timeout_s=RUNNING_TIMEOUT_S, end_timeout_s=_END_TIMEOUT_S)
        return True

    def _pause_driver(self, fault: Fault) -> bool:
        self._driver.pause(fault.seconds)
        return True

    def _stall_sink(self, fault: Fault) -> bool:
        """Stall the next process that reaches a failpoint. Wait until the stall has ended."""
        failpoint = stalls.FAILPOINTS[int(fault.share * len(stalls.FAILPOINTS))]
        self._say(f"the sink stalls at {failpoint}")
        stalls.request(self._job.stall, failpoint, fault.seconds)
        if not _await(lambda: not self._job.stall.exists()):
            self._job.stall.unlink(missing_ok=True)
            return False
        time.sleep(fault.seconds)
        return True

    def _kill_broker(self, broker_id: int, seconds: float) -> None:
        self._down.add(broker_id)
        self._cluster.kill_broker(broker_id)
        time.sleep(seconds)
        self._start(broker_id)

    def _restart_broker(self, broker_id: int, _seconds: float) -> None:
        self._down.add(broker_id)
        self._cluster.stop_broker(broker_id)
        self._start(broker_id)

    def _start(self, broker_id: int) -> None:
        self._cluster.start_broker(broker_id)
        self._down.discard(broker_id)

    def _pause_broker(self, broker_id: int, seconds: float) -> None:
        self._paused.add(broker_id)
        self._cluster.pause_broker(broker_id)
        time.sleep(seconds)
        self._resume(broker_id)

    def _resume(self, broker_id: int) -> None:
        self._cluster.resume_broker(broker_id)
        self._paused.discard(broker_id)

    def _cut_link(self, broker_id: int, seconds: float) -> None:
        proxies = self._links.of_broker(broker_id)
        for proxy in proxies:
            proxy.cut()
        time.sleep(seconds)
        for proxy in proxies:
            proxy.uncut()
            proxy.drop_connections()

    def _delay_link(self, broker_id: int, seconds: float) -> None:
        for proxy in self._links.of_broker(broker_id):
            proxy.delay(_DELAY_S)
        time.sleep(seconds)
        for proxy in self._links.of_broker(broker_id):
            proxy.delay(0)

    def _drop_connections(self, broker_id: int, _seconds: float) -> None:
        for proxy in self._links.of_broker(broker_id):
            proxy.drop_connections()

    def _drop_responses(self, broker_id: int, _seconds: float) -> None:
        self._links.brokers[broker_id].drop_responses(_APIS_TO_DROP, times=_LOST_RESPONSES)

    OF_BROKERS: Final[dict[FaultKind, Callable[[Chaos, int, float], None]]] = {
        FaultKind.KILL_BROKER: _kill_broker,
        FaultKind.PAUSE_BROKER: _pause_broker,
        FaultKind.RESTART_BROKER: _restart_broker,
        FaultKind.CUT_LINK: _cut_link,
        FaultKind.DELAY_LINK: _delay_link,
        FaultKind.DROP_CONNECTIONS: _drop_connections,
        FaultKind.LOSE_RESPONSES: _drop_responses,
    }
    OF_DRIVER: Final[dict[FaultKind, Callable[[Chaos, Fault], bool]]] = {
        FaultKind.KILL_WORKER: _kill_worker,
        FaultKind.KILL_WORKERS: _kill_workers,
        FaultKind.KILL_EXECUTOR: _kill_executor,
        FaultKind.KILL_DRIVER: _kill_driver,
        FaultKind.STOP_DRIVER: _stop_driver,
        FaultKind.PAUSE_DRIVER: _pause_driver,
        FaultKind.STALL_SINK: _stall_sink,
    }
    """These functions return whether the fault found a target."""


def _await(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true. Return false after a timeout."""
    deadline_s = time.monotonic() + _TARGET_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _kill_one(process_ids: Sequence[int], share: float) -> bool:
    if process_ids:
        _kill(process_ids[int(share * len(process_ids))])
    return bool(process_ids)


def _kill(process_id: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)
