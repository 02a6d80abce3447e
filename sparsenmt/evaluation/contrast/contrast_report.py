"""Contrastive accuracies as tables, for the terminal and for files, and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparsenmt.evaluation.contrast.decisions import Accuracy, Decision, McNemarComparison, compare_decisions
from sparsenmt.evaluation.contrast.groups import LAST_DISTANCE, Grouping, ItemGroup, group
from sparsenmt.evaluation.contrast.items import Item, Suite
from sparsenmt.report.plots import Panel, Points, curves, describe
from sparsenmt.report.tables import Column, Report, Table, Value, columns

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure

TITLES = {
    "overall": "Contrastive accuracy",
    "types": "By type",
    "distances": "By distance in words",
    "frequencies": "By frequency",
    "origins": "By origin",
    "domains": "By domain",
    "senses": "By sense",
}
_MEASURED = columns("count items right ties", "share chance accuracy low high")
_COMPARED = columns("share difference", "count only_first only_this", "number p_value")
_MOST_ROWS = 120
"""Tables with more rows are written to files only."""
_MOST_PANELS = 4


@dataclass(frozen=True)
class ModelDecisions:
    """A model's decisions on all items of a suite.

    Args:
        cut: number of items with a text that was too long for the model.
    """

    label: str
    decisions: tuple[Decision, ...]
    cut: int = 0

    def of(self, members: ItemGroup) -> list[Decision]:
        """Return the decisions on the items of a group."""
        return [self.decisions[i] for i in members.members]


_Models = Sequence[ModelDecisions]


def report(
    suite: Suite, models: Sequence[ModelDecisions], *, notes: Sequence[str] = (), normalize: bool = False
) -> Report:
    """Make a table of each grouping: for files one row per model and group, for a terminal with models side by side.

    There tables with a single row, which repeat the first table, and long tables are left out.
    """
    tables: list[Table] = []
    for each in group(suite.items):
        first, made = each.name == "overall", _table(each, suite, models)
        listed = first or (each.name != "senses" and 1 < len(each.groups) <= _MOST_ROWS)
        several = listed and not first and len(models) > 1
        tables.append(replace(made, listed=listed and not several))
        tables += [_side_by_side(each, suite, models)] if several else []
    settings = {"suite": suite.name, "format": suite.format, "normalize": normalize}
    cut = {each.label: each.cut for each in models}
    return Report("contrast", tuple(tables), tuple(notes), {**settings, "cut": cut})


def report_notes(suite: Suite, models: Sequence[ModelDecisions], *, normalize: bool) -> list[str]:
    """Explain how the figures were computed, and which items were left out."""
    score = "log-probability per token" if normalize else "log-probability"
    notes = [
        f"right: the correct target has a higher {score} than every contrastive one; ties are wrong",
        "low, high: 95% confidence, Wilson's score interval",
    ]
    if len(models) > 1:
        notes.append(f"p: exact McNemar test against {models[0].label}, two-sided")
    for each in models:
        if each.cut:
            items = "1 item" if each.cut == 1 else f"{each.cut:,} items"
            notes.append(f"{each.label}: {items} with a text that is too long for the model, and is cut")
    return [*notes, *suite.notes]


def _chance(items: Sequence[Item], members: ItemGroup) -> float:
    """Return the expected accuracy of random choice."""
    return sum(1 / (1 + len(items[i].contrastive)) for i in members.members) / len(members.members)


def _compared(models: Sequence[ModelDecisions], number: int, members: ItemGroup) -> McNemarComparison | None:
    """Compare a model with the first one; None for the first one itself."""
    return compare_decisions(models[0].of(members), models[number].of(members)) if number else None


def _table(grouping: Grouping, suite: Suite, models: Sequence[ModelDecisions]) -> Table:
    """Make a table with one row per group and model."""
    compared = len(models) > 1
    rows: list[tuple[Value, ...]] = []
    for members in grouping.groups:
        chance = _chance(suite.items, members)
        for number, each in enumerate(models):
            found = Accuracy.of(each.of(members))
            row: list[Value] = [*members.keys, each.label, found.items, found.right, found.ties, chance]
            row += [found.accuracy, *found.interval]
            if compared:
                against = _compared(models, number, members)
                if against is None:
                    row += [None] * len(_COMPARED)
                else:
                    row += [against.difference, against.only_other, against.only_this, against.p_value]
            rows.append(tuple(row))
    heads = (*(Column(key) for key in grouping.keys), Column("model"), *_MEASURED, *(_COMPARED if compared else ()))
    across = "model" if grouping.keys else None  # a single model is named in the title
    return Table(grouping.name, TITLES[grouping.name], heads, tuple(rows), across)


def _side_by_side(grouping: Grouping, suite: Suite, models: Sequence[ModelDecisions]) -> Table:
    """Make a table with one row per group and one column per model: accuracy, interval, p-value against the first."""
    rows: list[tuple[Value, ...]] = []
    for members in grouping.groups:
        row: list[Value] = [*members.keys, len(members.members), _chance(suite.items, members)]
        for number, each in enumerate(models):
            found = Accuracy.of(each.of(members))
            low, high = found.interval
            text = f"{found.accuracy:.1%} [{low * 100:.1f}, {high * 100:.1f}]"
            against = _compared(models, number, members)
            row.append(text if against is None else f"{text} p {against.p_value:.3f}")
        rows.append(tuple(row))
    names, labels = tuple(Column(key) for key in grouping.keys), tuple(Column(each.label) for each in models)
    heads = (*names, *columns("count items", "share chance"), *labels)
    return Table(grouping.name, TITLES[grouping.name], heads, tuple(rows), filed=False)


def drawn(suite: Suite, models: Sequence[ModelDecisions]) -> Figure:
    """Draw accuracies, with title and caption."""
    names = ", ".join(each.label for each in models)
    caption = "vertical lines: 95% confidence, Wilson's score interval"
    title = f"contrastive accuracy\n{names}; suite: {Path(suite.name).name}"
    return describe(curves(panels(suite, models)), title, caption=caption)


def panels(suite: Suite, models: Sequence[ModelDecisions]) -> list[Panel]:
    """Plot accuracy by distance for each of the most frequent types; without distances, by type or by origin."""
    found = {each.name: each for each in group(suite.items)}
    if "distances" in found:
        return [_by_distance(suite.items, name, groups, models) for name, groups in _by_type(found["distances"])]
    names = [name for name in ("types", "origins", "domains") if name in found and len(found[name].groups) > 1]
    chosen = found[names[0] if names else "types"]
    return [_panel(chosen.keys[0], suite.items, list(enumerate(chosen.groups)), models)]


def _by_type(grouping: Grouping) -> list[tuple[str, list[ItemGroup]]]:
    types: dict[str, list[ItemGroup]] = {}
    for members in grouping.groups:
        types.setdefault(str(members.keys[0]), []).append(members)
    most = sorted(types, key=lambda name: -sum(len(each.members) for each in types[name]))[:_MOST_PANELS]
    return [(name, types[name]) for name in types if name in most]


def _by_distance(items: Sequence[Item], title: str, groups: Sequence[ItemGroup], models: _Models) -> Panel:
    names = [str(each.keys[1]) for each in groups]
    places = [LAST_DISTANCE + 1 if name.startswith(">") else int(name) for name in names]
    found = _panel("distance in words", items, list(zip(places, groups, strict=True)), models)
    seen = [low for ends in found.intervals.values() for low, _ in filter(None, ends)]
    chance = [found.level[1]] if found.level is not None else []
    return replace(found, title=title, style="curves", y_range=(max(min([*seen, *chance]) - 0.05, 0.0), 1.02))


def _panel(label: str, items: Sequence[Item], groups: Sequence[tuple[int, ItemGroup]], models: _Models) -> Panel:
    """Draw the accuracy of each model in each group with its interval, and the mean accuracy of random choice."""
    series: dict[str, Points] = {}
    intervals = {}
    for each in models:
        found = [(place, Accuracy.of(each.of(own))) for place, own in groups]
        series[each.label] = [(float(place), one.accuracy) for place, one in found]
        intervals[each.label] = [one.interval for _, one in found]
    ticks = [(float(place), f"{own.keys[-1]}\n{len(own.members):,}") for place, own in groups]
    count = sum(len(own.members) for _, own in groups)
    level = "random choice", sum(_chance(items, own) * len(own.members) for _, own in groups) / count
    return Panel(
        f"{label}, and number of items",
        "accuracy",
        series,
        percent="y",
        style="bars",
        ticks=ticks,
        y_range=(0.0, 1.0),
        intervals=intervals,
        level=level,
    )


def item_lines(suite: Suite, models: Sequence[ModelDecisions]) -> list[str]:
    """Make a tab-separated table of all items; tabs and line ends in a text are escaped."""
    properties = ["place", "type", "distance", "frequency", "origin", "domain", "word", "sense"]
    heads = [*properties, "source", "correct", "contrastive"]
    for each in models:
        heads += [f"{each.label} correct", f"{each.label} contrastive", f"{each.label} decision"]
    lines = [heads]
    for number, item in enumerate(suite.items):
        known = [getattr(item, name) for name in properties]
        texts = [suite.sources[item.sentence], item.correct, " ||| ".join(item.contrastive)]
        cells = ["" if value is None else str(value) for value in known] + texts
        for each in models:
            decision = each.decisions[number]
            cells += [f"{decision.correct:.6f}", f"{decision.contrastive:.6f}", decision.name]
        lines.append(cells)
    return ["\t".join(cell.translate(_ESCAPES) for cell in cells) for cells in lines]


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
