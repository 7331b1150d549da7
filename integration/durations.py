"""Print how long the tests of each file took, based on the JUnit reports of `make test-all`.

    python -m integration.durations build/reports/tests

The durations include the time of the fixtures. Files that took less than `SHOWN_MIN_S` are omitted.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

SHOWN_MIN_S: Final = 10


def seconds_by_file(report: Path) -> Mapping[str, float]:
    """Return the seconds that the tests of each file took."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 (pytest wrote it)
        seconds[case.attrib["classname"]] += float(case.attrib["time"])
    return seconds


def lines(directory: Path) -> Iterator[str]:
    """Yield the slowest test files of each report in a directory, oldest report first."""
    for report in sorted(directory.glob("test-*.xml"), key=lambda path: path.stat().st_mtime):
        seconds = seconds_by_file(report)
        yield f"{report.stem}: {sum(seconds.values()):.0f} s"
        for name, taken_s in sorted(seconds.items(), key=lambda item: -item[1]):
            if taken_s >= SHOWN_MIN_S:
                yield f"{taken_s:8.0f} s  {name}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines(Path(sys.argv[1])))
