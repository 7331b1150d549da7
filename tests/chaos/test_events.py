"""The numbers of what a run has exercised, from Spark's event logs and from query failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from integration.chaos.events import count_errors, count_events


def task_end(reason: str, *, speculative: bool = False) -> Mapping[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Task End Reason": {"Reason": reason},
        "Task Info": {"Speculative": speculative},
    }


def stage(attempt: int) -> Mapping[str, Any]:
    return {
        "Event": "SparkListenerStageSubmitted",
        "Stage Info": {"Stage Attempt ID": attempt},
    }


def task_start(*, speculative: bool) -> Mapping[str, Any]:
    return {"Event": "SparkListenerTaskStart", "Task Info": {"Speculative": speculative}}


def test_events_of_all_drivers_are_counted(tmp_path: Path) -> None:
    first = [stage(0), stage(1), task_end("FetchFailed"), task_end("Success")]
    second = [
        *(task_start(speculative=each) for each in (False, True, True)),
        *(task_end(each, speculative=True) for each in ("Success", "TaskKilled")),
        {"Event": "SparkListenerJobEnd"},
    ]
    for name, events in (("app-1", first), ("app-2.inprogress", second)):
        (tmp_path / name).write_text("".join(f"{json.dumps(event)}\n" for event in events))
    with (tmp_path / "app-2.inprogress").open("a") as log:
        log.write('{"Event": "SparkListenerTaskSt')  # the driver was killed
    assert count_events(tmp_path) == {
        "stage retries": 1,
        "fetch failures": 1,
        "speculative attempts": 2,
        "successful speculative attempts": 1,
    }


def test_errors_of_the_sink_are_counted_by_class() -> None:
    counts = count_errors(
        [
            "failed: pyspark_kafka.errors.RowsLostError: 3 rows",
            "failed: PicklingError: RowsLostError: 3 rows",
            "failed: [STREAM_FAILED] Concurrent update to the log",
        ]
    )
    assert counts == {"RowsLostError": 2, "other error": 1}
