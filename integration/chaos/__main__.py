"""`python -m integration.chaos`: run seeds, and say what became of each.

--seeds 1:6                those from 1 to 5; --seed 3 is one
--backend kafka            Apache Kafka (default: reference-processes)
--seconds 60               how long faults go on for
--control                  Spark's own connector through the same, for comparison
--table docs/chaos.md      put a line for each seed into the table of this file
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from integration.chaos import page
from integration.chaos.run import Outcome, Setup, run

_SECONDS_MAX = 86_400.0
_BACKENDS = ("reference-processes", "kafka")


def report(outcome: Outcome) -> str:
    """What a person is to know of a run; of one that failed, everything."""
    setup, verdict = outcome.setup, outcome.verdict
    whose = "Spark's connector" if setup.is_control else "pyspark_kafka"
    head = (
        f"seed {setup.seed}, {whose} on {setup.backend}, {outcome.faults} faults in "
        f"{setup.seconds:g} s, {outcome.driver_starts} drivers, {outcome.query_failures} failures "
        f"of the query, {outcome.seconds:.0f} s in all"
    )
    if verdict is None:
        told = f"no verdict: {outcome.failure}"
    else:
        told = f"{verdict.rows} rows, {verdict.lost} lost, {verdict.duplicates} duplicates"
        told += "".join(f"; {each}" for each in verdict.stuck)
    lines = [head, f"  {told}"]
    if not outcome.is_well and not setup.is_control:
        lines += [f"  {line}" for line in outcome.timeline]
        lines.append(f"replay with: make chaos SEED={setup.seed} BACKEND={setup.backend}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 0 where all is well, 1 where a seed fails.

    Of the control nothing is asked but an end.
    """
    asked = _parser().parse_args(arguments)
    failed = False
    for seed in asked.seeds:
        setup = Setup(
            seed=seed, backend=asked.backend, seconds=asked.seconds, is_control=asked.control
        )
        outcome = run(setup)
        _say(report(outcome))
        if asked.table is not None:
            page.add(asked.table, [page.row(outcome)])
        failed |= outcome.verdict is None if asked.control else not outcome.is_well
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=_one, dest="seeds", help="this one")
    what.add_argument("--seeds", type=_range, help="those from FIRST up to END: FIRST:END")
    parser.add_argument("--backend", choices=_BACKENDS, default=_BACKENDS[0])
    parser.add_argument("--seconds", type=_seconds, default=60.0, help="of faults")
    parser.add_argument("--control", action="store_true", help="Spark's own connector")
    parser.add_argument("--table", type=Path, metavar="FILE", help="put results into its table")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"faults cannot go on for {text!r}: give seconds, more than 0 and at most "
            f"{_SECONDS_MAX:g}"
        )
    return seconds


def _one(text: str) -> range:
    try:
        return range(int(text), int(text) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no seed: give a whole number, such as 17"
        ) from None


def _range(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end))
    except ValueError:
        seeds = range(0)
    if not colon or not seeds:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no seeds: give the first and the one after the last, such as 1:6"
        )
    return seeds


def _say(words: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
