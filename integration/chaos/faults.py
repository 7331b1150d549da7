"""Injects the faults of a schedule into a cluster behind proxies and into a driver.

Invariant: each fault is repaired after its duration, and at the end all faults are repaired.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from integration.chaos.driver import Driver, Say
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
_DELAY_S: Final = 0.3


class Chaos:
    """Injects faults into a cluster with proxied links and into the driver of a query.

    `fault_count` is the number of injected faults. Faults that found no target are not counted.
    """

    def __init__(self, cluster: Cluster, links: ProxiedLinks, driver: Driver, say: Say) -> None:
        self._cluster = cluster
        self._links = links
        self._driver = driver
        self._say = say
        self._down: set[int] = set()
        self._paused: set[int] = set()
        self._injected: list[Fault] = []

    @property
    def fault_count(self) -> int:
        return len(self._injected)

    def run(self, schedule: Schedule) -> None:
        """Inject faults into the cluster and the query in parallel; repair all faults at the end.

        Each fault waits until the query is running.
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
            self._INJECTORS[fault.kind](self, fault.broker, fault.seconds)
        elif fault.kind is FaultKind.KILL_DRIVER:
            self._injected.append(fault)
            self._driver.kill()
        else:
            self._kill_workers(fault)

    def _kill_workers(self, fault: Fault) -> None:
        workers = self._driver.workers()
        if not workers:
            self._say("there is no Python worker to kill")
            return
        self._injected.append(fault)
        if fault.kind is FaultKind.KILL_WORKERS:
            for worker in workers:
                _kill(worker)
        else:
            _kill(workers[int(fault.share * len(workers))])

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

    _INJECTORS: Final[dict[FaultKind, Callable[[Chaos, int, float], None]]] = {
        FaultKind.KILL_BROKER: _kill_broker,
        FaultKind.PAUSE_BROKER: _pause_broker,
        FaultKind.RESTART_BROKER: _restart_broker,
        FaultKind.CUT_LINK: _cut_link,
        FaultKind.DELAY_LINK: _delay_link,
        FaultKind.DROP_CONNECTIONS: _drop_connections,
        FaultKind.LOSE_RESPONSES: _drop_responses,
    }


def _kill(process_id: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)
