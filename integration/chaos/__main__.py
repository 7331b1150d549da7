"""`python -m integration.chaos`: run seeds and report the outcome of each.

--seeds 1:6                run seeds 1 to 5; --seed 3 runs only seed 3
--backend kafka            use Apache Kafka (default: reference-processes)
--kind aggregation         run this kind of query (default: the seed determines the kind)
--seconds 60               inject faults for this many seconds
--control                  run Spark's own connector, for comparison
--timeline                 print the timeline of every seed, not only of failed seeds
--secured                  connect over SASL_SSL as a user with the ACLs in docs/exactly-once.md

Writes build/reports/chaos-*.{json,md}.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration import reports
from integration.chaos.kinds import KINDS
from integration.chaos.report import exercised, render, rows
from integration.chaos.run import Outcome, Setup, run

_SECONDS_MAX = 86_400.0
_BACKENDS = ("reference-processes", "kafka")


def report(outcome: Outcome, *, has_timeline: bool = False) -> str:
    """Return the result of a run as text, with the timeline if requested or if the run failed."""
    setup, delivery = outcome.setup, outcome.delivery
    whose = "Spark's connector" if setup.is_control else "pyspark_kafka"
    head = (
        f"seed {setup.seed}, {setup.kind.name}, {whose} on {setup.backend} with "
        f"transaction.version {setup.transaction_version}, {outcome.faults} faults in "
        f"{setup.seconds:g} s, {outcome.driver_starts} driver starts, "
        f"{outcome.replaced_drivers} replaced drivers, "
        f"{outcome.query_failures} query failures, {outcome.seconds:.0f} s in total"
    )
    if delivery is None:
        result = f"the run did not complete: {outcome.failure}"
    else:
        result = f"{delivery.rows} rows, {delivery.lost} lost, {delivery.duplicates} duplicates"
        result += "".join(f"; {each}" for each in (*delivery.problems, *delivery.examples))
    lines = [head, f"  {result}", f"  exercised: {exercised(outcome) or 'nothing special'}"]
    failed = not outcome.is_exactly_once and not setup.is_control
    if failed or has_timeline:
        lines += [f"  {line}" for line in outcome.timeline]
    if failed:
        secured = " --secured" if setup.is_secured else ""
        lines.append(
            "replay with: python -m integration.chaos "
            f"--seed {setup.seed} --kind {setup.kind.name} --backend {setup.backend}{secured}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chaos test with each seed. Return 1 if a run fails, and 0 otherwise.

    A control run (`--control`) fails only if it does not complete.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.control and options.kind is not None and not KINDS[options.kind].has_control:
        parser.error(f"--kind {options.kind}: this query does not support --control")
    failed = False
    outcomes: list[Outcome] = []
    for seed in options.seeds:
        setup = Setup(
            seed=seed,
            backend=options.backend,
            seconds=options.seconds,
            is_control=options.control,
            is_secured=options.secured,
            kind_name=options.kind,
        )
        outcome = run(setup)
        _print(report(outcome, has_timeline=options.timeline))
        outcomes.append(outcome)
        path = reports.DIRECTORY / _report_name(options)
        reports.write(path.with_suffix(".md"), render(outcomes))
        reports.write_json(path.with_suffix(".json"), rows(outcomes))
        failed |= outcome.delivery is None if options.control else not outcome.is_exactly_once
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=_one, dest="seeds", help="run this seed")
    what.add_argument("--seeds", type=_range, help="FIRST:END: run seeds FIRST to END - 1")
    parser.add_argument("--backend", choices=_BACKENDS, default=_BACKENDS[0])
    parser.add_argument("--kind", choices=KINDS, help="run this kind of query")
    parser.add_argument("--timeline", action="store_true", help="print all timelines")
    parser.add_argument(
        "--seconds", type=_seconds, default=60.0, help="time during which faults are injected"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--control", action="store_true", help="run Spark's own connector, for comparison"
    )
    which.add_argument(
        "--secured",
        action="store_true",
        help="connect over SASL_SSL as a user with the ACLs in docs/exactly-once.md",
    )
    return parser


def _report_name(options: argparse.Namespace) -> str:
    """Return a report name that is unique among parallel runs.

    The name contains the backend, the connector and the seeds.
    """
    variant = "-control" if options.control else "-secured" if options.secured else ""
    kind = "" if options.kind is None else f"-{options.kind}"
    return f"chaos-{options.backend}{variant}{kind}-seeds-{options.seeds[0]}-to-{options.seeds[-1]}"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid duration: use more than 0 and at most "
            f"{_SECONDS_MAX:g} seconds"
        )
    return seconds


def _one(text: str) -> range:
    try:
        return range(int(text), int(text) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a seed: use an integer, for example 17"
        ) from None


def _range(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end))
    except ValueError:
        seeds = range(0)
    if not colon or not seeds:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of seeds: use FIRST:END, for example 1:6 for 1 to 5"
        )
    return seeds


def _print(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
