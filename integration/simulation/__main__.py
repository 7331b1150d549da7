"""Command line of the simulation, which runs seeds and reports those that fail.

python -m integration.simulation --seed 17        run one seed and print its trace
python -m integration.simulation --seeds 0:2000   run seeds 0 to 1999 in parallel

With --sink, the client of the cluster is the exactly-once sink.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration.simulation.parallel_runs import violations
from integration.simulation.plan import plan_of
from integration.simulation.run import Outcome, run
from integration.simulation.shrink import shrink
from integration.simulation.sink.run import SinkOutcome, run_sink
from integration.simulation.sink.workload import sink_plan_of

TRACE_LINES = 60
INTERRUPTED = 130


def report(outcome: Outcome) -> str:
    """Return a run's plan and result as text."""
    plan = outcome.plan
    lines = [f"seed {plan.seed}: {outcome.violation or 'no violation'}", f"  {plan.settings}"]
    lines += [f"  {fault.at_ms:6d} ms  {fault}" for fault in plan.faults]
    lines.append(
        f"  {outcome.acknowledged} batches acknowledged, {outcome.steps} steps in "
        f"{outcome.elapsed_ms} ms, digest {outcome.digest:08x}"
    )
    return "\n".join(lines)


def report_failure(outcome: Outcome) -> str:
    """Return the report of a failed run. Include the shortest failing run and its trace."""
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


def report_sink(outcome: SinkOutcome) -> str:
    """Return the plan, the result and the trace of a run of the sink."""
    plan = outcome.plan
    lines = [f"seed {plan.seed}: {outcome.violation or 'no violation'}", f"  {plan.workload}"]
    lines.append(f"  {plan.cluster.settings}")
    lines += [f"  {fault.at_ms:6d} ms  {fault}" for fault in plan.cluster.faults]
    lines.append(
        f"  {outcome.failpoints} failpoints reached, {outcome.kills} processes killed, "
        f"{outcome.elapsed_ms} ms, digest {outcome.digest:08x}"
    )
    lines += [f"    {line}" for line in outcome.trace]
    return "\n".join(lines)


def _run_many(seeds: range, jobs: int, *, is_sink: bool) -> int:
    begun_s, failed = time.monotonic(), []
    for done, (seed, violation) in enumerate(violations(seeds, jobs, is_sink=is_sink), start=1):
        if violation is not None:
            failed.append(seed)
            print(f"seed {seed} failed: {violation}", flush=True)
        if done % 100 == 0:
            print(f"{done} of {len(seeds)} seeds in {time.monotonic() - begun_s:.0f} s", flush=True)
    took_s = time.monotonic() - begun_s
    if not failed:
        print(f"{len(seeds)} seeds in {took_s:.0f} s, none failed")
        return 0
    print(f"{len(seeds)} seeds in {took_s:.0f} s, {len(failed)} failed: {failed}", flush=True)
    return _run_one(failed[0], is_sink=is_sink)


def _run_one(seed: int, *, is_sink: bool) -> int:
    if is_sink:
        sink_outcome = run_sink(sink_plan_of(seed))
        print(report_sink(sink_outcome))
        return 0 if sink_outcome.violation is None else 1
    outcome = run(plan_of(seed))
    if outcome.violation is not None:
        return _report_and_shrink(outcome)
    print(report(outcome), *(f"    {line}" for line in outcome.trace), sep="\n")
    return 0


def _report_and_shrink(outcome: Outcome) -> int:
    seed = outcome.plan.seed
    print(
        f"searching for a shorter run that fails as seed {seed} does", file=sys.stderr, flush=True
    )
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
            f"{text!r} is not a range of seeds: use FIRST:END, such as 0:2000"
        )
    return seeds


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a seed: use an integer, such as 17"
        ) from None


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: use 1 or more")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds. Return 1 if a seed fails, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m integration.simulation")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=_seed, help="run one seed and print its trace")
    what.add_argument("--seeds", type=_range, help="run seeds FIRST to END - 1, as FIRST:END")
    parser.add_argument(
        "--sink", action="store_true", help="run the exactly-once sink against the cluster"
    )
    parser.add_argument("--jobs", type=_jobs, default=2, help="number of processes for --seeds")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.seeds is not None:
            return _run_many(parsed.seeds, parsed.jobs, is_sink=parsed.sink)
        return _run_one(parsed.seed, is_sink=parsed.sink)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
