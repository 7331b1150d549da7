"""The plan of a sink run: the query, its faults, and the faults of the cluster.

Invariant: a plan depends only on its seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from integration.simulation.plan import FAULTS_BEGIN_MS, FAULTS_END_MS, Plan, plan_of
from pyspark_kafka.sink.exactly_once.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The input of the query, and the probabilities of faults in its processes.

    `batches` contains the number of rows of each task, for each micro-batch. The probabilities
    apply to each failpoint that a process reaches, and are higher for the step `focus`.
    `skew_ms_max` is the largest difference between the clock of a process and the brokers' clocks.
    With `expires_ids`, the coordinator removes a transactional id after four seconds without a
    transaction. At `upgrades_at_ms`, an administrator sets `transaction.version` to 2.
    """

    batches: tuple[tuple[int, ...], ...]
    partitions: int
    timeout_ms: int
    commits_offsets: bool
    kill_chance: float
    stall_chance: float
    stall_ms_max: int
    speculation_chance: float
    focus: str
    zombie_chance: float
    duplicates: int
    skew_ms_max: int
    expires_ids: bool
    upgrades_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """All random choices of a seed, except those that the processes make while they run."""

    cluster: Plan
    workload: Workload

    @property
    def seed(self) -> int:
        return self.cluster.seed


def sink_plan_of(seed: int) -> SinkPlan:
    """Return the plan for a seed."""
    random = Random(f"sink {seed}")
    batches = tuple(
        tuple(random.choice((0, 1, 1, 2)) for _ in range(random.choice((1, 2, 2, 3))))
        for _ in range(random.randint(3, 8))
    )
    workload = Workload(
        batches=batches,
        partitions=random.choice((1, 2)),
        timeout_ms=random.choice((3_000, 6_000, 20_000)),
        commits_offsets=random.random() < 0.5,
        kill_chance=random.choice((0.0, 0.01, 0.04)),
        stall_chance=random.choice((0.0, 0.01, 0.03)),
        stall_ms_max=random.choice((300, 2_000, 8_000)),
        speculation_chance=random.choice((0.0, 0.2, 0.5)),
        focus=random.choice(list(Step)).title,
        zombie_chance=random.choice((0.0, 0.5, 1.0)),
        duplicates=random.choice((0, 0, 1, 2)),
        skew_ms_max=random.choice((0, 200)),
        expires_ids=random.random() < 0.2,
        upgrades_at_ms=random.choice((None, random.randint(FAULTS_BEGIN_MS, FAULTS_END_MS))),
    )
    return SinkPlan(cluster=plan_of(seed), workload=workload)
