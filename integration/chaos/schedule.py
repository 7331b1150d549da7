"""What fails, when and for how long: a schedule, drawn by a seed.

Purpose: `schedule_of`. Invariant: the same seed and settings give the same schedule; of the cluster
one thing fails at a time, and what fails comes back with time to catch up, since a replica that is
gone while another is not in sync yet would be Kafka's loss and not the sink's. What it must not know:
how a fault is brought about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import chain
from random import Random
from typing import Final


class Kind(Enum):
    """What fails."""

    KILL_BROKER = "kill -9 of broker"
    PAUSE_BROKER = "SIGSTOP of broker"
    RESTART_BROKER = "restart of broker"
    CUT_LINK = "no packet to or from broker"
    DELAY_LINK = "slow packets to and from broker"
    DROP_CONNECTIONS = "connections end to broker"
    LOSE_ANSWERS = "lost answers of broker"
    KILL_WORKER = "kill -9 of a Python worker"
    KILL_WORKERS = "kill -9 of all Python workers"
    KILL_DRIVER = "kill -9 of the driver"


OF_CLUSTER: Final = (
    Kind.KILL_BROKER,
    Kind.PAUSE_BROKER,
    Kind.RESTART_BROKER,
    Kind.CUT_LINK,
    Kind.DELAY_LINK,
)
OF_QUERY: Final = (
    Kind.KILL_WORKER,
    Kind.KILL_WORKERS,
    Kind.LOSE_ANSWERS,
    Kind.DROP_CONNECTIONS,
)
ALWAYS: Final = (Kind.KILL_BROKER, Kind.KILL_WORKER, Kind.KILL_DRIVER, Kind.LOSE_ANSWERS)
"""Each of these is in every schedule that is long enough."""

_SECONDS_OF_A_DRIVER: Final = 20.0
"""Spark needs so long to be there again; faults meanwhile would hit nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`at_s` after the beginning; `seconds` until it is over, 0 for what is over at once.

    `share` is a number from 0 to 1 that chooses among what there is then, such as workers.
    """

    at_s: float
    kind: Kind
    broker: int | None = None
    seconds: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        broker = "" if self.broker is None else f" {self.broker}"
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind.value}{broker}{lasts}"


def schedule_of(seed: int, *, seconds: float, brokers: int) -> list[Fault]:
    """The faults of a seed, in order."""
    random = Random(seed)  # noqa: S311
    of_cluster = _track(random, OF_CLUSTER, seconds=seconds, pause_s=(3.0, 7.0))
    of_query = _track(random, OF_QUERY, seconds=seconds, pause_s=(2.0, 6.0))
    faults = [
        Fault(
            at_s=at_s,
            kind=kind,
            broker=None if kind in _OF_NO_BROKER else random.randint(1, brokers),
            seconds=lasts_s,
            share=random.random(),
        )
        for at_s, kind, lasts_s in chain(of_cluster, of_query)
    ]
    return sorted(faults, key=lambda fault: fault.at_s)


_OF_NO_BROKER: Final = frozenset({Kind.KILL_WORKER, Kind.KILL_WORKERS, Kind.KILL_DRIVER})
_LASTING: Final = frozenset({*OF_CLUSTER} - {Kind.RESTART_BROKER})


def _track(
    random: Random, kinds: tuple[Kind, ...], *, seconds: float, pause_s: tuple[float, float]
) -> list[tuple[float, Kind, float]]:
    """Faults one after another; first those that are always there, in any order."""
    first = [
        kind for kind in ALWAYS if kind in kinds or (kinds is OF_QUERY and kind not in OF_CLUSTER)
    ]
    random.shuffle(first)
    found = []
    at_s = random.uniform(0.5, 3.0)
    while at_s < seconds:
        kind = first.pop() if first else random.choice(kinds)
        lasts_s = random.uniform(1.0, 5.0) if kind in _LASTING else 0.0
        found.append((at_s, kind, lasts_s))
        at_s += lasts_s + random.uniform(*pause_s)
        at_s += _SECONDS_OF_A_DRIVER if kind is Kind.KILL_DRIVER else 0.0
    return found
