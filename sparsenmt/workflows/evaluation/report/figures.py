"""The figures of sparsity methods in a report: those of `sparsenmt analyze`, `depth-table` and `contrast`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsenmt.analysis.alphas import HIGH, LOW, measure_alphas
from sparsenmt.analysis.density import measure_density
from sparsenmt.analysis.filter_rates import measure_filter_rates
from sparsenmt.analysis.head_roles import ROLES, measure_head_roles
from sparsenmt.analysis.pos_rates import measure_pos_rates
from sparsenmt.analysis.position_rates import measure_position_rates
from sparsenmt.analysis.spans import measure_spans
from sparsenmt.assemble.model import depth_plan
from sparsenmt.depth_selector.selector import FOLDER, open_selector
from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.contrast_report import panels as accuracies
from sparsenmt.report.page.document import Diagram, Matrix, ReportSection
from sparsenmt.report.page.table_views import bars, head_matrices, lines, number
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Report, Table, Value, columns
from sparsenmt.workflows.evaluation.contrast import ContrastRequest, contrast
from sparsenmt.workflows.evaluation.depth_table import DepthTableRequest, depth_report
from sparsenmt.workflows.evaluation.report.report_data import NO_REFERENCE, ReportData

_RATE = "sparsity rate"


def _filled(
    section: ReportSection, made: Report, panels: Sequence[Panel] = (), matrices: Sequence[Matrix] = ()
) -> ReportSection:
    """Return a section with the tables and notes of a report."""
    diagrams = (Diagram(made.tables[0].title, tuple(panels)),) if panels else ()
    return replace(section, tables=tuple(made.filed), notes=made.notes, diagrams=diagrams, matrices=tuple(matrices))


def _table(made: Report, name: str) -> Table:
    return next(table for table in made.tables if table.name == name)


def rates_by_tag(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on sparsity by part of speech. UserError if no model has a filter, or there is no tagger."""
    made = measure_pos_rates(data.session, tagger=data.request.tagger).report
    panels = [
        bars(_table(made, "categories"), "category", "sparsity", label=_RATE, count="positions"),
        bars(_table(made, "tags"), "tag", "sparsity", label=_RATE, count="positions"),
    ]
    return _filled(section, made, panels)


