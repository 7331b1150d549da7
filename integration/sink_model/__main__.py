"""`python -m integration.sink_model`: check the protocol, or show how a mutation breaks it.

--case NAME            check one case (default: all small cases; --all: also the large cases)
--mutation NAME        introduce this error (default case: the case that detects the error)
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Final

from integration.sink_model.cases import ALL, FOUND_BY, SMALL, UNDETECTABLE
from integration.sink_model.explore import Outcome, explore

_NO_VIOLATION: Final = {True: "no violation", False: "incomplete because of too many states"}


def report(outcome: Outcome) -> str:
    """Return the result of a case as text, including the counterexample, if any."""
    case = outcome.case
    mutation = "" if case.mutation is None else f" with {case.mutation}"
    head = (
        f"{case.name}{mutation}: {outcome.states} states, depth {outcome.depth}, "
        f"{outcome.seconds:.1f} s of CPU: {outcome.violation or _NO_VIOLATION[outcome.is_complete]}"
    )
    lines = [head]
    lines += [f"  {number:3} {line}" for number, line in enumerate(outcome.trace, 1)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the cases; return 0 if all cases are complete without a violation, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m integration.sink_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", choices=sorted(ALL), metavar="NAME", help="check only this case")
    parser.add_argument("--all", action="store_true", help="also check the large cases")
    parser.add_argument(
        "--mutation",
        choices=sorted((*FOUND_BY, *UNDETECTABLE)),
        metavar="NAME",
        help="introduce this error into the protocol",
    )
    chosen = parser.parse_args(arguments)
    name = chosen.case or _case_of(chosen.mutation)
    cases = ALL.values() if chosen.all else SMALL
    is_complete = True
    for case in cases if name is None else (ALL[name],):
        outcome = explore(dataclasses.replace(case, mutation=chosen.mutation))
        sys.stdout.write(f"{report(outcome)}\n")
        sys.stdout.flush()
        is_complete = is_complete and outcome.is_complete
    return int(not is_complete)


def _case_of(mutation: str | None) -> str | None:
    found = FOUND_BY.get(mutation or "")
    return None if found is None else found.case


if __name__ == "__main__":
    sys.exit(main())
