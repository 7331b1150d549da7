"""Counts the events of a run: speculative attempts, stage retries, and errors from the sink.

The numbers are lower bounds, because the event log of a killed driver lacks the last events.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

SPECULATIVE_ATTEMPTS: Final = "speculative attempts"
SPECULATIVE_SUCCESSES: Final = "successful speculative attempts"
FETCH_FAILURES: Final = "fetch failures"
STAGE_RETRIES: Final = "stage retries"

_OUR_ERROR: Final = re.compile(r"(?:pyspark_kafka\.errors\.|PicklingError: )(\w+Error)\b")


def count_events(directory: Path) -> Counter[str]:
    """Count the events in the event logs of all drivers of a run."""
    counts: Counter[str] = Counter()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.endswith(".crc"):
            counts.update(name for event in _events(path) for name in _names(event))
    return counts


def count_errors(lines: Iterable[str]) -> Counter[str]:
    """Count the query failures by the sink's error class, and all others as `other error`."""
    found = (_OUR_ERROR.findall(line) for line in lines)
    return Counter(names[-1] if names else "other error" for names in found)


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(errors="replace") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                return  # the driver was killed while it wrote this line


def _names(event: Mapping[str, Any]) -> Sequence[str]:
    match event["Event"]:
        case "SparkListenerTaskStart" if event["Task Info"]["Speculative"]:
            return [SPECULATIVE_ATTEMPTS]
        case "SparkListenerTaskEnd":
            reason = event["Task End Reason"]["Reason"]
            if reason == "FetchFailed":
                return [FETCH_FAILURES]
            if reason == "Success" and event["Task Info"]["Speculative"]:
                return [SPECULATIVE_SUCCESSES]
        case "SparkListenerStageSubmitted" if event["Stage Info"]["Stage Attempt ID"] > 0:
            return [STAGE_RETRIES]
    return []
