"""Inject a plan's faults into a simulated cluster, and repair them.

This module implements each kind of fault. It prevents one situation in which Kafka would also
lose records: a disk loses committed records, and no other replica with these records is eligible to
become the leader. Therefore, unless every append is flushed, a broker loses power only under
conditions that depend on `min.insync.replicas`:

- If `min.insync.replicas` is 1, all other brokers must be running and in sync. No other fault is
  injected until the broker has restarted and all replicas are in sync.
- If `min.insync.replicas` is 2, the other brokers may have been shut down cleanly or isolated,
  because eligible leader replicas (KIP-966) have the records. But no other broker may have been
  killed since all replicas were last in sync. No other broker is killed or shut down until the
  broker has restarted and all replicas are in sync.

Invariant: after `repair`, no fault is active.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from types import MappingProxyType

from broker_ref.controller.metadata import (
    TRANSACTION_STATE_TOPIC,
    ClusterMetadata,
    PartitionMetadata,
)
from broker_ref.identity import META_PROPERTIES_FILE
from broker_ref.log.producer_snapshots import SNAPSHOT_SUFFIX
from integration.simulation.administrator import Administrator
from integration.simulation.client import TopicPartition
from integration.simulation.cluster import CONTROLLER, SimulatedCluster, host_of
from integration.simulation.event_queue import START_MS, EventQueue
from integration.simulation.invariants import InvariantViolationError
from integration.simulation.network import CLIENTS
from integration.simulation.plan import (
    COORDINATOR,
    FAULTS_END_MS,
    LAST_REPLICA_MS,
    LEADER,
    Fault,
    FaultKind,
    Settings,
)

SLOW_LINK_MS = 5_000
"""The maximum delay of a frame on a slow link, which is longer than the timeouts of requests."""
STRANDED_MAX_MS = 1_000
"""The maximum duration of a stall. A leader waits longer before it shrinks the ISR."""

REPLACEMENT_DELAY_MAX_MS = 400
"""The maximum time until a coordinator with late markers is replaced."""


class Faults:
    """Injects the faults of a plan. `note` is called with one trace line for each fault."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        administrator: Administrator,
        *,
        event_queue: EventQueue,
        settings: Settings,
        note: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._event_queue = event_queue
        self._settings = settings
        self._administrator = administrator
        self._note = note
        self._quiet_until: Callable[[], bool] | None = None
        self._is_over = False
        self._paused: dict[str, None] = {}
        self._moves_until_ms = 0
        self._not_eligible: set[str] = set()
        """The hosts of brokers that may have failed since all replicas were last in sync."""

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        """Schedule the faults of a plan."""
        for fault in faults:
            self._event_queue.at(START_MS + fault.at_ms, partial(self._inject, fault))

    def repair(self) -> None:
        """End all faults and start all nodes that are down."""
        self._is_over = True
        for host in list(self._paused):
            self._resume(host)
        for disk in self._cluster.disks.values():
            disk.is_full = False
            disk.fails_flushes = False
            disk.lacks_descriptors = None
            disk.end_crash()
        self._note("all faults are repaired")
        self.restart_failed()

    def restart_failed(self) -> None:
        """Start all nodes that are not running, as an operator would."""
        for host in self._cluster.hosts:
            if not self._cluster.is_running(host):
                self._cluster.start(host)
        if all(self._cluster.is_serving(broker_id) for broker_id in self._settings.broker_ids):
            self._restart_with_offline_partitions()

    def _restart_with_offline_partitions(self) -> None:
        """Restart one broker that has offline partitions, if any.

        A partition is offline because a disk fault prevented the broker from creating its log.
        """
        for broker_id in self._settings.broker_ids:
            node = self._cluster.broker(broker_id)
            if (
                node is not None
                and node.broker is not None
                and node.broker.replicas.has_offline_partitions
            ):
                self._cluster.kill(host_of(broker_id))
                self._cluster.start(host_of(broker_id))
                return

    @property
    def is_active(self) -> bool:
        """Whether any fault is active."""
        return (
            bool(self._paused)
            or self._event_queue.now_ms < self._moves_until_ms
            or self._has_disk_faults()
            or self._cluster.network.has_cuts
            or not all(self._cluster.is_running(host) for host in self._cluster.hosts)
        )

    def _inject(self, fault: Fault) -> None:
        if self._is_over:
            return
        if self._are_all_in_sync():
            self._not_eligible.clear()
        if self._is_quiet() and not (self._has_elr and fault.kind in _HARMLESS):
            self._note(f"skipped until an earlier power loss is detected: {fault}")
            return
        fault = self._resolved(fault)
        self._note(str(fault))
        _INJECTORS[fault.kind](self, fault)

    @property
    def _has_elr(self) -> bool:
        """Whether eligible leader replicas (KIP-966) protect records that are on two replicas."""
        return self._settings.min_insync_replicas > 1

    def _is_quiet(self) -> bool:
        """Return whether a broker that has lost power is not in sync yet."""
        if self._quiet_until is not None and self._quiet_until():
            self._quiet_until = None
        return self._quiet_until is not None

    def _resolved(self, fault: Fault) -> Fault:
        """Return the fault with a host name instead of `LEADER` or `COORDINATOR`."""
        if fault.host not in {LEADER, COORDINATOR}:
            return fault
        partition = self._partition_for(fault)
        broker_id = partition.leader if partition is not None else 1
        host = host_of(broker_id)
        other = fault.other
        if other == host:
            other = host_of(broker_id % self._settings.brokers + 1)
        return replace(fault, host=host, other=other)

    def _partition_for(self, fault: Fault) -> PartitionMetadata | None:
        """Return a partition that has a leader, or None if no partition has a leader.

        The partition may belong to an internal topic, so its leader may be a coordinator. If
        `fault.host` is `COORDINATOR`, the partition belongs to `__transaction_state`.
        """
        controller = self._cluster.controller
        led = [
            partition
            for topic in (controller.side.metadata.topics.values() if controller else ())
            for partition in topic.partitions.values()
            if partition.leader >= 0
            and (fault.host != COORDINATOR or topic.name == TRANSACTION_STATE_TOPIC)
        ]
        return led[fault.number % len(led)] if led else None

    def _until_ms(self, lasts_ms: int) -> int:
        """Return the end time of a fault that starts now. No fault lasts beyond `FAULTS_END_MS`."""
        return min(self._event_queue.now_ms + lasts_ms, START_MS + FAULTS_END_MS)

    def _later(self, fault: Fault, act: Callable[[], None]) -> None:
        self._event_queue.after(fault.lasts_ms, lambda: None if self._is_over else act())

    # Kinds

    def _kill(self, fault: Fault) -> None:
        if self._cluster.is_running(fault.host):
            self._not_eligible.add(fault.host)
            self._cluster.kill(fault.host)
            self._start_later(fault)

    def _start_later(self, fault: Fault) -> None:
        self._paused.pop(fault.host, None)
        self._later(fault, lambda: self._start(fault.host))

    def _start(self, host: str) -> None:
        if not self._cluster.is_running(host):
            self._cluster.start(host)

    def _lose_power(self, fault: Fault) -> None:
        self._lose_data(
            fault,
            lambda: self._cluster.lose_power(fault.host, Random(fault.number)),
            loses_records=not self._settings.flushes_always,
        )

    def _replace_disk(self, fault: Fault) -> None:
        def replace_disk() -> None:
            self._cluster.kill(fault.host)
            self._cluster.disks[fault.host].clear()

        self._lose_data(fault, replace_disk, loses_records=True)

    def _lose_data(self, fault: Fault, lose: Callable[[], None], *, loses_records: bool) -> None:
        """Kill a broker and damage its disk, unless this could lose committed records."""
        host = fault.host
        if loses_records and (
            self._is_quiet()
            or not self._may_lose_power(host)
            or self._settings.replication_factor == 1
        ):
            self._note("  skipped: committed records could be lost")
            return
        self._not_eligible.add(host)
        lose()
        self._start_later(fault)
        if loses_records:
            self._quiet_until = lambda: self._is_noticed(host)

    def _may_lose_power(self, host: str) -> bool:
        if self._cluster.controller is None or self._has_disk_faults():
            return False
        if self._has_elr:
            return self._not_eligible <= {host}
        return not self._cluster.network.has_cuts and not self._paused and self._are_all_in_sync()

    def _are_all_in_sync(self) -> bool:
        """Return whether all brokers are serving, and all replicas are in sync."""
        controller = self._cluster.controller
        return (
            controller is not None
            and not self._has_disk_faults()
            and all(self._cluster.is_serving(broker_id) for broker_id in self._settings.broker_ids)
            and _in_sync_everywhere(controller.side.metadata)
        )

    def _has_disk_faults(self) -> bool:
        return any(
            disk.lacks_descriptors or disk.is_full or disk.fails_flushes or disk.is_crashing
            for disk in self._cluster.disks.values()
        )

    def _is_noticed(self, host: str) -> bool:
        """Return whether the broker is serving again and all replicas are in sync."""
        controller = self._cluster.controller
        if controller is None:
            return False
        metadata = controller.side.metadata
        broker_id = self._broker_id(host)
        return self._cluster.is_serving(broker_id) and _in_sync_everywhere(metadata)

    def _broker_id(self, host: str) -> int:
        return next(each for each in self._settings.broker_ids if host_of(each) == host)

    def _stop(self, fault: Fault) -> None:
        broker_id = self._broker_id(fault.host)
        if not self._cluster.is_serving(broker_id):
            self._not_eligible.add(fault.host)  # The shutdown can be unclean.
        self._cluster.stop(broker_id, lambda: self._start_later(fault))

    def _controller_loses_power(self, fault: Fault) -> None:
        self._cluster.lose_power(fault.host, Random(fault.number))
        self._start_later(fault)

    def _pause(self, fault: Fault) -> None:
        self._paused[fault.host] = None
        self._cluster.pause(fault.host)
        self._later(fault, lambda: self._resume(fault.host))

    def _resume(self, host: str) -> None:
        self._paused.pop(host, None)
        self._cluster.resume(host)

    def _cut(self, fault: Fault) -> None:
        self._cut_link(fault, fault.other)

    def _isolate(self, fault: Fault) -> None:
        for other in self._cluster.hosts:
            if other != fault.host:
                self._cut_link(fault, other)

    def _cut_link(self, fault: Fault, other: str) -> None:
        breaks = fault.kind is FaultKind.CUT or (
            fault.kind is FaultKind.ISOLATE and fault.number % 2 == 0
        )
        until_ms = self._until_ms(fault.lasts_ms)
        self._cluster.network.cut(fault.host, other, until_ms=until_ms, breaks=breaks)

    def _slow_down(self, fault: Fault) -> None:
        """Delay all frames, or some of them, in one or both directions of a link.

        A slow request can arrive long after its sender has timed out and retried it. If the
        cluster does not fence such late requests, only responses are delayed on links to clients.
        """
        until_ms = self._until_ms(fault.lasts_ms)
        if fault.other == CLIENTS and fault.number % 4 == 0:
            self._cluster.network.cut(fault.host, CLIENTS, until_ms=until_ms, breaks=True)
            return
        slow_ms = SLOW_LINK_MS if fault.number // 32 % 4 else 0
        directions = [(fault.host, fault.other), (fault.other, fault.host)]
        if fault.other == CLIENTS and not fences_late_requests(self._settings):
            directions = directions[:1]
        elif fault.number // 8 % 3:
            directions = [directions[fault.number // 8 % 3 - 1]]
        for source, target in directions:
            self._cluster.network.slow_down(source, target, until_ms=until_ms, slow_ms=slow_ms)
        if fault.other != CLIENTS and fault.number // 128 % 2:
            self._move(fault)  # The requests of the old leader arrive late.

    def _strand(self, fault: Fault) -> None:
        """Stall the link from a leader to a follower, and then replace the leader.

        The follower is still in the ISR and may become the next leader. If the old leader is
        killed, records that it acknowledged too early are lost. Otherwise, requests that the old
        leader sent before its replacement arrive late.
        """
        until_ms = self._until_ms(fault.number // 16 % STRANDED_MAX_MS)
        self._cluster.network.cut(fault.host, fault.other, until_ms=until_ms, breaks=False)
        if fault.number // 16 // STRANDED_MAX_MS % 2:
            self._event_queue.at(
                until_ms, lambda: None if self._is_over or self._is_quiet() else self._kill(fault)
            )
        else:
            self._move(replace(fault, lasts_ms=0))

    def _delay_markers(self, fault: Fault) -> None:
        """Delay a transaction coordinator's requests to brokers, and then replace the coordinator.

        The transaction markers of the old coordinator arrive after the new coordinator has
        completed the transactions.
        """
        until_ms = self._until_ms(fault.lasts_ms)
        for broker_id in self._settings.broker_ids:
            if host_of(broker_id) != fault.host:
                self._cluster.network.slow_down(
                    fault.host, host_of(broker_id), until_ms=until_ms, requests_only=True
                )
        move = replace(fault, host=COORDINATOR, lasts_ms=0)
        self._event_queue.after(
            fault.number // 16 % REPLACEMENT_DELAY_MAX_MS,
            lambda: None if self._is_over else self._move(move),
        )

    def _empty_disk(self, fault: Fault) -> None:
        if self._has_elr and self._settings.brokers == 3 and fault.number % 2:
            self._lose_last_replica(fault)
        else:
            self._replace_disk(fault)

    def _lose_last_replica(self, fault: Fault) -> None:
        """Shut down both followers of a leader, and then cut its power or replace its disk.

        The follower that was in sync last must become the leader. The old leader has lost its
        records and must not become the leader.
        """
        lose = self._replace_disk if fault.kind is FaultKind.EMPTY_DISK else self._lose_power
        first, second = (
            broker_id for broker_id in self._settings.broker_ids if host_of(broker_id) != fault.host
        )
        followers_last_ms = fault.number // 16 % LAST_REPLICA_MS

        def start_later(broker_id: int) -> None:
            down = replace(fault, host=host_of(broker_id), lasts_ms=followers_last_ms)
            self._start_later(down)

        def stop_second() -> None:
            start_later(first)
            self._cluster.stop(second, lose_power)

        def lose_power() -> None:
            start_later(second)
            if not self._is_over:
                lose(fault)

        for broker_id in (first, second):
            if not self._cluster.is_serving(broker_id):
                self._not_eligible.add(host_of(broker_id))
        self._cluster.stop(first, stop_second)

    def _break(self, fault: Fault) -> None:
        self._cluster.network.break_some(fault.host, 0.5)

    def _take_descriptors(self, fault: Fault) -> None:
        disk = self._cluster.disks[fault.host]
        self._not_eligible.add(fault.host)
        disk.lacks_descriptors = Random(fault.number)

        def give_back() -> None:
            disk.lacks_descriptors = None

        self._later(fault, give_back)

    def _move(self, fault: Fault) -> None:
        partition = self._partition_for(fault)
        if partition is None:
            return
        others = sorted(each for each in partition.replicas if each != partition.leader)
        if fault.number // 16 % 2:
            others.reverse()
        until_ms = self._until_ms(fault.lasts_ms)
        self._moves_until_ms = max(self._moves_until_ms, until_ms)
        self._administrator.move_leader(
            TopicPartition(partition.topic, partition.partition),
            (*others, partition.leader),
            every_ms=30 + fault.number // 16 % 400,
            until_ms=until_ms,
        )

    def _crash(self, fault: Fault) -> None:
        """Crash a process in one of its next steps. A new process may crash while it starts."""
        disk = self._cluster.disks[fault.host]
        self._not_eligible.add(fault.host)
        loses_power = self._settings.flushes_always or fault.host == CONTROLLER
        disk.crash_after(
            Random(fault.number),
            loses_power=loses_power and bool(fault.number % 2),
        )

        def restart() -> None:
            disk.end_crash()
            self._start(fault.host)

        self._later(fault, restart)

    def _fail_flushes(self, fault: Fault) -> None:
        """Inject flush failures, and then restart the machine or only its process.

        If every append is flushed, the machine is restarted without its unflushed data. Otherwise,
        only the process is restarted, because a power loss could lose committed records.
        """
        disk = self._cluster.disks[fault.host]
        self._not_eligible.add(fault.host)
        disk.fails_flushes = True

        def restart() -> None:
            disk.fails_flushes = False
            if self._settings.flushes_always:
                self._cluster.lose_power(fault.host, Random(fault.number))
            self._start(fault.host)

        self._later(fault, restart)

    def _swap_disks(self, fault: Fault) -> None:
        """Start two brokers with each other's disks. Both brokers must fail to start."""
        hosts = (fault.host, fault.other)
        first, second = (self._cluster.disks[host] for host in hosts)
        if not (first.exists(META_PROPERTIES_FILE) and second.exists(META_PROPERTIES_FILE)):
            return
        self._not_eligible.update(hosts)
        for host in hosts:
            self._cluster.kill(host)
        first.swap(second)
        for host in hosts:
            self._cluster.start(host)
            if self._cluster.is_running(host):
                raise InvariantViolationError(f"{host} started with the disk of another broker")
        first.swap(second)
        for host in hosts:
            self._start_later(replace(fault, host=host))

    def _rot(self, fault: Fault) -> None:
        """Flip bits in files that have a checksum and can be rebuilt from the log."""
        self._not_eligible.add(fault.host)
        self._cluster.kill(fault.host)
        self._cluster.disks[fault.host].rot(SNAPSHOT_SUFFIX, Random(fault.number))
        self._start_later(fault)

    def _reassign(self, fault: Fault) -> None:
        """Reassign a partition, or change its replication factor if all brokers have replicas."""
        partition = self._partition_for(fault)
        if partition is None:
            return
        random = Random(fault.number)
        settings = self._settings
        count = settings.replication_factor
        if count == settings.brokers:
            count = random.choice((count - 1, count))
        self._administrator.reassign(
            TopicPartition(partition.topic, partition.partition),
            random.sample(settings.broker_ids, count),
            cancel_after_ms=fault.lasts_ms if random.random() < 0.3 else None,
        )

    def _fill_disk(self, fault: Fault) -> None:
        disk = self._cluster.disks[fault.host]
        self._not_eligible.add(fault.host)
        disk.is_full = True

        def make_room() -> None:
            disk.is_full = False
            self._start(fault.host)

        self._later(fault, make_room)


def fences_late_requests(settings: Settings) -> bool:
    """Return whether a producer's next transaction is safe from late requests.

    As in Kafka, the next transaction is not safe with `transaction.version` 1, because it has the
    same producer epoch as a late EndTxn or AddPartitionsToTxn request (KAFKA-17754).
    """
    return settings.transaction_version >= 2


def _in_sync_everywhere(metadata: ClusterMetadata) -> bool:
    return all(
        set(partition.isr) == set(partition.replicas)
        for topic in metadata.topics.values()
        for partition in topic.partitions.values()
    )


_HARMLESS = frozenset(
    {
        FaultKind.KILL_CONTROLLER,
        FaultKind.CONTROLLER_POWER_LOSS,
        FaultKind.PAUSE,
        FaultKind.CUT,
        FaultKind.STALL,
        FaultKind.ISOLATE,
        FaultKind.BREAK,
        FaultKind.MOVE,
        FaultKind.CLIENT_LINKS,
        FaultKind.SLOW,
        FaultKind.REASSIGN,
        FaultKind.LATE_MARKERS,
    }
)
"""Faults after which a broker is still eligible to lead."""

_INJECTORS: Mapping[FaultKind, Callable[[Faults, Fault], None]] = MappingProxyType(
    {
        FaultKind.KILL: Faults._kill,
        FaultKind.POWER_LOSS: Faults._lose_power,
        FaultKind.STOP: Faults._stop,
        FaultKind.KILL_CONTROLLER: Faults._kill,
        FaultKind.CONTROLLER_POWER_LOSS: Faults._controller_loses_power,
        FaultKind.PAUSE: Faults._pause,
        FaultKind.CUT: Faults._cut,
        FaultKind.STALL: Faults._cut,
        FaultKind.ISOLATE: Faults._isolate,
        FaultKind.BREAK: Faults._break,
        FaultKind.NO_DESCRIPTORS: Faults._take_descriptors,
        FaultKind.DISK_FULL: Faults._fill_disk,
        FaultKind.MOVE: Faults._move,
        FaultKind.STRAND: Faults._strand,
        FaultKind.LAST_REPLICA: Faults._lose_last_replica,
        FaultKind.CLIENT_LINKS: Faults._slow_down,
        FaultKind.SLOW: Faults._slow_down,
        FaultKind.FAILED_FLUSHES: Faults._fail_flushes,
        FaultKind.EMPTY_DISK: Faults._empty_disk,
        FaultKind.SWAPPED_DISKS: Faults._swap_disks,
        FaultKind.BIT_ROT: Faults._rot,
        FaultKind.REASSIGN: Faults._reassign,
        FaultKind.LATE_MARKERS: Faults._delay_markers,
        FaultKind.CRASH: Faults._crash,
    }
)
