"""`python -m integration.sink_model`: explore cases, or show how a mutation breaks the protocol.

--case NAME            one case; without it all small ones (--all: the large ones too)
--mutation NAME        that broken, in the case that finds it or the one that is named
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Final

from integration.sink_model.cases import ALL, FOUND_BY, SMALL, UNSEEN
from integration.sink_model.explore import Outcome, explore

_WELL: Final = {True: "all is well", False: "not explored to the end"}


def report(outcome: Outcome) -> str:
    """What a person is to know of a case."""
    case = outcome.case
    broken = "" if case.mutation is None else f" with {case.mutation}"
    head = (
        f"{case.name}{broken}: {outcome.states} states, depth {outcome.depth}, "
        f"{outcome.seconds:.1f} s of CPU: {outcome.violation or _WELL[outcome.is_complete]}"
    )
    lines = [head]
    lines += [f"  {number:3} {line}" for number, line in enumerate(outcome.schedule, 1)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every case was explored to its end with nothing violated, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m integration.sink_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=sorted(ALL), metavar="NAME", help="one case")
    parser.add_argument("--all", action="store_true", help="the large cases too")
    parser.add_argument(
        "--mutation", choices=sorted((*FOUND_BY, *UNSEEN)), metavar="NAME", help="broken so"
    )
    chosen = parser.parse_args(arguments)
    name = chosen.case or _case_of(chosen.mutation)
    cases = ALL.values() if chosen.all else SMALL
    is_well = True
    for case in cases if name is None else (ALL[name],):
        outcome = explore(dataclasses.replace(case, mutation=chosen.mutation))
        sys.stdout.write(f"{report(outcome)}\n")
        sys.stdout.flush()
        is_well = is_well and outcome.is_complete
    return int(not is_well)


def _case_of(mutation: str | None) -> str | None:
    found = FOUND_BY.get(mutation or "")
    return None if found is None else found.case


if __name__ == "__main__":
    sys.exit(main())
