"""`python -m integration.failpoints`: kill the sink's processes at every failpoint.

--backend kafka        use Apache Kafka (default: reference-processes)
--sample 50 --seed 7   run 50 cases, drawn with this seed
--only "commit.decide" run the cases whose name contains this
--stalls               stop and resume processes instead of killing them; --all does both
--old-transactions     use transaction.version 1, and the scenarios that depend on it

Writes build/reports/failpoints-*.{json,md}.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration import clusters, reports
from integration.failpoints import matrix, report
from integration.failpoints.lanes import SETTINGS
from integration.failpoints.matrix import AnyCase, Recording, Result
from integration.failpoints.scenarios import (
    OF_BOTH_VERSIONS,
    SCENARIOS,
    SLOW_SCENARIOS,
    Scenario,
)
from integration.failpoints.session import Session, open_session

_BACKENDS = ("reference-processes", "kafka")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if one fails or a declared failpoint is not met, else 0."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    begun_s = time.monotonic()
    features = {"transaction.version": 1} if asked.old_transactions else {}
    with (
        clusters.open_cluster(asked.backend, configs=SETTINGS, features=features) as cluster,
        open_session(cluster, name="matrix") as session,
    ):
        recordings = matrix.record(session, _scenarios(asked))
        chosen = _chosen(asked, recordings)
        if not chosen:
            parser.error(f"--only {asked.only!r}: no case has a name that contains this")
        _say(f"{len(chosen)} cases on {cluster.version}")
        results = _run(session, chosen, at_once=asked.at_once)
        version = cluster.version
    uncovered = [] if asked.old_transactions else matrix.coverage_errors(recordings)
    failed = [result for result in results if result.error is not None]
    taken_s = time.monotonic() - begun_s
    each_s = sum(result.seconds for result in results) / max(len(results), 1)
    _say(
        f"{len(results) - len(failed)} of {len(results)} cases passed in {taken_s:.0f} s "
        f"({each_s:.2f} s per case, {asked.at_once} in parallel)"
    )
    for line in uncovered:
        _say(line)
    path = reports.DIRECTORY / f"failpoints-{asked.backend}"
    if asked.old_transactions:
        version, path = (
            f"{version}, transaction.version 1",
            path.with_name(f"{path.name}-version-1"),
        )
    reports.write(path.with_suffix(".md"), report.render(version, results))
    reports.write_json(path.with_suffix(".json"), report.rows(results))
    _say(f"report: {path}.md")
    return int(bool(failed or uncovered))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.failpoints",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=_BACKENDS, default=_BACKENDS[0])
    parser.add_argument("--sample", type=_count, help="number of cases (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument(
        "--stalls", action="store_true", help="stop and resume processes instead of killing them"
    )
    parser.add_argument("--all", action="store_true", help="run kills and stalls")
    parser.add_argument("--old-transactions", action="store_true", help="use transaction.version 1")
    parser.add_argument(
        "--at-once", type=_count, default=matrix.AT_ONCE, help="cases that run in parallel"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cases: give 1 or more")
    return int(text)


def _scenarios(asked: argparse.Namespace) -> list[Scenario]:
    if asked.old_transactions:
        return [scenario for scenario in SCENARIOS if scenario.name in OF_BOTH_VERSIONS]
    return [*SCENARIOS, *SLOW_SCENARIOS]


def _chosen(asked: argparse.Namespace, recordings: Sequence[Recording]) -> list[AnyCase]:
    found: list[AnyCase] = []
    if asked.all or not asked.stalls:
        found += matrix.cases(recordings)
    if asked.all or asked.stalls:
        found += matrix.stalls(recordings, amid=False)
        found += matrix.stalls(recordings, amid=True)
    found = [case for case in found if asked.only in str(case)]
    return found if asked.sample is None else matrix.shuffled(found, asked.seed)[: asked.sample]


def _run(session: Session, chosen: Sequence[AnyCase], *, at_once: int) -> list[Result]:
    results = []
    for result in matrix.run(session, chosen, at_once=at_once):
        results.append(result)
        if result.error is not None:
            _say(f"{result.case}\n{result.error}")
        if len(results) % 100 == 0:
            _say(f"{len(results)} of {len(chosen)}")
    return results


def _say(words: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
