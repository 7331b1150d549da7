"""A schedule carried out on a cluster behind proxies and on a driver.

Purpose: `carry_out`, and `mend`. Invariant: what a fault took away is back when its time is over; in
the end `mend` brings back everything. What it must not know: which faults come together.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from integration.chaos.driver import Driver, Say
from integration.chaos.schedule import Fault, Kind
from integration.clusters import Cluster
from integration.faults.links import ProxiedLinks
from integration.faults.rules import of_api

_LOST: Final = of_api(
    "produce",
    "init_producer_id",
    "end_txn",
    "add_partitions_to_txn",
    "txn_offset_commit",
    "describe_transactions",
    "list_transactions",
)
_LOST_AT_ONCE: Final = 2
_DELAY_S: Final = 0.3


class Chaos:
    """Faults of a cluster with proxied links, and of the driver of a query."""

    def __init__(self, cluster: Cluster, links: ProxiedLinks, driver: Driver, say: Say) -> None:
        self._cluster = cluster
        self._links = links
        self._driver = driver
        self._say = say
        self._ended = threading.Event()
        self._down: set[int] = set()
        self._paused: set[int] = set()

    def carry_out(self, faults: Sequence[Fault], *, seconds: float) -> None:
        """One fault after another when its time comes; those that last do so beside others."""
        begun_s = time.monotonic()
        with ThreadPoolExecutor(4) as executor:
            running = []
            for fault in faults:
                self._wait_until(begun_s + fault.at_s)
                running.append(executor.submit(self._carry_out, fault))
            self._wait_until(begun_s + seconds)
            for each in running:
                each.result()

    def mend(self) -> None:
        """Everything runs, and every link is as it was."""
        for broker_id in sorted(self._paused):
            self._resume(broker_id)
        for broker_id in sorted(self._down):
            self._start(broker_id)
        self._links.heal()

    def _carry_out(self, fault: Fault) -> None:
        self._say(str(fault))
        if fault.broker is None:
            self._hit_query(fault)
        else:
            self._HITS[fault.kind](self, fault.broker, fault.seconds)

    def _hit_query(self, fault: Fault) -> None:
        if fault.kind is Kind.KILL_DRIVER:
            self._driver.kill()
            return
        workers = self._driver.workers()
        if not workers:
            self._say("there is no Python worker to kill")
        elif fault.kind is Kind.KILL_WORKERS:
            for worker in workers:
                _kill(worker)
        else:
            _kill(workers[int(fault.share * len(workers))])

    def _kill_broker(self, broker_id: int, seconds: float) -> None:
        self._down.add(broker_id)
        self._cluster.kill_broker(broker_id)
        self._sleep(seconds)
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
        self._sleep(seconds)
        self._resume(broker_id)

    def _resume(self, broker_id: int) -> None:
        self._cluster.resume_broker(broker_id)
        self._paused.discard(broker_id)

    def _cut_link(self, broker_id: int, seconds: float) -> None:
        proxy = self._links.brokers[broker_id]
        proxy.cut()
        self._sleep(seconds)
        proxy.heal()
        proxy.drop_connections()

    def _delay_link(self, broker_id: int, seconds: float) -> None:
        proxy = self._links.brokers[broker_id]
        proxy.delay(_DELAY_S)
        self._sleep(seconds)
        proxy.delay(0)

    def _drop_connections(self, broker_id: int, _seconds: float) -> None:
        self._links.brokers[broker_id].drop_connections()

    def _lose_answers(self, broker_id: int, _seconds: float) -> None:
        self._links.brokers[broker_id].lose_answers(_LOST, times=_LOST_AT_ONCE)

    _HITS: Final[dict[Kind, Callable[[Chaos, int, float], None]]] = {
        Kind.KILL_BROKER: _kill_broker,
        Kind.PAUSE_BROKER: _pause_broker,
        Kind.RESTART_BROKER: _restart_broker,
        Kind.CUT_LINK: _cut_link,
        Kind.DELAY_LINK: _delay_link,
        Kind.DROP_CONNECTIONS: _drop_connections,
        Kind.LOSE_ANSWERS: _lose_answers,
    }

    def _sleep(self, seconds: float) -> None:
        self._wait_until(time.monotonic() + seconds)

    def _wait_until(self, moment_s: float) -> None:
        self._ended.wait(max(0.0, moment_s - time.monotonic()))


def _kill(process_id: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)
