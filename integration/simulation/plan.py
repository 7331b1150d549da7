"""What a seed chooses: the cluster, its work, and what goes wrong when.

Purpose: everything that is random about a run before it begins, as values: printed, and taken away
one by one to find a shorter run that fails as well. Each seed has a taste: only some kinds of
faults, so that runs differ in more than their order. Invariant: a plan depends on its seed alone.
What it must not know: how any of it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from integration.simulation.cluster import CONTROLLER, host_of
from integration.simulation.network import Weather

BROKERS: Final = (1, 2, 3)
LEADER: Final = "a leader"
"""In place of a host: the broker that leads a partition when the time has come."""

FAULTS_BEGIN_MS: Final = 1_500
FAULTS_END_MS: Final = 8_500


class FaultKind(Enum):
    """What can go wrong; each lasts for a while and is then mended."""

    KILL = "a broker's process ends, and is started again"
    POWER_LOSS = "a broker's machine loses power, and what it had not flushed"
    STOP = "a broker is stopped in order, and started again"
    KILL_CONTROLLER = "the controller's process ends"
    CONTROLLER_POWER_LOSS = "the controller's machine loses power"
    PAUSE = "a node stands still"
    CUT = "a link between two hosts breaks, and their connections"
    STALL = "frames between two hosts wait"
    ISOLATE = "a broker is cut off from all other nodes"
    BREAK = "connections of a host are reset"
    NO_DESCRIPTORS = "a broker now and then cannot open a file"
    DISK_FULL = "a broker's disk is full"
    MOVE = "an administrator lets one replica after the other lead a partition"
    STRAND = "a leader does not reach another broker for a while, and leads no more then"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong with `host`, and `other` where it takes two; times in ms."""

    at_ms: int
    kind: FaultKind
    host: str
    other: str = ""
    lasts_ms: int = 0
    number: int = 0
    """What is random about how it is done."""

    def __str__(self) -> str:
        other = f" and {self.other}" if self.other else ""
        return f"{self.kind.name} {self.host}{other} for {self.lasts_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The cluster and its work."""

    weather: Weather
    flushes_always: bool
    min_insync_replicas: int
    partitions: int
    segment_ms: int
    idempotent_producers: int
    careless_producers: int
    pace_ms: int
    group_members: int = 0
    transactional_clients: int = 0
    transaction_version: int = 2

    @property
    def is_possible(self) -> bool:
        """Whether there are not less than no clients."""
        counts = (self.careless_producers, self.idempotent_producers, self.group_members)
        return min(*counts, self.transactional_clients) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A seed's choices."""

    seed: int
    settings: Settings
    faults: tuple[Fault, ...]


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(f"plan {seed}")
    settings = _settings(random)
    kinds = _taste(random)
    faults: list[Fault] = []
    at_ms = FAULTS_BEGIN_MS
    for _ in range(random.randint(2, 9)):
        # Things that go wrong together find more than things that go wrong one by one.
        if not faults or random.random() < 0.5:
            at_ms = random.randint(FAULTS_BEGIN_MS, FAULTS_END_MS)
        else:
            at_ms = min(at_ms + random.randint(0, 600), FAULTS_END_MS)
        faults.append(_fault(random, random.choice(kinds), at_ms))
    return Plan(
        seed=seed,
        settings=settings,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def _settings(random: Random) -> Settings:
    weather = Weather(
        delay_max_ms=random.choice((2, 5, 20)),
        slow_chance=random.choice((0.0, 0.01, 0.05)),
        break_chance=random.choice((0.0, 0.0, 0.002, 0.01)),
    )
    return Settings(
        weather=weather,
        flushes_always=random.random() < 0.4,
        min_insync_replicas=random.choice((1, 2, 2)),
        partitions=random.choice((1, 2)),
        segment_ms=random.choice((200, 1_000, 1 << 40)),
        idempotent_producers=random.choice((1, 1, 2)),
        careless_producers=random.choice((0, 0, 1)),
        pace_ms=random.choice((60, 120, 250)),
        group_members=random.choice((0, 0, 2, 3)),
        transactional_clients=random.choice((0, 1, 2, 3)),
        transaction_version=random.choice((1, 2)),
    )


def _taste(random: Random) -> Sequence[FaultKind]:
    kinds = list(FaultKind)
    return random.sample(kinds, random.randint(1, 5))


def _fault(random: Random, kind: FaultKind, at_ms: int) -> Fault:
    host, other = random.sample([host_of(broker_id) for broker_id in BROKERS], 2)
    if random.random() < 0.4:
        host = LEADER
    if kind in {FaultKind.KILL_CONTROLLER, FaultKind.CONTROLLER_POWER_LOSS}:
        host, other = CONTROLLER, ""
    elif kind is FaultKind.STRAND:
        host = LEADER
    elif kind in {FaultKind.CUT, FaultKind.STALL}:
        if random.random() < 0.4:
            other = CONTROLLER
    elif kind is not FaultKind.MOVE:
        other = ""
        if kind is FaultKind.PAUSE and random.random() < 0.2:
            host = CONTROLLER
    return Fault(
        at_ms=at_ms,
        kind=kind,
        host=host,
        other=other,
        lasts_ms=random.choice((50, 300, 1_000, 2_500, 4_000)),
        number=random.getrandbits(32),
    )