def rates_by_position(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on sparsity by position in the word. UserError if no model has a filter."""
    made = measure_position_rates(data.session).report
    return _filled(section, made, [bars(made.tables[0], "place", "sparsity", label=_RATE, count="positions")])


def rates_of_filters(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the rates of each filter. UserError if no model has one."""
    made = measure_filter_rates(data.session).report
    return _filled(section, made, [bars(made.tables[0], "filter", "sparsity", label=_RATE, count="positions")])


def densities(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the density of attention."""
    made = measure_density(data.session).report
    panels = [bars(_table(made, "sites"), "site", "density", label="density")]
    return _filled(section, made, panels, _by_head(made, "density", "density", (0.0, 1.0)))


def _by_head(made: Report, value: str, title: str, ends: tuple[float, float] | None = None) -> list[Matrix]:
    return head_matrices(_table(made, "heads"), value, title=title, ends=ends)


def learned_alphas(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the learned alphas of entmax. UserError if no model learns one."""
    made = measure_alphas(data.session).report
    return _filled(section, made, _courses(made, "alpha", "head"), _by_head(made, "alpha", "alpha", (LOW, HIGH)))


def _courses(made: Report, value: str, name: str) -> list[Panel]:
    """Return a panel for each model, and each site where the course has sites: a line for each ``name``."""
    panels: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
    for row in _table(made, "course").records():
        title = ", ".join(str(row[each]) for each in ("model", "site") if each in row and each != name)
        points = panels.setdefault(title, {}).setdefault(str(row[name]), [])
        points.append((number(row["update"]) or 0.0, number(row[value])))
    return [lines(series, "update", value, title) for title, series in panels.items()]


def learned_spans(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on learned spans. UserError if no model learns one."""
    made = measure_spans(data.session).report
    return _filled(section, made, _courses(made, "span", "model"), _by_head(made, "span", "span in positions"))


def head_roles(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the roles of encoder heads."""
    made = measure_head_roles(data.session).report
    matrices = [each for role in ROLES for each in _by_head(made, role, role, (0.0, 1.0))]
    return _filled(section, made, (), matrices)


def models_of_depths(data: ReportData) -> dict[str, int]:
    """Return the models that are trained for several depths, each with the number of depths."""
    plans = {label: len(depth_plan(recipe.model).pairs()) for label, recipe in data.recipes.items()}
    return {label: count for label, count in plans.items() if count > 1}


def depth_grids(data: ReportData, section: ReportSection, folder: Path) -> ReportSection:
    """Fill the section on quality and time at every depth.

    Args:
        folder: translations are kept below it.

    Raises:
        UserError: no model has several depths, they are not asked for, or there is no reference.
    """
    asked, several = data.request, models_of_depths(data)
    if not several:
        hint = "Name a model whose recipe has `model.depth.name: tied_multi`."
        raise UserError("no model is trained for several depths", hint=hint)
    if asked.reference is None:
        raise NO_REFERENCE
    if not asked.depths:
        times = sum(several.values())
        raise UserError(f"not measured: the text would be translated {times} times", hint="Add --depths.")
    models = tuple(data.labels[label] for label in several)
    made = depth_report(
        DepthTableRequest(
            models,
            (),
            folder,
            asked.source,
            asked.reference,
            scoring=asked.scoring,
            beam_sizes=None if asked.beam_size is None else [asked.beam_size],
            speed_lines=asked.speed_lines if asked.speed else 0,
            rounds=asked.rounds,
            **asked.common,
        )
    )
    return _filled(section, made, (), _depth_matrices(_table(made, "cells")))


def _depth_matrices(cells: Table) -> list[Matrix]:
    """Return a matrix for each system, search and measure: encoder layers down, decoder layers across."""
    places: dict[tuple[Value, Value], dict[tuple[int, int], dict[str, Value]]] = {}
    for row in cells.records():
        assert isinstance(row["encoder_layers"], int) and isinstance(row["decoder_layers"], int)
        depth = row["encoder_layers"], row["decoder_layers"]
        places.setdefault((row["system"], row["search"]), {})[depth] = row
    names, found = cells.names, []
    measures = [*names[names.index("decoder_layers") + 1 : names.index("seconds")], "oracle_share"]
    for (system, search), rows in places.items():
        sides = [sorted({depth[side] for depth in rows}) for side in (0, 1)]
        for measure in measures:
            values = tuple(
                tuple(number(rows[n, m][measure]) if (n, m) in rows else None for m in sides[1]) for n in sides[0]
            )
            if any(each is not None for line in values for each in line):
                kind = cells.columns[names.index(measure)].kind
                title = f"{measure.replace('_', ' ')}: {system}, {search}"
                down, across = (tuple(map(str, side)) for side in sides)
                found.append(Matrix(title, "encoder layers", down, "decoder layers", across, values, kind))
    return found


def chosen_depths(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the depths that selectors choose for the lines. UserError if no model has a selector."""
    rows: list[tuple[Value, ...]] = []
    for model in data.session.opened():
        if (data.labels[model.label] / FOLDER).exists():
            selector = open_selector(data.labels[model.label], model.bundle)
            counts = Counter(selector.choose([line.ids for line in model.sources]))
            rows += [
                (model.label, *depth, counts[depth], counts[depth] / len(model.sources)) for depth in selector.depths
            ]
    if not rows:
        raise UserError("no model has a depth selector", hint="`sparsenmt select-depth` trains one.")
    heads = columns("text model", "count encoder_layers decoder_layers sentences", "share share")
    return replace(section, tables=(Table("chosen", "depths that selectors choose", heads, rows),))


def contrastive_suite(data: ReportData, section: ReportSection, suite: Path) -> ReportSection:
    """Fill the section on a contrastive test suite."""
    asked = data.request
    found = contrast(ContrastRequest(asked.models, suite, **asked.common))
    assert found.shown is not None
    return _filled(section, found.shown, accuracies(found.suite, found.models))


def no_suite(data: ReportData, section: ReportSection) -> ReportSection:
    """Raise UserError: no contrastive suite is given."""
    raise UserError("no suite is given", hint="Name one with --suite.")
