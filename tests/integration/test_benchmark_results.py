"""The parts of the benchmarks that do not measure: ratios, results and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from integration.benchmarks import report
from integration.benchmarks.cases import CASES, Case, Comparison
from integration.benchmarks.measure import CPU_SECONDS, SECONDS, Sample
from integration.benchmarks.ratios import order_of_round, ratio_of
from integration.benchmarks.resources import Resources
from integration.benchmarks.results import Result, incomplete, load, merge, save
from integration.benchmarks.runner import Extent, run_case

NOBODY = cast("Resources", SimpleNamespace(engine="native"))
ONE_ROUND = Extent(records=10, rounds=1)


def result(case: str = "read", peer: str = "peer", **fields: Any) -> Result:
    given: dict[str, Any] = {
        "ratio_median": 2.0,
        "ratio_min": 1.5,
        "ratio_max": 2.5,
        "target": 1.6,
        "at_most": False,
        "quantity": SECONDS,
        "of_case": case,
        "title": "Reads",
        "rounds": 5,
        "records": 1000,
        "engine": "native",
        **fields,
    }
    return Result(case=case, peer=peer, **given)


class Steady:
    """A side that returns the given times and fails in round `fails_in`."""

    def __init__(self, seconds: Sequence[float], *, fails_in: int | None = None) -> None:
        self.seconds = list(seconds)
        self.fails_in = fails_in
        self.runs = 0

    def run(self, resources: Resources, records: int) -> Sample:
        number, self.runs = self.runs, self.runs + 1
        if number == self.fails_in:
            raise ValueError("boom\nsecond line")
        return {SECONDS: self.seconds[number], CPU_SECONDS: 2 * self.seconds[number]}


def case_of(
    ours: Steady, peers: dict[str, Steady], comparisons: Sequence[Comparison] | None = None
) -> Case:
    return Case(
        name="read",
        title="Reads",
        ours=ours,
        peers=peers,
        comparisons=tuple(comparisons or [Comparison(peer=peer) for peer in peers]),
        records=10,
    )


# Ratios


def test_ratios_are_computed_per_round() -> None:
    ratio = ratio_of([2.0, 40.0, 9.0], [1.0, 40.0, 3.0])
    assert (ratio.median, ratio.minimum, ratio.maximum) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("above", "below", "facts"),
    [
        ([1.0], [1.0, 2.0], r"\b1\b.*\b2\b"),
        ([], [], r"\b0\b.*\b0\b"),
        ([1.0], [0.0], "records"),
    ],
)
def test_samples_that_cannot_be_paired_are_rejected(
    above: list[float], below: list[float], facts: str
) -> None:
    with pytest.raises(ValueError, match=facts):
        ratio_of(above, below)


@pytest.mark.parametrize("sides", [["ours", "a"], ["ours", "a", "b"]])
def test_the_order_of_sides_varies_between_rounds(sides: list[str]) -> None:
    orders = [order_of_round(sides, number) for number in range(6)]
    assert all(sorted(order) == sorted(sides) for order in orders)
    assert {order[0] for order in orders} == set(sides)
    before_ours = {order[order.index("ours") - 1] for order in orders if order[0] != "ours"}
    assert before_ours == set(sides) - {"ours"}


# The runner


def test_the_warm_up_does_not_count_and_comparisons_have_a_direction() -> None:
    case = case_of(
        Steady([100.0, 1.0, 2.0]),
        {"peer": Steady([1.0, 4.0, 4.0])},
        [
            Comparison(peer="peer", target=3.0),
            Comparison(peer="peer", at_most=True, suffix="-less"),
        ],
    )
    more, less = run_case(case, NOBODY, Extent(records=10, rounds=2), _ignore)
    assert (more.ratio_min, more.ratio_median, more.ratio_max) == (2.0, 3.0, 4.0)
    assert (less.case, less.ratio_min, less.ratio_max) == ("read-less", 0.25, 0.5)
    assert (more.cpu_seconds, more.peer_cpu_seconds) == (3.0, 8.0)
    assert more.is_met


def test_a_failing_peer_fails_only_its_own_comparison() -> None:
    sound, broken = Steady([1.0] * 3), Steady([1.0] * 3, fails_in=1)
    case = case_of(Steady([1.0] * 3), {"sound": sound, "broken": broken})
    said: list[str] = []
    kept, lost = run_case(case, NOBODY, Extent(records=10, rounds=2), said.append)
    assert (kept.ratio_median, kept.error) == (1.0, None)
    assert (lost.ratio_median, lost.error) == (None, "broken: ValueError: boom")
    assert (sound.runs, broken.runs) == (3, 2)
    assert any("broken: FAILED" in line for line in said)


def test_all_comparisons_fail_if_our_side_fails() -> None:
    peer = Steady([1.0] * 4)
    case = case_of(Steady([1.0] * 4, fails_in=0), {"peer": peer})
    (lost,) = run_case(case, NOBODY, Extent(records=10, rounds=3), _ignore)
    assert lost.error == "ours: ValueError: boom"
    assert peer.runs <= 1


def test_an_error_of_a_python_worker_is_reported_by_its_last_line() -> None:
    class Failing:
        def run(self, resources: Resources, records: int) -> Sample:
            raise RuntimeError(
                "An error occurred while calling o1.save.\nTraceback (most recent call last):\n"
                "pyspark_kafka.errors.OptionError: no such engine\n\tat org.apache.spark.Task"
            )

    case = case_of(Steady([1.0] * 2), {"peer": Steady([1.0] * 2)})
    failing = Case(**{name: getattr(case, name) for name in case.__slots__} | {"ours": Failing()})
    (lost,) = run_case(failing, NOBODY, ONE_ROUND, _ignore)
    assert lost.error == "ours: pyspark_kafka.errors.OptionError: no such engine"


def _ignore(words: str) -> None:
    pass


# The table of cases


def test_every_comparison_has_a_side_and_a_unique_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    places = []
    for case in CASES:
        for comparison in case.comparisons:
            assert comparison.peer in case.peers, case.name
            places.append((case.name + comparison.suffix, comparison.peer))
        assert set(case.peers) == {comparison.peer for comparison in case.comparisons}, case.name
        assert min(case.rounds, case.quick_rounds) >= 5, case.name
    assert len(set(places)) == len(places)


# Results


@pytest.mark.parametrize(
    ("median", "target", "at_most", "met"),
    [
        (2.0, 2.0, False, True),
        (1.9, 2.0, False, False),
        (2.9, 3.0, True, True),
        (3.1, 3.0, True, False),
        (3.1, None, True, None),
        (None, 3.0, True, False),
    ],
)
def test_a_target_is_a_lower_or_an_upper_bound(
    median: float | None, target: float | None, at_most: bool, met: bool | None
) -> None:
    assert result(ratio_median=median, target=target, at_most=at_most).is_met is met


def test_the_file_has_the_documented_fields(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "results.json"
    save([result(), result("write", target=None)], path)
    rows = json.loads(path.read_text())
    assert isinstance(rows, list)
    wanted = ("case", "peer", "ratio_median", "ratio_min", "ratio_max", "target")
    assert [[row[name] for name in wanted] for row in rows] == [
        ["read", "peer", 2.0, 1.5, 2.5, 1.6],
        ["write", "peer", 2.0, 1.5, 2.5, None],
    ]
    assert load(path) == [result(), result("write", target=None)]
    assert not list(path.parent.glob("*.part"))


def test_results_of_another_format_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"case": "read"}]')
    with pytest.raises(ValueError, match=r"results\.json"):
        load(path)


def test_a_rerun_case_replaces_only_its_own_results() -> None:
    old = [
        result("read", "gone"),
        result("read-cpu", "gone", of_case="read"),
        result("write", ratio_median=1.0),
        result("no-case-any-more"),
    ]
    new = [result("read", "peer", ratio_median=9.0)]
    merged = merge(old, new, order=["write", "read"])
    assert [(r.case, r.peer, r.ratio_median) for r in merged] == [
        ("write", "peer", 1.0),
        ("read", "peer", 9.0),
    ]


def test_failed_and_missing_cases_are_incomplete() -> None:
    results = [result("read"), result("write", error="ours: boom", ratio_median=None)]
    assert incomplete(results, order=["read", "write", "stream"]) == ["write", "stream"]


# The report


def test_the_report_shows_ratios_targets_and_failures_without_error_texts() -> None:
    results = [
        result(),
        result(peer="slow", ratio_median=1.5),
        result(peer="broken", ratio_median=None, error="ours: in /home/someone/file.py"),
        result("decode", at_most=True, target=3.0),
    ]
    written = report.render(results, {"Cores": "2"})
    assert "| read | peer | peer / ours, seconds | ≥ 1.6 | **2.00** | 1.50 to 2.50 |" in written
    assert "| 1.50 (missed) |" in written
    assert "| read | broken | peer / ours, seconds | ≥ 1.6 | failed |" in written
    assert "| decode | peer | ours / peer, seconds | ≤ 3 | **2.00** |" in written
    assert "| Cores | 2 |" in written
    assert "/home" not in written
