"""`python -m integration.parity`: run all cases on both connectors and compare the outcomes.

--backend reference          use broker_ref (default: kafka)
--bootstrap 127.0.0.1:9092   use a running cluster, on which the suite has not run before
--sample                     run only the cases that `make test-all` runs
--only batch-read:assign     run only cases whose name contains this text
--page                       only write docs/parity.md from the table of cases

Writes build/reports/parity.json with both outcomes of each case. A run of all cases also writes
docs/parity.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from integration import reports
from integration.benchmarks.connectors import OURS, SPARKS_OWN
from integration.clusters import open_cluster
from integration.parity import page
from integration.parity.case import Case
from integration.parity.cases import CASES, SAMPLE
from integration.parity.environment import Environment, open_environment
from integration.parity.outcomes import Comparison, compare
from integration.parity.run import run

_BACKENDS: Final = ("kafka", "reference", "reference-processes")
_PROBLEM_MAX: Final = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases; return 1 if an outcome is unexpected, else 0."""
    options = _parser().parse_args(arguments)
    if options.page:
        reports.write(page.PAGE, page.render(CASES))
        return 0
    chosen = [case for case in (SAMPLE if options.sample else CASES) if options.only in case.name]
    begun_s = time.monotonic()
    with _cluster(options) as bootstrap_servers, open_environment(bootstrap_servers) as environment:
        _print(f"{len(chosen)} cases; ready after {time.monotonic() - begun_s:.0f} s")
        rows = [_run(environment, case) for case in chosen]
    failed = sum(bool(row["problems"]) for row in rows)
    seconds = time.monotonic() - begun_s
    _print(f"{len(rows) - failed} of {len(rows)} cases as expected, in {seconds:.0f} s")
    path = reports.DIRECTORY / "parity.json"
    reports.write_json(path, rows)
    _print(f"report: {path}")
    if len(chosen) == len(CASES):
        reports.write(page.PAGE, page.render(CASES))
    return int(failed > 0)


@contextmanager
def _cluster(options: argparse.Namespace) -> Iterator[str]:
    """Yield the bootstrap servers of the given cluster, or of a new cluster."""
    if options.bootstrap is not None:
        yield options.bootstrap
    else:
        with open_cluster(options.backend) as opened:
            yield opened.bootstrap_servers


def _run(environment: Environment, case: Case) -> dict[str, Any]:
    """Run a case on both connectors, print the result and return its row for the report."""
    begun_s = time.monotonic()
    spark = run(environment, case, SPARKS_OWN)
    middle_s = time.monotonic()
    found = compare(case, spark, run(environment, case, OURS))
    seconds = [round(middle_s - begun_s, 2), round(time.monotonic() - middle_s, 2)]
    _print(f"{'FAILED' if found.problems else 'ok'} {case.name} {seconds}")
    for problem in found.problems:
        _print(f"    {problem[:_PROBLEM_MAX]}")
    return _row(found, seconds)


def _row(found: Comparison, seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "case": found.case.name,
        "expected": found.case.expected.relation.value,
        "problems": list(found.problems),
        "seconds": list(seconds),
        "spark": asdict(found.spark),
        "ours": asdict(found.ours),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=_BACKENDS, default=_BACKENDS[0])
    parser.add_argument("--bootstrap")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--page", action="store_true")
    return parser


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
