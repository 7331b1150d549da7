"""What fails, when and for how long: a schedule, drawn by a seed.

Purpose: `schedule_of`. Invariant: the same seed and settings give the same schedule; of the cluster
one thing fails at a time, and what fails comes back with time to catch up. What it must not know:
how a fault is brought about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
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
    *(Kind.KILL_WORKER, Kind.LOSE_ANSWERS) * 3,
    *(Kind.KILL_WORKERS, Kind.DROP_CONNECTIONS) * 2,
    Kind.KILL_DRIVER,
)
"""As often as each is drawn."""

FIRST_OF_CLUSTER: Final = (Kind.KILL_BROKER, Kind.PAUSE_BROKER)
FIRST_OF_QUERY: Final = (Kind.KILL_WORKER, Kind.KILL_DRIVER, Kind.LOSE_ANSWERS)
"""Each of these is in every schedule that is long enough, in any order."""

_LASTING: Final = frozenset({*OF_CLUSTER} - {Kind.RESTART_BROKER})
_OF_NO_BROKER: Final = frozenset({Kind.KILL_WORKER, Kind.KILL_WORKERS, Kind.KILL_DRIVER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`pause_s` after the one before is over; `seconds` it lasts, 0 for what is over at once.

    `share` is a number from 0 to 1 that chooses among what there is then, such as workers.
    """

    pause_s: float
    kind: Kind
    broker: int | None = None
    seconds: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        broker = "" if self.broker is None else f" {self.broker}"
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind.value}{broker}{lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Faults of the cluster one after another, and beside them those of the query."""

    of_cluster: tuple[Fault, ...]
    of_query: tuple[Fault, ...]

    def __len__(self) -> int:
        return len(self.of_cluster) + len(self.of_query)


def schedule_of(seed: int, *, seconds: float, brokers: int) -> Schedule:
    """The faults of a seed, about so many seconds of each sort."""
    random = Random(seed)  # noqa: S311

    def track(first: Sequence[Kind], others: Sequence[Kind], longest_s: float) -> tuple[Fault, ...]:
        left = random.sample(first, len(first))
        faults: list[Fault] = []
        while sum(fault.pause_s + fault.seconds for fault in faults) < seconds:
            kind = left.pop() if left else random.choice(others)
            fault = Fault(
                pause_s=random.uniform(1.0, longest_s),
                kind=kind,
                broker=None if kind in _OF_NO_BROKER else random.randint(1, brokers),
                seconds=random.uniform(1.0, 5.0) if kind in _LASTING else 0.0,
                share=random.random(),
            )
            faults.append(fault)
        return tuple(faults)

    return Schedule(
        of_cluster=track(FIRST_OF_CLUSTER, OF_CLUSTER, 6.0),
        of_query=track(FIRST_OF_QUERY, OF_QUERY, 8.0),
    )
