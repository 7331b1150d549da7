"""`docs/benchmarks.md` and its chart, from results.

Purpose: say what was compared with what, how, and what came out. Invariant: ratios and CPU seconds,
never bare times; nothing that names a machine. What it must not know: how anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from integration.benchmarks.chart import draw
from integration.benchmarks.results import Result

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE_NAME: Final = "benchmarks.md"
CHART_NAME: Final = "benchmarks.svg"

_INTRODUCTION: Final = """\
# Benchmarks

Written by `make bench`; the same figures are in `build/bench/results.json`. `make bench-quick` runs
the main cases in five minutes and leaves this page alone.

## How

All sides of a case run in turn, in one process, against one broker on the same machine and the same
topic: once to warm up, then round by round, each round in another order. A ratio is of two runs of
one round; the median, the least and the greatest of all rounds are told. Reads end in Spark's
`noop` sink, which asks for every column; a column alone is asked for by a schema (ours) or by
`select` (Spark's connector). Writes are of rows that Spark makes up, the same for all sides, to
topics of their own. CPU seconds are those of driver, Python workers and JVM, for a million rows,
without the broker's.

*Peer / ours*: how many times longer the peer takes; the target is a least. *Ours / peer*: how many
times longer we take; the target is a most. A case whose name ends in `-cpu` compares CPU seconds.
`ours` is the engine that the table names.

## What came out

![Ratios and targets](benchmarks.svg)
"""

_PEERS: Final = """\
## The peers

- *Spark's connector*: `format("kafka")` with its defaults; *tuned* with the settings below.
- *our librdkafka engine*: ours with `engine=librdkafka`.
- *ours, at least once*: beside a case of exactly once, the same without `transactionalId`. Spark's
  connector has no more than that.
- *a source that fabricates*: a Python data source that yields one Arrow batch again and again, with
  the same columns in as many tasks: no Python source can be much faster. *A sink that drops*: a
  Python data source that takes Arrow batches and forgets them, and leaves all cores to Spark where a
  write shares them with the broker. *A trivial source and sink*: both for a stream.
- Kernels work on the record batches that the broker has stored, cut into 4 MiB as answers to fetches
  are. *CRC alone* and *memcpy* go once over the same bytes. *confluent-kafka* consumes them from
  the broker, and is asked for each message's error or for its fields, too. *aiokafka* and
  *kafka-python* decode such batches to their objects. Slow ones have fewer records of the same kind
  to do; ratios are of what a million take.
- The memory of a Python worker is what is resident, sampled while it reads, from when it has read a
  few records to its highest; *a flat line* is the highest of the last third of the read over that
  of the second.
"""


def render(results: Sequence[Result], facts: Mapping[str, str]) -> str:
    """The page."""
    lines = [_INTRODUCTION]
    for of_case, group in groupby(results, key=lambda result: result.of_case):
        lines += _section(of_case, list(group))
    lines += [_PEERS, "## Of what", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def write(results: Sequence[Result], facts: Mapping[str, str], *, directory: Path = DOCS) -> None:
    """Write the page and its chart. Raises `ValueError` where nothing could be drawn."""
    chart = draw(results)
    (directory / CHART_NAME).write_text(chart)
    (directory / PAGE_NAME).write_text(render(results, facts))


def table(results: Sequence[Result]) -> Iterator[str]:
    """One line a result, for a terminal."""
    width = max((len(result.case) for result in results), default=0)
    peers = max((len(result.peer) for result in results), default=0)
    for result in results:
        yield f"{result.case:{width}}  {result.peer:{peers}}  {_in_words(result)}"


def _section(of_case: str, results: Sequence[Result]) -> Iterator[str]:
    first = results[0]
    yield f"### {first.title}"
    yield ""
    yield f"`{of_case}`, {_count(first)}, {first.rounds} rounds, engine `{first.engine}`."
    yield ""
    yield "| case | peer | ratio | target | median | least to greatest | CPU s, ours | the peer's |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for result in results:
        yield "| " + " | ".join(_cells(result)) + " |"
    yield ""


def _count(result: Result) -> str:
    return f"{result.records:,} records"


def _cells(result: Result) -> list[str]:
    target = "" if result.target is None else _bound(result)
    if result.ratio_median is None:
        # Why stands in the results; an error may name a machine.
        return [result.case, result.peer, _kind(result), target, "failed", "", "", ""]
    median = f"{result.ratio_median:.2f}"
    if result.is_met is not None:
        median = f"**{median}**" if result.is_met else f"{median} (short)"
    span = f"{result.ratio_min:.2f} to {result.ratio_max:.2f}"
    used = [
        "" if seconds is None else f"{seconds:.3g}"
        for seconds in (result.cpu_seconds, result.peer_cpu_seconds)
    ]
    return [result.case, result.peer, _kind(result), target, median, span, *used]


def _kind(result: Result) -> str:
    return f"{'ours / peer' if result.at_most else 'peer / ours'}, {result.quantity}"


def _bound(result: Result) -> str:
    return f"{'≤' if result.at_most else '≥'} {result.target:g}"


def _in_words(result: Result) -> str:
    if result.ratio_median is None:
        return f"FAILED: {result.error}"
    found = f"{result.ratio_median:8.2f}  ({result.ratio_min:.2f} to {result.ratio_max:.2f})"
    if result.target is None:
        return found
    return f"{found}  target {_bound(result)}: {'reached' if result.is_met else 'SHORT'}"
