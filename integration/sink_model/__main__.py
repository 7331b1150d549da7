"""`python -m integration.sink_model`: explore cases, or show how a mutation breaks the protocol.

--case NAME            one case; without it all small ones (--all: the large ones too)
--mutation NAME        that broken, in the case that finds it or the one that is named
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from integration.sink_model.cases import ALL, FOUND_BY, SMALL, UNSEEN
from integration.sink_model.explore import Outcome, explore


def report(outcome: Outcome) -> str:
    """What a person is to know of a case."""
    case = outcome.case
    broken = "" if case.mutation is None else f" with {case.mutation}"
    head = (
        f"{case.name}{broken}: {outcome.states} states, depth {outcome.depth}, "
        f"{outcome.seconds:.1f} s of CPU: {outcome.violation or 'all is well'}"
    )
    lines = [head]
    lines += [f"  {number:3} {line}" for number, line in enumerate(outcome.schedule, 1)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a property is violated, else 0."""
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
    name = chosen.case or FOUND_BY.get(chosen.mutation)
    cases = ALL.values() if chosen.all else SMALL
    is_violated = False
    for case in cases if name is None else (ALL[name],):
        outcome = explore(dataclasses.replace(case, mutation=chosen.mutation))
        sys.stdout.write(f"{report(outcome)}\n")
        sys.stdout.flush()
        is_violated = is_violated or outcome.violation is not None
    return int(is_violated)


if __name__ == "__main__":
    sys.exit(main())
