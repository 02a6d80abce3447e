"""The geometry of diagrams in pages: round ticks, and every point where its values say."""

from __future__ import annotations

import math

import pytest

from sparsenmt.report.page.axis_scale import AxisScale, ends_of, tick_text
from sparsenmt.report.page.panel_shapes import NARROW, panel_shapes
from sparsenmt.report.plots import Panel

POINTS = [(0.0, 0.1), (0.5, None), (1.0, 0.3), (2.0, 0.2)]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 0.3, [0.0, 0.1, 0.2, 0.3]),
        (-3.0, 17.0, [0.0, 5.0, 10.0, 15.0]),
        (37.13, 38.2, [37.2, 37.4, 37.6, 37.8, 38.0, 38.2]),
        (0.0, 79_000.0, [0.0, 20_000.0, 40_000.0, 60_000.0]),
        (1e-9, 1.1e-9, [1e-9, 1.02e-9, 1.04e-9, 1.06e-9, 1.08e-9, 1.1e-9]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, ticks: list[float]) -> None:
    assert AxisScale(low, high, 0, 100).ticks(6) == pytest.approx(ticks)


def test_ticks_never_exceed_their_number() -> None:
    for k in range(200):
        low = math.sin(k) * 10.0 ** (k % 13 - 6)
        found = AxisScale(low, low + 10.0 ** (k % 7 - 3) * (1 + k / 50), 0, 1).ticks(6)
        assert 1 <= len(found) <= 6


def test_places() -> None:
    scale = AxisScale(10.0, 20.0, 100.0, 0.0)
    assert [scale.place(value) for value in (10.0, 15.0, 20.0)] == [100.0, 50.0, 0.0]
    assert ends_of([]) == (0.0, 1.0) and ends_of([3.0]) == pytest.approx((2.7, 3.3)) and ends_of([0.0]) == (-1.0, 1.0)
    assert (tick_text(0.125, percent=True), tick_text(12345.0, percent=False)) == ("12.5%", "12,345")


def test_a_value_that_was_not_measured_leaves_a_gap() -> None:
    (one,) = panel_shapes(Panel("x", "y", {"a": POINTS})).series
    assert one.line.count("M") == 2 and one.line.count("L") == 1 and len(one.marks) == 3


@pytest.mark.parametrize("style", ["curves", "lines", "points", "steps", "bars"])
def test_shapes_lie_between_the_axes(style: str) -> None:
    intervals = {"a": [(0.05, 0.2), None, (0.2, 0.45), (0.1, 0.3)]}
    panel = Panel("x", "y", {"a": POINTS, "b": POINTS}, style=style, intervals=intervals, level=("l", 0.5))  # type: ignore[arg-type]
    shapes = panel_shapes(panel)
    assert shapes.level is not None and shapes.top <= shapes.level <= shapes.bottom
    assert len(shapes.series[0].intervals) == 3
    for one in shapes.series:
        for mark in (*one.marks, *one.bars):
            assert shapes.left <= mark.x and mark.x + mark.width <= shapes.right
            assert shapes.top <= mark.y and mark.y + mark.height <= shapes.bottom + 0.6
        for x, low, high in one.intervals:
            assert shapes.left <= x <= shapes.right and shapes.top <= high < low <= shapes.bottom


def test_bars_stand_on_0_side_by_side() -> None:
    panel = Panel("x", "y", {"a": [(0.0, 0.5), (1.0, 0.25)], "b": [(0.0, 1.0)]}, style="bars")
    first, second = panel_shapes(panel).series
    bottom = panel_shapes(panel).bottom
    assert [bar.y + bar.height for bar in first.bars] == pytest.approx([bottom, bottom])
    assert first.bars[0].height == pytest.approx(2 * first.bars[1].height, abs=0.2)
    assert second.bars[0].x == pytest.approx(first.bars[0].x + first.bars[0].width, abs=0.2)


def test_a_point_at_0_is_not_cut_by_the_axis() -> None:
    shapes = panel_shapes(Panel("sparsity rate", "BLEU", {"a": [(0.0, 38.0), (0.5, 36.0)]}, percent="x"))
    (one,) = shapes.series
    assert one.marks[0].x - shapes.left > 4 and shapes.right - one.marks[1].x > 4
    assert [text for _, (text,) in shapes.x_ticks] == ["0%", "10%", "20%", "30%", "40%", "50%"]


def test_long_names_widen_a_panel_and_are_turned_where_that_is_not_enough() -> None:
    few = Panel("x", "y", {"a": [(float(i), 1.0) for i in range(3)]}, ticks=[(float(i), f"n{i}\n12") for i in range(3)])
    many = Panel("x", "y", {"a": []}, ticks=[(float(i), "a rather long category") for i in range(20)])
    assert (panel_shapes(few).width, panel_shapes(few).turned) == (NARROW, False)
    assert panel_shapes(many).width > NARROW and panel_shapes(many).turned


def test_long_curves_are_thinned_to_their_last_point() -> None:
    (one,) = panel_shapes(Panel("x", "y", {"a": [(float(i), float(i)) for i in range(25_001)]}, style="lines")).series
    assert 900 < one.line.count("L") <= 1_001
    assert one.line.endswith(one.line.split("L")[-1]) and not one.marks


def test_a_model_has_one_colour_in_all_panels() -> None:
    models = ("a", "b", "c")
    assert [one.index for one in panel_shapes(Panel("x", "y", {"c": POINTS, "b": POINTS}), models).series] == [2, 1]
    assert [one.index for one in panel_shapes(Panel("x", "y", {"c": POINTS, "mean": []}), models).series] == [0, 1]


def test_a_point_without_a_line_has_a_mark() -> None:
    one, two = panel_shapes(Panel("x", "y", {"a": [(1.0, 2.0), (2.0, None)], "b": POINTS}, style="lines")).series
    assert (len(one.marks), len(two.marks)) == (1, 0)


def test_a_panel_without_points() -> None:
    for style in ("curves", "steps", "bars"):
        assert panel_shapes(Panel("x", "y", {"a": []}, style=style)).series[0].line == ""  # type: ignore[arg-type]
