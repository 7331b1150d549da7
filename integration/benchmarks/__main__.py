"""Run benchmark cases and write build/reports/benchmarks.json and build/reports/benchmarks.md.

Results are saved after each case. Cases that are not run keep their earlier results. The exit
status is 1 if a case failed. A missed target is not a failure.
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
from integration.benchmarks.environment import environment_facts
from integration.benchmarks.resources import Resources
from integration.benchmarks.results import RESULTS, Result, incomplete, load, merge, save
from integration.benchmarks.runner import Extent, run_case

ORDER = [case.name for case in CASES]


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    if parsed.list:
        for case in CASES:
            quick = "quick" if case.quick_records else ""
            sys.stdout.write(f"{case.name:22}{quick:7}{case.title}\n")
        return 0
    results = merge(load(parsed.output), [], order=ORDER)
    chosen = _chosen(parsed, results)
    started_s = time.monotonic()
    with Resources(engine=parsed.engine, say=_print) as resources:
        for number, case in enumerate(chosen, start=1):
            extent = _extent(case, parsed)
            _print(
                f"[{number}/{len(chosen)}] {case.name}: {case.title} ({extent.records:,} records)"
            )
            found = run_case(case, resources, extent, _print)
            for line in report.table(found):
                _print(f"  {line}")
            results = merge(results, found, order=ORDER)
            save(results, parsed.output)
            reports.write(
                parsed.output.with_suffix(".md"), report.render(results, environment_facts())
            )
    names = {case.name for case in chosen}
    of_run = [result for result in results if result.of_case in names]
    _report(of_run, time.monotonic() - started_s)
    return int(any(result.error is not None for result in of_run))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks", description=__doc__)
    parser.add_argument("--case", action="append", choices=ORDER, metavar="NAME", default=[])
    parser.add_argument(
        "--quick", action="store_true", help="run only the main cases, with fewer records"
    )
    parser.add_argument(
        "--missing", action="store_true", help="run only cases that failed or have no results"
    )
    parser.add_argument(
        "--rounds", type=_positive, help="rounds per case (default: depends on the case)"
    )
    parser.add_argument(
        "--records", type=_positive, help="records per round (default: depends on the case)"
    )
    parser.add_argument("--engine", default="native", help="the engine of our connector")
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        metavar="FILE",
        help="the JSON file with the results; the report is written to the same path with .md",
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    return parser


def _chosen(parsed: argparse.Namespace, results: Sequence[Result]) -> list[Case]:
    chosen = [case for case in CASES if not parsed.case or case.name in parsed.case]
    if parsed.quick:
        chosen = [case for case in chosen if case.quick_records is not None]
    if parsed.missing:
        left = incomplete(results, order=ORDER)
        chosen = [case for case in chosen if case.name in left]
    return chosen


def _extent(case: Case, parsed: argparse.Namespace) -> Extent:
    records, rounds = case.records, case.rounds
    if parsed.quick and case.quick_records is not None:
        records, rounds = case.quick_records, case.quick_rounds
    if parsed.records is not None and case.takes_records:
        records = parsed.records
    return Extent(records=records, rounds=parsed.rounds or rounds)


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
        f"failed, duration {taken_s / 60:.1f} minutes"
    )


def _print(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
