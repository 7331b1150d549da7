"""The measurements of the benchmarks, and the data that they use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.benchmarks.kernels import repeated
from integration.benchmarks.measure import CPU_SECONDS, SECONDS, measure_process, measure_tree
from integration.benchmarks.payload import DISTINCT, values
from integration.benchmarks.processes import (
    CpuMeter,
    command_line,
    descendants,
    parent,
    resident_bytes,
)
from integration.benchmarks.topics import record_counts, stored_chunks
from integration.benchmarks.worker_memory import GROWTH, LATE_OVER_MIDDLE, memory_of
from tests.pyspark_kafka.records.batches import plain

MEBIBYTE = 1024 * 1024

BUSY_THEN_WAITING = """
import sys, time
while time.process_time() < 0.4: pass
sys.stdout.write("done\\n"); sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def busy_child() -> subprocess.Popen[str]:
    """Return a process that uses 0.4 s of CPU time, prints a line and then waits."""
    return subprocess.Popen(
        [sys.executable, "-c", BUSY_THEN_WAITING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(child: subprocess.Popen[str]) -> None:
    child.communicate("", timeout=30)


def used_by(child: subprocess.Popen[str], meter: CpuMeter) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"


def test_the_meter_counts_a_running_descendant(busy_child: subprocess.Popen[str]) -> None:
    assert busy_child.pid in descendants()
    assert parent(busy_child.pid) == os.getpid()
    assert sys.executable in command_line(busy_child.pid)[0]
    with CpuMeter() as meter:
        used_by(busy_child, meter)
    assert (resident_bytes(busy_child.pid) or 0) > MEBIBYTE
    end(busy_child)
    assert meter.seconds >= 0.1
    assert busy_child.pid not in descendants()
    assert resident_bytes(busy_child.pid) is None


def test_the_meter_keeps_the_cpu_time_of_an_ended_process(
    busy_child: subprocess.Popen[str],
) -> None:
    with CpuMeter() as meter:
        used_by(busy_child, meter)
        before_s = meter.seconds
        while meter.seconds == before_s == 0:
            pass  # Wait for the next poll. The test's timeout limits the loop.
        seen_s = meter.seconds
        end(busy_child)
    assert meter.seconds >= seen_s > 0


def test_the_meter_ignores_excluded_processes(busy_child: subprocess.Popen[str]) -> None:
    with CpuMeter({busy_child.pid}) as meter:
        used_by(busy_child, meter)
        end(busy_child)
    assert meter.seconds < 0.1


def test_samples_are_per_million_rows() -> None:
    def spin() -> int:
        return sum(1 for _ in range(200_000)) // 100

    for sample in (measure_process(spin), measure_tree(spin, excluded=descendants())):
        # A few milliseconds for 2,000 rows are a few seconds per million rows.
        assert 0.1 < sample[SECONDS] < 500
        assert 0.1 < sample[CPU_SECONDS] < 500


def test_work_without_rows_is_rejected() -> None:
    with pytest.raises(ValueError, match="rows"):
        measure_process(lambda: 0)


def test_repeated_work_counts_the_records_of_all_repeats() -> None:
    times: list[int] = []

    def work() -> int:
        times.append(1)
        return 10

    assert repeated(work) == 10 * len(times)
    assert len(times) > 1


def test_values_have_their_size_and_differ() -> None:
    for size in (100, 1024):
        made = values(size)
        assert len(set(made)) == DISTINCT
        assert {len(value) for value in made} == {size}
        assert b"\n" not in b"".join(made)


def test_stored_batches_are_split_at_their_ends_and_counted(tmp_path: Path) -> None:
    batches = [plain([b"v" * 40] * 5, base_offset=offset) for offset in (0, 5, 10)]
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(b"".join(batches) + batches[0][:-1])
    two = len(batches[0]) * 2
    assert stored_chunks(tmp_path, "t", chunk_bytes=two) == [batches[0] + batches[1], batches[2]]
    assert stored_chunks(tmp_path, "t", chunk_bytes=1) == batches
    assert record_counts(stored_chunks(tmp_path, "t", chunk_bytes=two)) == 15


def test_memory_is_that_of_the_worker_that_grew_most() -> None:
    steady = [100 * MEBIBYTE] * 9
    growing = [50 * MEBIBYTE] * 3 + [90 * MEBIBYTE] * 3 + [180 * MEBIBYTE] * 3
    sample = memory_of({1: steady, 2: growing, 3: [1, 10**12]})
    assert sample == {GROWTH: 130.0, LATE_OVER_MIDDLE: 2.0}


def test_memory_with_too_few_samples_is_rejected() -> None:
    with pytest.raises(ValueError, match="records"):
        memory_of({1: [1, 2, 3]})
