"""The pure parts of the benchmarks: ratios, results, the page, the chart. Nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from integration.benchmarks import page
from integration.benchmarks.cases import CASES, Case, Comparison
from integration.benchmarks.chart import axis_for, draw
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
    """A side that takes what it is told; it fails in one round where it is told that."""

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


def test_a_ratio_is_of_one_round_and_not_of_medians() -> None:
    ratio = ratio_of([2.0, 40.0, 9.0], [1.0, 40.0, 3.0])
    assert (ratio.median, ratio.minimum, ratio.maximum) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(("above", "below"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0])])
def test_what_makes_no_ratio_is_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no pairs|too little"):
        ratio_of(above, below)


def test_every_side_runs_once_a_round_and_none_always_follows_the_same() -> None:
    sides = ["ours", "a", "b"]
    orders = [order_of_round(sides, number) for number in range(6)]
    assert all(sorted(order) == sorted(sides) for order in orders)
    assert {order[0] for order in orders} == set(sides)
    before_ours = {order[order.index("ours") - 1] for order in orders if order[0] != "ours"}
    assert before_ours == {"a", "b"}


# The runner


def test_the_warm_up_does_not_count_and_the_direction_is_the_comparisons() -> None:
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


def test_a_peer_that_fails_takes_only_its_own_comparison_with_it() -> None:
    sound, broken = Steady([1.0] * 3), Steady([1.0] * 3, fails_in=1)
    case = case_of(Steady([1.0] * 3), {"sound": sound, "broken": broken})
    said: list[str] = []
    kept, lost = run_case(case, NOBODY, Extent(records=10, rounds=2), said.append)
    assert (kept.ratio_median, kept.error) == (1.0, None)
    assert (lost.ratio_median, lost.error) == (None, "broken: ValueError: boom")
    assert (sound.runs, broken.runs) == (3, 2)
    assert any("broken: FAILED" in line for line in said)


def test_nothing_is_compared_with_what_failed_as_ours() -> None:
    peer = Steady([1.0] * 4)
    case = case_of(Steady([1.0] * 4, fails_in=0), {"peer": peer})
    (lost,) = run_case(case, NOBODY, Extent(records=10, rounds=3), _ignore)
    assert lost.error == "ours: ValueError: boom"
    assert peer.runs <= 1


def test_of_an_error_in_a_python_worker_its_own_last_line_is_told() -> None:
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


def test_every_comparison_has_its_side_and_its_place_in_the_results() -> None:
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
def test_a_target_is_a_bound_from_its_own_side(
    median: float | None, target: float | None, at_most: bool, met: bool | None
) -> None:
    assert result(ratio_median=median, target=target, at_most=at_most).is_met is met


def test_the_file_has_the_fields_that_others_read(tmp_path: Path) -> None:
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


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"case": "read"}]')
    with pytest.raises(ValueError, match=r"results\.json is of another version"):
        load(path)


def test_a_case_that_is_run_again_replaces_its_own_results_alone() -> None:
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


def test_what_failed_or_was_not_run_is_incomplete() -> None:
    results = [result("read"), result("write", error="ours: boom", ratio_median=None)]
    assert incomplete(results, order=["read", "write", "stream"]) == ["write", "stream"]


# The page


def test_the_page_tells_ratios_targets_and_failures_but_not_what_an_error_said() -> None:
    results = [
        result(),
        result(peer="slow", ratio_median=1.5),
        result(peer="broken", ratio_median=None, error="ours: in /home/someone/file.py"),
        result("decode", at_most=True, target=3.0),
    ]
    written = page.render(results, {"Cores": "2"})
    assert "| read | peer | peer / ours, seconds | ≥ 1.6 | **2.00** | 1.50 to 2.50 |" in written
    assert "| 1.50 (short) |" in written
    assert "| read | broken | peer / ours, seconds | ≥ 1.6 | failed |" in written
    assert "| decode | peer | ours / peer, seconds | ≤ 3 | **2.00** |" in written
    assert "| Cores | 2 |" in written
    assert "/home" not in written


def test_the_page_and_the_chart_it_shows_are_written_together(tmp_path: Path) -> None:
    page.write([result()], {}, directory=tmp_path)
    assert f"]({page.CHART_NAME})" in (tmp_path / page.PAGE_NAME).read_text()
    assert ElementTree.parse(tmp_path / page.CHART_NAME).getroot().tag.endswith("svg")


# The chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(results: Sequence[Result]) -> ElementTree.Element:
    return ElementTree.fromstring(draw(results))


def words_of(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.iter(f"{SVG}text")]


def test_the_chart_shows_each_ratio_that_has_a_target() -> None:
    chart = drawn(
        [
            result(peer="a <peer> & more"),
            result("short", ratio_median=1.0, ratio_min=0.5),
            result("untold", target=None),
            result("failed", ratio_median=None, error="boom"),
        ]
    )
    words = words_of(chart)
    assert "read : a <peer> & more" in words
    assert not [text for text in words if text.startswith(("untold", "failed"))]
    # Two rows of one panel, and two of the legend.
    fills = [dot.get("fill") for dot in chart.iter(f"{SVG}circle")]
    assert len(fills) == 4
    assert fills[0] != fills[1]
    assert len(list(chart.iter(f"{SVG}polygon"))) == 2


def test_a_flag_points_to_where_the_ratio_should_be() -> None:
    def tip(at_most: bool) -> float:
        (flag,) = drawn([result(at_most=at_most)]).iter(f"{SVG}polygon")
        (x, _), (tip_x, _), _ = (
            map(float, point.split(",")) for point in (flag.get("points") or "").split()
        )
        return tip_x - x

    assert tip(at_most=False) > 0 > tip(at_most=True)


def test_all_that_is_drawn_is_inside_and_on_a_logarithmic_axis() -> None:
    rows = [result(ratio_median=80.0, ratio_min=0.01, ratio_max=300.0, target=25.0)]
    axis = axis_for(rows)
    for value in (0.01, 80.0, 300.0, 25.0):
        assert axis.left <= axis.x(value) <= axis.right
    assert axis.x(20) - axis.x(2) == pytest.approx(axis.x(200) - axis.x(20))
    chart = drawn(rows)
    height = float(chart.get("height") or 0)
    ends = [float(line.get("y2") or 0) for line in chart.iter(f"{SVG}line")]
    assert max(ends) <= height


def test_a_chart_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([result(target=None)])
