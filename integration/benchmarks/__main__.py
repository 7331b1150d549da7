"""`python -m integration.benchmarks`: run cases and write build/reports/benchmarks.{json,md}.

Purpose: the command line. Invariant: results are saved after each case and keep those of cases that
were not run; the exit status is 1 if a case failed, and 0 if targets were only missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from integration import reports
from integration.benchmarks import report
from integration.benchmarks.cases import CASES, Case
from integration.benchmarks.facts import facts
from integration.benchmarks.resources import Resources
from integration.benchmarks.results import RESULTS, Result, incomplete, load, merge, save
from integration.benchmarks.runner import Extent, run_case

ORDER = [case.name for case in CASES]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.list:
        for case in CASES:
            quick = "quick" if case.quick_records else ""
            sys.stdout.write(f"{case.name:22}{quick:7}{case.title}\n")
        return 0
    results = merge(load(asked.output), [], order=ORDER)
    chosen = _chosen(asked, results)
    started_s = time.monotonic()
    with Resources(engine=asked.engine, say=_print) as resources:
        for number, case in enumerate(chosen, start=1):
            extent = _extent(case, asked)
            _print(
                f"[{number}/{len(chosen)}] {case.name}: {case.title} ({extent.records:,} records)"
            )
            found = run_case(case, resources, extent, _print)
            for line in report.table(found):
                _print(f"  {line}")
            results = merge(results, found, order=ORDER)
            save(results, asked.output)
            reports.write(asked.output.with_suffix(".md"), report.render(results, facts()))
    names = {case.name for case in chosen}
    of_run = [result for result in results if result.of_case in names]
    _report(of_run, time.monotonic() - started_s)
    return int(any(result.error is not None for result in of_run))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks", description=__doc__)
    parser.add_argument("--case", action="append", choices=ORDER, metavar="NAME", default=[])
    parser.add_argument(
        "--quick", action="store_true", help="run the main cases with fewer records"
    )
    parser.add_argument(
        "--missing", action="store_true", help="run cases that failed or have no results"
    )
    parser.add_argument("--rounds", type=_positive, help="rounds of each case (default: its own)")
    parser.add_argument(
        "--records", type=_positive, help="records of each round (default: its own)"
    )
    parser.add_argument("--engine", default="native", help="the engine to measure")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, metavar="FILE", help="JSON; the report is beside it"
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    return parser


def _chosen(asked: argparse.Namespace, results: Sequence[Result]) -> list[Case]:
    chosen = [case for case in CASES if not asked.case or case.name in asked.case]
    if asked.quick:
        chosen = [case for case in chosen if case.quick_records is not None]
    if asked.missing:
        left = incomplete(results, order=ORDER)
        chosen = [case for case in chosen if case.name in left]
    return chosen


def _extent(case: Case, asked: argparse.Namespace) -> Extent:
    records, rounds = case.records, case.rounds
    if asked.quick and case.quick_records is not None:
        records, rounds = case.quick_records, case.quick_rounds
    if asked.records is not None and case.takes_records:
        records = asked.records
    return Extent(records=records, rounds=asked.rounds or rounds)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("not positive")
    return number


def _report(results: Sequence[Result], taken_s: float) -> None:
    sys.stdout.write("\n" + "\n".join(report.table(results)) + "\n\n")
    with_target = [result for result in results if result.target is not None]
    reached = sum(bool(result.is_met) for result in with_target)
    failed = sum(result.error is not None for result in results)
    _print(
        f"{reached} of {len(with_target)} targets reached, {failed} of {len(results)} comparisons "
        f"failed, {taken_s / 60:.1f} minutes"
    )


def _print(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
