"""The schedule of a chaos run: the faults to inject, and their start times and durations.

Invariant: the same seed and settings result in the same schedule. At most one fault at a time is
active in the cluster. Each cluster fault is repaired before the next cluster fault starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final


class FaultKind(Enum):
    """The kinds of faults, with their texts in the timeline."""

    KILL_BROKER = "kill -9 of broker"
    PAUSE_BROKER = "SIGSTOP of broker"
    RESTART_BROKER = "restart of broker"
    CUT_LINK = "no packets to or from broker"
    DELAY_LINK = "delayed packets to and from broker"
    DROP_CONNECTIONS = "closed connections to broker"
    LOSE_RESPONSES = "lost responses of broker"
    KILL_WORKER = "kill -9 of a Python worker"
    KILL_WORKERS = "kill -9 of all Python workers"
    KILL_EXECUTOR = "kill -9 of an executor"
    KILL_DRIVER = "kill -9 of the driver"
    STOP_DRIVER = "SIGSTOP of the driver until its successor is running"
    PAUSE_DRIVER = "SIGSTOP of the driver"
    STALL_SINK = "stall of the sink"


OF_CLUSTER: Final = (
    FaultKind.KILL_BROKER,
    FaultKind.PAUSE_BROKER,
    FaultKind.RESTART_BROKER,
    FaultKind.CUT_LINK,
    FaultKind.DELAY_LINK,
)
OF_QUERY: Final = (
    *(FaultKind.KILL_WORKER, FaultKind.LOSE_RESPONSES) * 3,
    *(FaultKind.KILL_WORKERS, FaultKind.DROP_CONNECTIONS) * 2,
    FaultKind.KILL_DRIVER,
    FaultKind.STOP_DRIVER,
)
"""Kinds that are repeated here are drawn more often."""

FIRST_OF_CLUSTER: Final = (FaultKind.KILL_BROKER, FaultKind.PAUSE_BROKER)
FIRST_OF_QUERY: Final = (FaultKind.KILL_WORKER, FaultKind.LOSE_RESPONSES)
"""Every schedule that is long enough contains each of these kinds, in random order."""

ENDS_OF_DRIVER: Final = (FaultKind.KILL_DRIVER, FaultKind.STOP_DRIVER)
"""Every schedule that is long enough also contains one of these kinds."""

_SECONDS: Final[Mapping[FaultKind, tuple[float, float]]] = {
    **dict.fromkeys({*OF_CLUSTER} - {FaultKind.RESTART_BROKER}, (1.0, 5.0)),
    FaultKind.PAUSE_DRIVER: (11.0, 14.0),
    FaultKind.STALL_SINK: (11.0, 14.0),
}
"""The shortest and longest duration of faults, by kind. Faults of other kinds have no duration."""

_OF_BROKERS: Final = frozenset({*OF_CLUSTER, FaultKind.LOSE_RESPONSES, FaultKind.DROP_CONNECTIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that starts `pause_s` seconds after the end of the previous fault.

    `seconds` is the duration, or 0 for a fault without a duration. `share` is a number from 0 to 1
    that selects a target, for example one of the workers.
    """

    pause_s: float
    kind: FaultKind
    broker: int | None = None
    seconds: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        broker = "" if self.broker is None else f" {self.broker}"
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind.value}{broker}{lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Two parallel sequences of faults, one for the cluster and one for the query."""

    of_cluster: tuple[Fault, ...]
    of_query: tuple[Fault, ...]

    def __len__(self) -> int:
        return len(self.of_cluster) + len(self.of_query)


def schedule_of(
    seed: int, *, seconds: float, brokers: int, more: Sequence[FaultKind] = ()
) -> Schedule:
    """Return the schedule for `seed`. Each sequence of faults lasts about `seconds` seconds.

    The sequence for the query starts with one fault of each required kind and one fault for each
    element of `more`, in random order. Kinds in `more` may occur again later in the sequence.
    """
    random = Random(seed)  # noqa: S311

    def track(
        first: Sequence[FaultKind], others: Sequence[FaultKind], longest_s: float
    ) -> tuple[Fault, ...]:
        left = random.sample(first, len(first))
        faults: list[Fault] = []
        while sum(fault.pause_s + fault.seconds for fault in faults) < seconds:
            kind = left.pop() if left else random.choice(others)
            fault = Fault(
                pause_s=random.uniform(1.0, longest_s),
                kind=kind,
                broker=random.randint(1, brokers) if kind in _OF_BROKERS else None,
                seconds=random.uniform(*_SECONDS[kind]) if kind in _SECONDS else 0.0,
                share=random.random(),
            )
            faults.append(fault)
        return tuple(faults)

    first_of_query = (*FIRST_OF_QUERY, random.choice(ENDS_OF_DRIVER), *more)
    return Schedule(
        of_cluster=track(FIRST_OF_CLUSTER, OF_CLUSTER, 6.0),
        of_query=track(first_of_query, (*OF_QUERY, *more), 8.0),
    )
