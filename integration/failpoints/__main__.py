"""`python -m integration.failpoints`: kill the sink's processes at every failpoint.

--backend kafka        use Apache Kafka (default: reference-processes)
--sample 50 --seed 7   run a random sample of 50 cases with this seed
--only "commit.decide" run only cases whose name contains this text
--stalls               stall and resume processes instead of killing them; --all does both
--old-transactions     use transaction.version 1, with the scenarios that depend on it
--secured              connect the sink over SASL_SSL as a user with the ACLs in exactly-once.md

Writes build/reports/failpoints-*.{json,md}.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration import clusters, reports
from integration.clusters import restricted_user
from integration.failpoints import matrix, report
from integration.failpoints.lanes import SETTINGS
from integration.failpoints.matrix import AnyCase, Recording, Result
from integration.failpoints.scenarios import (
    SCENARIOS,
    SLOW_SCENARIOS,
    VERSION_DEPENDENT,
    WRAPPING_SCENARIOS,
    Scenario,
)
from integration.failpoints.session import Session, open_session

_BACKENDS = ("reference-processes", "kafka")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if a case fails or a declared failpoint is not reached, else 0."""
    parser = _parser()
    options = parser.parse_args(arguments)
    begun_s = time.monotonic()
    features = {"transaction.version": 1} if options.old_transactions else {}
    secured = options.secured
    with (
        clusters.open_cluster(
            options.backend,
            configs={**SETTINGS, **(restricted_user.CONFIGS if secured else {})},
            features=features,
            security=restricted_user.SECURITY if secured else None,
        ) as cluster,
        open_session(cluster, name="matrix", is_secured=secured) as session,
    ):
        recordings = matrix.record(session, _scenarios(options))
        chosen = _chosen(options, recordings)
        if not chosen:
            parser.error(f"--only {options.only!r}: no case name contains this text")
        _print(f"{len(chosen)} cases on {cluster.version}")
        results = _run(session, chosen, parallel=options.parallel)
        version = cluster.version
    uncovered = [] if options.old_transactions else matrix.coverage_errors(recordings)
    failed = [result for result in results if result.error is not None]
    taken_s = time.monotonic() - begun_s
    each_s = sum(result.seconds for result in results) / max(len(results), 1)
    _print(
        f"{len(results) - len(failed)} of {len(results)} cases passed in {taken_s:.0f} s "
        f"({each_s:.2f} s per case, {options.parallel} in parallel)"
    )
    for line in uncovered:
        _print(line)
    path = (
        reports.DIRECTORY / f"failpoints-{options.backend}{'-secured' if options.secured else ''}"
    )
    if options.old_transactions:
        version, path = (
            f"{version}, transaction.version 1",
            path.with_name(f"{path.name}-version-1"),
        )
    reports.write(path.with_suffix(".md"), report.render(version, results))
    reports.write_json(path.with_suffix(".json"), report.rows(results))
    _print(f"report: {path}.md")
    return int(bool(failed or uncovered))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.failpoints",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=_BACKENDS, default=_BACKENDS[0])
    parser.add_argument("--sample", type=_count, help="number of cases to run (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed that selects the sample")
    parser.add_argument("--only", default="", help="run only cases whose name contains this text")
    parser.add_argument(
        "--stalls", action="store_true", help="stall and resume processes instead of killing them"
    )
    parser.add_argument("--all", action="store_true", help="run both kills and stalls")
    parser.add_argument("--old-transactions", action="store_true", help="use transaction.version 1")
    parser.add_argument(
        "--secured",
        action="store_true",
        help="connect the sink over SASL_SSL as a user with the ACLs in docs/exactly-once.md",
    )
    parser.add_argument(
        "--at-once",
        dest="parallel",
        type=_count,
        default=matrix.PARALLEL,
        help="number of cases to run in parallel",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cases: use 1 or more")
    return int(text)


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    if options.old_transactions:
        scenarios = (*SCENARIOS, *WRAPPING_SCENARIOS)
        return [scenario for scenario in scenarios if scenario.name in VERSION_DEPENDENT]
    return [*SCENARIOS, *SLOW_SCENARIOS, *WRAPPING_SCENARIOS]


def _chosen(options: argparse.Namespace, recordings: Sequence[Recording]) -> list[AnyCase]:
    found: list[AnyCase] = []
    if options.all or not options.stalls:
        found += matrix.cases(recordings)
    if options.all or options.stalls:
        found += matrix.stalls(recordings)
    found = [case for case in found if options.only in str(case)]
    return (
        found if options.sample is None else matrix.shuffled(found, options.seed)[: options.sample]
    )


def _run(session: Session, chosen: Sequence[AnyCase], *, parallel: int) -> list[Result]:
    results = []
    for result in matrix.run(session, chosen, parallel=parallel):
        results.append(result)
        if result.error is not None:
            _print(f"{result.case}\n{result.error}")
        if len(results) % 100 == 0:
            _print(f"{len(results)} of {len(chosen)}")
    return results


def _print(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
