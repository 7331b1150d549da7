"""Ratios and their targets as a picture: SVG, written by hand.

Purpose: one line a ratio, from the least to the greatest, a dot at the median, a mark at the
target. Written by hand because it is lines, dots and words: a plotting library would be the largest
of the development packages and give ten times the bytes. Invariant: the same results give the same
bytes. What it must not know: where results come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from integration.benchmarks.results import Result

WIDTH: Final = 980
_LABEL_WIDTH: Final = 440
_FIGURE_WIDTH: Final = 70
_ROW_HEIGHT: Final = 24
_HEAD_HEIGHT: Final = 62
_FONT: Final = "font-family: Helvetica, Arial, sans-serif"

_MET, _SHORT, _NEUTRAL, _TARGET = "#1a7f37", "#b42318", "#57606a", "#1f2328"
_GRID, _BAND = "#d8dee4", "#f6f8fa"
_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A logarithmic axis from `low` to `high`, over the pixels `left` to `right`."""

    low: float
    high: float
    left: float
    right: float

    def x(self, value: float) -> float:
        """Where a ratio is; what is beyond an end is at that end."""
        bounded = min(max(value, self.low), self.high)
        part = math.log(bounded / self.low) / math.log(self.high / self.low)
        return self.left + part * (self.right - self.left)

    @property
    def ticks(self) -> list[float]:
        """The round numbers on it."""
        return [tick for tick in _TICKS if self.low <= tick <= self.high]


def draw(results: Iterable[Result]) -> str:
    """The picture of all results that have a target and a ratio. Raises `ValueError` for none."""
    shown = [r for r in results if r.target is not None and r.ratio_median is not None]
    if not shown:
        raise ValueError("no result has a ratio and a target: there is nothing to draw")
    panels = [
        (
            "The peer's time over ours: more is better, the target is a least",
            [result for result in shown if not result.at_most],
        ),
        (
            "Ours over the peer's: less is better, the target is a most",
            [result for result in shown if result.at_most],
        ),
    ]
    panels = [(title, rows) for title, rows in panels if rows]
    height = sum(_HEAD_HEIGHT + _ROW_HEIGHT * len(rows) for _, rows in panels) + 40
    svg = ElementTree.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=str(WIDTH),
        height=str(height),
        role="img",
        style=_FONT,
    )
    ElementTree.SubElement(svg, "title").text = "Benchmarks of pyspark-kafka: ratios and targets"
    _rectangle(svg, x=0, y=0, width=WIDTH, height=height, fill="#ffffff")
    top = 0
    for title, rows in panels:
        _draw_panel(svg, title, rows, top)
        top += _HEAD_HEIGHT + _ROW_HEIGHT * len(rows)
    _draw_legend(svg, top + 22)
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def axis_for(rows: Sequence[Result]) -> Axis:
    """An axis on which every ratio and target of the rows has its place."""
    values = [1.0]
    for row in rows:
        values += [v for v in (row.ratio_min, row.ratio_max, row.target) if v is not None and v > 0]
    return Axis(
        low=max(min(values) * 0.8, 0.05),
        high=max(values) * 1.25,
        left=_LABEL_WIDTH + 12,
        right=WIDTH - _FIGURE_WIDTH - 16,
    )


def _draw_panel(svg: ElementTree.Element, title: str, rows: Sequence[Result], top: float) -> None:
    axis = axis_for(rows)
    first, last = top + _HEAD_HEIGHT, top + _HEAD_HEIGHT + _ROW_HEIGHT * len(rows)
    _text(svg, title, x=12, y=top + 24, size=15, weight="bold")
    for number in range(0, len(rows), 2):
        y = first + number * _ROW_HEIGHT
        _rectangle(svg, x=0, y=y, width=WIDTH, height=_ROW_HEIGHT, fill=_BAND)
    for tick in axis.ticks:
        x = axis.x(tick)
        is_even = tick == 1
        _line(svg, x, first, x, last, stroke=_NEUTRAL if is_even else _GRID, width=1)
        _text(svg, f"{tick:g}", x=x, y=first - 6, size=11, anchor="middle", fill=_NEUTRAL)
    for number, row in enumerate(rows):
        _draw_row(svg, axis, row, first + (number + 0.5) * _ROW_HEIGHT)


def _draw_row(svg: ElementTree.Element, axis: Axis, row: Result, y: float) -> None:
    assert row.target is not None
    assert row.ratio_median is not None
    assert row.ratio_min is not None
    assert row.ratio_max is not None
    color = _MET if row.is_met else _SHORT
    _text(svg, f"{row.case} : {row.peer}", x=_LABEL_WIDTH, y=y + 4, size=12, anchor="end")
    _line(svg, axis.x(row.ratio_min), y, axis.x(row.ratio_max), y, stroke=color, width=4)
    _dot(svg, axis.x(row.ratio_median), y, color)
    target = axis.x(row.target)
    _line(svg, target, y - 9, target, y + 9, stroke=_TARGET, width=2)
    # On the side where the ratio should be.
    tip = -7 if row.at_most else 7
    points = f"{target:.1f},{y - 9:.1f} {target + tip:.1f},{y - 6:.1f} {target:.1f},{y - 3:.1f}"
    ElementTree.SubElement(svg, "polygon", points=points, fill=_TARGET)
    figure = f"{row.ratio_median:.3g}"
    _text(svg, figure, x=WIDTH - 16, y=y + 4, size=12, anchor="end", fill=color, weight="bold")


def _draw_legend(svg: ElementTree.Element, y: float) -> None:
    _dot(svg, 20, y - 4, _MET)
    _text(svg, "median, target reached", x=32, y=y, size=12)
    _dot(svg, 200, y - 4, _SHORT)
    _text(svg, "median, short of it", x=212, y=y, size=12)
    _line(svg, 350, y - 4, 380, y - 4, stroke=_NEUTRAL, width=4)
    _text(svg, "least to greatest", x=388, y=y, size=12)
    _line(svg, 510, y - 13, 510, y + 5, stroke=_TARGET, width=2)
    _text(svg, "target; its flag points to where the ratio should be", x=520, y=y, size=12)


def _text(
    svg: ElementTree.Element,
    words: str,
    *,
    x: float,
    y: float,
    size: int,
    anchor: str = "start",
    fill: str = _TARGET,
    weight: str = "normal",
) -> None:
    attributes = {
        "x": f"{x:.1f}",
        "y": f"{y:.1f}",
        "font-size": str(size),
        "text-anchor": anchor,
        "fill": fill,
        "font-weight": weight,
    }
    ElementTree.SubElement(svg, "text", attributes).text = words


def _line(
    svg: ElementTree.Element,
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    *,
    stroke: str,
    width: int,
) -> None:
    attributes = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    attributes |= {"stroke": stroke, "stroke-width": str(width)}
    ElementTree.SubElement(svg, "line", attributes)


def _dot(svg: ElementTree.Element, x: float, y: float, fill: str) -> None:
    attributes = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "5", "fill": fill}
    ElementTree.SubElement(svg, "circle", attributes)


def _rectangle(
    svg: ElementTree.Element, *, x: float, y: float, width: float, height: float, fill: str
) -> None:
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}"}
    attributes |= {"height": f"{height:.1f}", "fill": fill}
    ElementTree.SubElement(svg, "rect", attributes)
