"""The plan for a seed: the cluster, its clients, the faults, and the times of the faults.

The plan contains all random choices of a run as values. These values can be printed, and can be
removed one by one to find a shorter failing run. Each seed uses only some kinds of faults, so runs
vary more. Invariant: a plan depends only on its seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from types import MappingProxyType
from typing import Final

from integration.simulation.cluster import CONTROLLER, host_of
from integration.simulation.network import CLIENTS, NetworkConditions

LEADER: Final = "a leader"
"""A placeholder for the host of the broker that leads a partition when the fault is injected."""
COORDINATOR: Final = "a transaction coordinator"
"""A placeholder for the host of a transaction coordinator when the fault is injected."""

FAULTS_BEGIN_MS: Final = 1_500
FAULTS_END_MS: Final = 8_500
LAST_REPLICA_MS: Final = 3_000
"""The maximum time until the followers are started again, in milliseconds."""


class FaultKind(Enum):
    """The kinds of faults. Each fault is repaired when its duration has elapsed."""

    KILL = "a broker's process is killed and restarted"
    POWER_LOSS = "a broker's machine loses power, and its unflushed data is lost"
    STOP = "a broker is shut down cleanly and restarted"
    KILL_CONTROLLER = "the controller's process is killed"
    CONTROLLER_POWER_LOSS = "the controller's machine loses power"
    PAUSE = "a node is paused"
    CUT = "a link between two hosts is cut, and their connections are reset"
    STALL = "frames between two hosts are delayed"
    ISOLATE = "a broker is isolated from all other nodes"
    BREAK = "connections of a host are reset"
    NO_DESCRIPTORS = "a broker sometimes cannot open a file"
    DISK_FULL = "a broker's disk is full"
    MOVE = "an administrator elects one replica after another as leader"
    STRAND = "a leader cannot reach a follower and is then replaced"
    LAST_REPLICA = "a leader's machine loses power after all followers have been shut down cleanly"
    CLIENT_LINKS = "clients reach a broker late, in one direction only, or not at all"
    SLOW = "frames between two hosts are slow or delayed, in one or both directions"
    FAILED_FLUSHES = "flushes to a broker's disk fail"
    EMPTY_DISK = "a broker's disk is replaced with an empty one"
    SWAPPED_DISKS = "two brokers are started with each other's disks, which they must refuse"
    BIT_ROT = "bits of a broker's producer snapshots flip while it is down"
    REASSIGN = "an administrator moves a partition to other brokers"
    LATE_MARKERS = "a transaction coordinator is replaced while its requests to brokers are late"
    CRASH = "a process ends between two disk operations of the same step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that affects `host`, and `other` if it is not empty. Times are in milliseconds."""

    at_ms: int
    kind: FaultKind
    host: str
    other: str = ""
    lasts_ms: int = 0
    number: int = 0
    """A random number that determines the details of the fault."""

    def __str__(self) -> str:
        other = f" and {self.other}" if self.other else ""
        return f"{self.kind.name} {self.host}{other} for {self.lasts_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the cluster and its clients."""

    network_conditions: NetworkConditions
    flushes_always: bool
    min_insync_replicas: int
    partitions: int
    segment_ms: int
    idempotent_producers: int
    acks_one_producers: int
    pace_ms: int
    group_members: int = 0
    transactional_clients: int = 0
    transaction_version: int = 2
    has_static_members: bool = False
    members_use_transactions: bool = False
    """Whether group members commit their offsets in transactions."""
    consumer_members: int = 0
    """The members of the group with the consumer protocol."""
    reads_from_followers: bool = False
    brokers: int = 3
    replication_factor: int = 3
    """The replication factor of all topics, including the internal topics."""
    internal_partitions: int = 1
    compacts_internal_topics: bool = False
    recreates_topic: bool = False
    clock_skew_ms_max: int = 0
    """The maximum difference between a node's clock and the correct time."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers."""
        return tuple(range(1, self.brokers + 1))

    @property
    def is_valid(self) -> bool:
        """Whether all client counts are at least zero."""
        counts = (self.acks_one_producers, self.idempotent_producers, self.group_members)
        return min(*counts, self.transactional_clients, self.consumer_members) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All random choices of a seed."""

    seed: int
    settings: Settings
    faults: tuple[Fault, ...]


def plan_of(seed: int) -> Plan:
    """Return the plan for a seed."""
    random = Random(f"plan {seed}")
    settings = replace(
        _with_topology(_settings(random), seed),
        members_use_transactions=Random(f"offset transactions {seed}").random() < 0.3,
        has_static_members=Random(f"static members {seed}").random() < 0.3,
        consumer_members=Random(f"consumer members {seed}").choice((0, 0, 0, 2, 3)),
        reads_from_followers=Random(f"reads from followers {seed}").random() < 0.3,
        recreates_topic=Random(f"recreates topic {seed}").random() < 0.2,
        compacts_internal_topics=Random(f"compaction {seed}").random() < 0.3,
        clock_skew_ms_max=Random(f"clock skew {seed}").choice((0, 0, 0, 3_000)),
    )
    kinds = _kinds(random)
    faults: list[Fault] = []
    at_ms = FAULTS_BEGIN_MS
    for _ in range(random.randint(2, 9)):
        # Faults that coincide reveal more bugs than separate faults.
        if not faults or random.random() < 0.5:
            at_ms = random.randint(FAULTS_BEGIN_MS, FAULTS_END_MS)
        else:
            at_ms = min(at_ms + random.randint(0, 600), FAULTS_END_MS)
        faults.append(_fault(random, random.choice(kinds), at_ms, settings))
    faults += _last_replica(seed, settings)
    for kind in _ADDED:
        faults += _added(seed, kind, settings)
    return Plan(
        seed=seed,
        settings=settings,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def _settings(random: Random) -> Settings:
    network_conditions = NetworkConditions(
        delay_max_ms=random.choice((2, 5, 20)),
        slow_chance=random.choice((0.0, 0.01, 0.05)),
        break_chance=random.choice((0.0, 0.0, 0.002, 0.01)),
    )
    return Settings(
        network_conditions=network_conditions,
        flushes_always=random.random() < 0.4,
        min_insync_replicas=random.choice((1, 2, 2)),
        partitions=random.choice((1, 2)),
        segment_ms=random.choice((200, 1_000, 1 << 40)),
        idempotent_producers=random.choice((1, 1, 2)),
        acks_one_producers=random.choice((0, 0, 1)),
        pace_ms=random.choice((60, 120, 250)),
        group_members=random.choice((0, 0, 2, 3)),
        transactional_clients=random.choice((0, 1, 2, 3)),
        transaction_version=random.choice((1, 2)),
    )


def _with_topology(settings: Settings, seed: int) -> Settings:
    """Return the settings with a topology that depends on `seed`.

    For some seeds, the number of brokers, the replication factor and the number of partitions of
    internal topics differ from `settings`. `min.insync.replicas` is at most the replication factor,
    like the effective value in Kafka.
    """
    random = Random(f"topology {seed}")
    if random.random() < 0.7:
        return settings
    replication_factor = random.choice((1, 2, 3, 3))
    return replace(
        settings,
        brokers=random.choice((3, 4, 5)),
        replication_factor=replication_factor,
        min_insync_replicas=min(settings.min_insync_replicas, replication_factor),
        internal_partitions=random.choice((1, 2, 3)),
    )


def _last_replica(seed: int, settings: Settings) -> list[Fault]:
    """Return a `LAST_REPLICA` fault for some seeds, and an empty list for all others.

    After this fault, only eligible leader replicas have all records.
    """
    random = Random(f"last replica {seed}")
    if settings.min_insync_replicas < 2 or random.random() < 0.75 or settings.brokers > 3:
        return []
    return [
        Fault(
            at_ms=random.randint(FAULTS_BEGIN_MS, FAULTS_END_MS - LAST_REPLICA_MS),
            kind=FaultKind.LAST_REPLICA,
            host=LEADER,
            lasts_ms=random.choice((50, 1_000, 2_500)),
            number=random.getrandbits(32),
        )
    ]


def _added(seed: int, kind: FaultKind, settings: Settings) -> list[Fault]:
    """Return the faults of one kind. Only some runs contain faults of this kind."""
    random = Random(f"{kind.name} {seed}")
    if random.random() >= _ADDED[kind]:
        return []
    return [
        _fault(random, kind, random.randint(FAULTS_BEGIN_MS, FAULTS_END_MS), settings)
        for _ in range(random.randint(1, 3))
    ]


_ADDED: Final[Mapping[FaultKind, float]] = MappingProxyType(
    {
        FaultKind.CRASH: 0.2,
        FaultKind.CLIENT_LINKS: 0.25,
        FaultKind.SLOW: 0.15,
        FaultKind.FAILED_FLUSHES: 0.1,
        FaultKind.EMPTY_DISK: 0.1,
        FaultKind.SWAPPED_DISKS: 0.05,
        FaultKind.BIT_ROT: 0.1,
        FaultKind.REASSIGN: 0.15,
        FaultKind.LATE_MARKERS: 0.1,
    }
)
"""Kinds of faults with their own random choices, and the share of runs that contain them.

