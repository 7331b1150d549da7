"""`python -m integration.failpoints`: kill at every failpoint, and say what became of it.

--backend kafka        on Apache Kafka (default: reference-processes)
--sample 50 --seed 7   so many cases, drawn by a seed
--only "commit.decide" cases whose name has this in it
--stalls               zombies in place of kills; --all is both
--old-transactions     with transaction.version 1, where that makes a difference
--write-docs           write docs/failpoints.md, with --all or --old-transactions
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration import clusters
from integration.failpoints import matrix, page
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
    """Run what the command line says; 0 where all is well, 1 where a case fails."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    is_whole = asked.all or asked.old_transactions
    if asked.write_docs and (not is_whole or asked.stalls or asked.only or asked.sample):
        parser.error("--write-docs takes all cases: give it --all or --old-transactions alone")
    begun_s = time.monotonic()
    features = {"transaction.version": 1} if asked.old_transactions else {}
    with (
        clusters.open_cluster(asked.backend, configs=SETTINGS, features=features) as cluster,
        open_session(cluster, name="matrix") as session,
    ):
        recordings = matrix.record(session, _scenarios(asked))
        chosen = _chosen(asked, recordings)
        if not chosen:
            parser.error(f"--only {asked.only!r}: no case has this in its name")
        _say(f"{len(chosen)} cases on {cluster.version}")
        results = _run(session, chosen, at_once=asked.at_once)
        version = cluster.version
    uncovered = [] if asked.old_transactions else matrix.coverage_errors(recordings)
    failed = [result for result in results if result.error is not None]
    taken_s = time.monotonic() - begun_s
    each_s = sum(result.seconds for result in results) / max(len(results), 1)
    _say(
        f"{len(results) - len(failed)} of {len(results)} cases ended well, in {taken_s:.0f} s "
        f"({each_s:.2f} s a case, {asked.at_once} at once)"
    )
    for line in uncovered:
        _say(line)
    if asked.write_docs:
        old = ", transaction.version 1" if asked.old_transactions else ""
        page.write(f"{version}{old}", results)
    return int(bool(failed or uncovered))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.failpoints",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=_BACKENDS, default=_BACKENDS[0])
    parser.add_argument("--sample", type=_count, help="how many cases (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="what a sample is drawn by")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--stalls", action="store_true", help="zombies, in place of kills")
    parser.add_argument("--all", action="store_true", help="kills and zombies")
    parser.add_argument("--old-transactions", action="store_true", help="transaction.version 1")
    parser.add_argument("--at-once", type=_count, default=matrix.AT_ONCE)
    parser.add_argument("--write-docs", action="store_true", help="write docs/failpoints.md")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of cases: give 1 or more")
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
