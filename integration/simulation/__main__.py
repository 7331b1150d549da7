"""`python -m integration.simulation`: run seeds and report those that fail.

--seed 17              run one seed and print its trace
--seeds 0:2000         run the seeds from 0 to 1999 in parallel
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration.simulation.many import violations
from integration.simulation.plan import plan_of
from integration.simulation.run import Outcome, run
from integration.simulation.shrink import shrink

TRACE_LINES = 60
INTERRUPTED = 130


def report(outcome: Outcome) -> str:
    """Return the result of a run, with its plan, as text."""
    plan = outcome.plan
    lines = [f"seed {plan.seed}: {outcome.violation or 'no violation'}", f"  {plan.settings}"]
    lines += [f"  {fault.at_ms:6d} ms  {fault}" for fault in plan.faults]
    lines.append(
        f"  {outcome.acknowledged} batches acknowledged, {outcome.steps} steps in "
        f"{outcome.elapsed_ms} ms, digest {outcome.digest:08x}"
    )
    return "\n".join(lines)


def report_failure(outcome: Outcome) -> str:
    """Return a failed run, the shortest failing run and its trace as text."""
    shortest = shrink(outcome, run)
    return "\n".join(
        [
            report(outcome),
            f"replay with: make sim SEED={outcome.plan.seed}",
            "shortest failing run found:",
            report(shortest),
            *(f"    {line}" for line in shortest.trace[-TRACE_LINES:]),
        ]
    )


def _run_many(seeds: range, jobs: int) -> int:
    begun_s, failed = time.monotonic(), []
    for done, (seed, violation) in enumerate(violations(seeds, jobs), start=1):
        if violation is not None:
            failed.append(seed)
            print(f"seed {seed} fails: {violation}", flush=True)
        if done % 100 == 0:
            print(f"{done} of {len(seeds)} in {time.monotonic() - begun_s:.0f} s", flush=True)
    took_s = time.monotonic() - begun_s
    if not failed:
        print(f"{len(seeds)} seeds in {took_s:.0f} s, none fails")
        return 0
    print(f"{len(seeds)} seeds in {took_s:.0f} s, {len(failed)} fail: {failed}", flush=True)
    return _report_and_shrink(run(plan_of(failed[0])))


def _run_one(seed: int) -> int:
    outcome = run(plan_of(seed))
    if outcome.violation is not None:
        return _report_and_shrink(outcome)
    print(report(outcome), *(f"    {line}" for line in outcome.trace), sep="\n")
    return 0


def _report_and_shrink(outcome: Outcome) -> int:
    seed = outcome.plan.seed
    print(f"searching for a shorter failing run than seed {seed}", file=sys.stderr, flush=True)
    print(report_failure(outcome))
    return 1


def _range(text: str) -> range:
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end))
    except ValueError:
        seeds = range(0)
    if not colon or not seeds:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of seeds: give FIRST:END, such as 0:2000"
        )
    return seeds


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a seed: give an integer, such as 17"
        ) from None


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: give 1 or more")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; return 1 if one fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m integration.simulation")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=_seed, help="run this seed and print its trace")
    what.add_argument("--seeds", type=_range, help="run FIRST to END - 1: FIRST:END")
    parser.add_argument("--jobs", type=_jobs, default=2, help="processes for --seeds")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.seeds is not None:
            return _run_many(parsed.seeds, parsed.jobs)
        return _run_one(parsed.seed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