A new kind changes only the plans that contain it.
"""


def _kinds(random: Random) -> Sequence[FaultKind]:
    kinds = [
        kind for kind in FaultKind if kind is not FaultKind.LAST_REPLICA and kind not in _ADDED
    ]
    return random.sample(kinds, random.randint(1, 5))


def _fault(random: Random, kind: FaultKind, at_ms: int, settings: Settings) -> Fault:
    host, other = random.sample([host_of(broker_id) for broker_id in settings.broker_ids], 2)
    if random.random() < 0.4:
        host = LEADER
    if kind in {FaultKind.KILL_CONTROLLER, FaultKind.CONTROLLER_POWER_LOSS}:
        host, other = CONTROLLER, ""
    elif kind is FaultKind.STRAND:
        host = LEADER
    elif kind is FaultKind.LATE_MARKERS:
        host, other = COORDINATOR, ""
    elif kind is FaultKind.CLIENT_LINKS:
        other = CLIENTS
        if random.random() < 0.6:
            host = COORDINATOR
    elif kind in {FaultKind.CUT, FaultKind.STALL, FaultKind.SLOW}:
        if random.random() < 0.4:
            other = CONTROLLER
    elif kind not in {FaultKind.MOVE, FaultKind.SWAPPED_DISKS}:
        other = ""
        if kind in {FaultKind.PAUSE, FaultKind.CRASH} and random.random() < 0.2:
            host = CONTROLLER
    lasts_ms = random.choice((50, 300, 1_000, 2_500, 4_000))
    if kind in {FaultKind.CLIENT_LINKS, FaultKind.LATE_MARKERS}:  # Few requests are late.
        lasts_ms = max(lasts_ms, 2_500)
    return Fault(
        at_ms=at_ms,
        kind=kind,
        host=host,
        other=other,
        lasts_ms=lasts_ms,
        number=random.getrandbits(32),
    )
