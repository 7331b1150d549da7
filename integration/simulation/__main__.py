"""`python -m integration.simulation`: run seeds, and tell of those that fail.

--seed 17              one seed, with its trace
--seeds 0:2000         many, two at a time
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from integration.simulation.plan import plan_of
from integration.simulation.run import Outcome, run
from integration.simulation.shrink import shrink

TRACE_LINES = 60


def report(outcome: Outcome) -> str:
    """What a person is to know of a run."""
    plan = outcome.plan
    lines = [f"seed {plan.seed}: {outcome.violation or 'all is well'}", f"  {plan.settings}"]
    lines += [f"  {fault}" for fault in plan.faults]
    lines.append(
        f"  {outcome.acknowledged} batches acknowledged, {outcome.steps} steps in "
        f"{outcome.elapsed_ms} ms, digest {outcome.digest:08x}"
    )
    return "\n".join(lines)


def report_failure(outcome: Outcome) -> str:
    """A failed run, the shortest one that fails as well, and its trace."""
    shortest = shrink(outcome, run)
    return "\n".join(
        [
            report(outcome),
            f"replay with: make sim SEED={outcome.plan.seed}",
            "the shortest run found that fails as well:",
            report(shortest),
            *(f"    {line}" for line in shortest.trace[-TRACE_LINES:]),
        ]
    )


def _violation_of(seed: int) -> tuple[int, str | None]:
    return seed, run(plan_of(seed)).violation


def _run_many(seeds: range, jobs: int) -> int:
    begun_s, failed = time.monotonic(), []
    with multiprocessing.Pool(jobs) as pool:
        for done, (seed, violation) in enumerate(
            pool.imap_unordered(_violation_of, seeds, chunksize=4), start=1
        ):
            if violation is not None:
                failed.append(seed)
                print(f"seed {seed} fails: {violation}", flush=True)
            if done % 100 == 0:
                print(f"{done} of {len(seeds)} in {time.monotonic() - begun_s:.0f} s", flush=True)
    took_s = time.monotonic() - begun_s
    print(f"{len(seeds)} seeds in {took_s:.0f} s, {len(failed)} failed: {sorted(failed)}")
    if failed:
        print(report_failure(run(plan_of(min(failed)))))
    return 1 if failed else 0


def main() -> int:
    """Run what the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration.simulation")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run this one and print its trace")
    what.add_argument("--seeds", help="run those from FIRST up to END: FIRST:END")
    parser.add_argument("--jobs", type=int, default=2, help="processes for --seeds")
    arguments = parser.parse_args()
    if arguments.seeds is not None:
        first, _, end = arguments.seeds.partition(":")
        return _run_many(range(int(first), int(end)), arguments.jobs)
    outcome = run(plan_of(arguments.seed))
    if outcome.violation is not None:
        print(report_failure(outcome))
        return 1
    print(report(outcome), *(f"    {line}" for line in outcome.trace), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
