"""Pictures of figures in SVG: marks with 95% intervals, or curves; the same bytes for the same records.

They are panels of a report's page, with a title, a legend and colours of their own: those of Okabe and Ito, which the
colour-blind tell apart; curves differ in their marks and strokes, too.
"""

from __future__ import annotations

import math

from sparsenmt.errors import UserError
from sparsenmt.report.page.html_page import page_environment
from sparsenmt.report.page.panel_shapes import panel_shapes
from sparsenmt.report.plots import Panel, Points
from tools.claims.record import Bar, Picture, Record
from tools.claims.template import filled, locate, number
from tools.claims.verdict import Measurement, measure

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLE = " ".join(
    [
        "text { font: 12px Helvetica, Arial, sans-serif; fill: #222 } .soft { fill: #555 }",
        ".grid { stroke: #ddd } .axis { stroke: #222 } .level { stroke: #222; stroke-dasharray: 4 3 }",
        ".line, .interval { fill: none; stroke-width: 2 } .mark { stroke: none }",
        ".stroke-1 { stroke-dasharray: 7 3 } .stroke-2 { stroke-dasharray: 2 3 }",
        *(f".series-{i} {{ stroke: {each}; fill: {each} }}" for i, each in enumerate(_COLORS)),
    ]
)
_TEMPLATE = """\
{% from "panel.svg" import panel_picture with context %}
{% set height = 24 + shapes.height + 20 * legend|length %}
<svg xmlns="http://www.w3.org/2000/svg" width="{{ shapes.width }}" height="{{ height }}" \
viewBox="0 0 {{ shapes.width }} {{ height }}">
<title>{{ title }}</title>
<style>{{ style }}</style>
<rect width="{{ shapes.width }}" height="{{ height }}" fill="white"/>
<text x="8" y="16">{{ title }}</text>
<g transform="translate(0 24)">
{{ panel_picture(shapes, "panel", "the text beside the picture has its figures") }}
</g>
{% for name in legend %}
{% set place = 34 + shapes.height + 20 * loop.index0 %}
<g class="series-{{ loop.index0 }}" transform="translate(60 {{ place }})">
<path class="line stroke-{{ loop.index0 % 4 }}" d="M-13 0H13"/><path class="mark" d="{{ MARKS[loop.index0] }}"/>
</g>
<text x="82" y="{{ place + 4 }}">{{ name }}</text>
{% endfor %}
</svg>
"""


def picture(drawn: Picture, record: Record) -> str:
    """Return the SVG of a picture."""

    def words(text: str) -> str:
        return filled(text, None, record)

    if drawn.curves:
        panel, title = _curves(drawn, record), words(drawn.vertical)
    else:
        panel, title = (
            _bars([(words(bar.label), bar) for bar in drawn.bars], record, signed=drawn.zero),
            words(drawn.axis),
        )
    legend = list(panel.series) if drawn.curves else []
    made = page_environment().from_string(_TEMPLATE)
    return f"{made.render(shapes=panel_shapes(panel), title=title, style=_STYLE, legend=legend)}\n"


def _found(name: str, record: Record) -> tuple[Measurement, int, str]:
    """Return a measured figure with its decimals and unit."""
    claim, rest = locate(name, None, record)
    found = measure(claim, rest, record.common) if rest in claim.figures else None
    if found is None:
        raise UserError("a picture needs a figure that is not measured", where=name)
    return found, claim.figures[rest].decimals, claim.figures[rest].unit


def _bars(bars: list[tuple[str, Bar]], record: Record, *, signed: bool) -> Panel:
    """Return the panel of figures side by side, each above its label and value; a series for each colour."""
    series: dict[str, list[tuple[float, float | None]]] = {
        str(i): [] for i in range(1 + max(each.color for _, each in bars))
    }
    intervals: dict[str, list[tuple[float, float] | None]] = {name: [] for name in series}
    ticks = []
    for place, (label, bar) in enumerate(bars):
        found, decimals, unit = _found(bar.figure, record)
        shown = number(found.value, decimals, unit=unit, signed=signed)
        ticks.append((float(place), "\n".join([*label.split(", "), shown])))
        series[str(bar.color)].append((float(place), found.value))
        known = found.low < found.high and math.isfinite(found.high - found.low)
        intervals[str(bar.color)].append((found.low, found.high) if known else None)
    ends = (-0.5, len(bars) - 0.5)
    level = ("zero", 0.0) if signed else None
    return Panel("", "", series, style="points", ticks=ticks, x_range=ends, intervals=intervals, level=level)


def _curves(drawn: Picture, record: Record) -> Panel:
    """Return the panel of curves."""
    series: dict[str, Points] = {
        filled(label, None, record): [
            (_found(point.x, record)[0].value, _found(point.y, record)[0].value) for point in curve
        ]
        for label, curve in drawn.curves.items()
    }
    level = ("zero", 0.0) if drawn.zero else None
    return Panel(filled(drawn.axis, None, record), "", series, level=level)
