"""Search for a shorter run that also fails.

Removes faults, clients and network problems from a failing plan if the plan still fails without
them. The number of runs is limited. Invariant: the returned run was executed and failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from integration.simulation.network import NetworkConditions
from integration.simulation.plan import Fault, Plan
from integration.simulation.run import Outcome

RUNS_MAX = 60


def shrink(failed: Outcome, run: Callable[[Plan], Outcome], *, runs_max: int = RUNS_MAX) -> Outcome:
    """Return the shortest failing run that was found.

    The search tries plans with fewer faults first, and then plans with fewer clients.
    """
    best, runs_left = failed, runs_max
    is_shorter = True
    while is_shorter and runs_left > 0:
        is_shorter = False
        for plan in _simpler(best.plan):
            if runs_left == 0:
                break
            runs_left -= 1
            outcome = run(plan)
            if outcome.violation is not None:
                best, is_shorter = outcome, True
                break
    return best


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Yield simpler plans.

    Each plan contains half the faults, one fewer fault, one fewer client, or no network problems.
    """
    faults = plan.faults
    half = len(faults) // 2
    if half > 1:
        yield _with_faults(plan, faults[:half])
        yield _with_faults(plan, faults[half:])
    for index in range(len(faults)):
        yield _with_faults(plan, faults[:index] + faults[index + 1 :])
    settings = plan.settings
    for fewer in (
        dataclasses.replace(settings, acks_one_producers=settings.acks_one_producers - 1),
        dataclasses.replace(settings, idempotent_producers=settings.idempotent_producers - 1),
        dataclasses.replace(settings, group_members=settings.group_members - 1),
        dataclasses.replace(settings, consumer_members=settings.consumer_members - 1),
        dataclasses.replace(settings, transactional_clients=settings.transactional_clients - 1),
    ):
        if fewer.is_valid:
            yield dataclasses.replace(plan, settings=fewer)
    calm = NetworkConditions(
        delay_max_ms=settings.network_conditions.delay_max_ms, slow_chance=0.0, break_chance=0.0
    )
    if settings.network_conditions != calm:
        yield dataclasses.replace(
            plan, settings=dataclasses.replace(settings, network_conditions=calm)
        )


def _with_faults(plan: Plan, faults: tuple[Fault, ...]) -> Plan:
    return dataclasses.replace(plan, faults=faults)
