"""The table of `sparsenmt finetune-l0`: trained models side by side, quality against sparsity, and a plot."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sparsenmt.report.tables import Report, Value
    from sparsenmt.workflows.evaluate import Evaluation


def compare_runs(runs: Mapping[str, Path], output: Path) -> None:
    """Evaluate models on the dev and test sets of their recipes; write and print one table and one plot.

    Args:
        runs: name -> model directory.
        output: directory of `sweep.csv`, `sweep.json` and `sweep.png`, the last where matplotlib is installed.
    """
    from sparsenmt.report.plots import Panel, curves, save
    from sparsenmt.report.tables import render, write_report

    report = sweep_report(runs)
    paths = write_report(report, json=output / "sweep.json", csv=output / "sweep.csv")
    if importlib.util.find_spec("matplotlib") is not None:
        panels = []
        for table_set in dict.fromkeys(report.tables[0].column("set")):
            rows = [row for row in report.tables[0].records() if row["set"] == table_set]
            points = sorted((float(row["sparsity"] or 0), float(row["quality"])) for row in rows)  # type: ignore[arg-type]
            label = f"{rows[0]['metric']}, {table_set}"
            panels.append(Panel("sparsity rate", label, {"models": points}, percent="x"))
        paths.append(output / "sweep.png")
        save(curves(panels), paths[-1])
    click.echo(render(report))
    click.echo("written: " + ", ".join(map(str, paths)), err=True)


def sweep_report(runs: Mapping[str, Path]) -> Report:
    """One row a model and a set of sentences."""
    from sparsenmt import store
    from sparsenmt.report.tables import Column, Report, Table
    from sparsenmt.workflows.evaluate import evaluate, metric_of
    from sparsenmt.workflows.test_sets import recipe_text

    columns = (
        Column("model"),
        Column("set"),
        Column("sentences", "count"),
        Column("metric"),
        Column("quality", "number"),
        Column("against_first", "number"),
        Column("p_value", "number"),
        Column("sparsity", "share"),
    )
    rows: list[tuple[Value, ...]] = []
    first: dict[tuple[str, str], Evaluation] = {}
    for name, directory in runs.items():
        recipe = store.read_recipe(directory)
        metric = metric_of(recipe)
        for kind in ("dev", "test"):
            text = recipe_text(recipe, kind)
            if text is None:
                continue
            found = evaluate(directory, text, [metric], attention=False)
            baseline = first.setdefault((kind, metric), found)
            tested: Mapping[str, float] = {}
            if baseline is not found and baseline.key["text"] == found.key["text"]:
                tested = found.against(baseline, metric, text, recipe.data.target_language)
            difference = found.scores[metric] - baseline.scores[metric]
            measured = (found.scores[metric], difference, tested.get("p_value"), found.sparsity)
            rows.append((name, kind, found.sentences, metric, *measured))
    notes = (
        "p value: against the first model, paired bootstrap, 1000 resamples",
        "sparsity: share of source pieces, </s> included, whose gate is 0 in evaluation",
    )
    return Report("sweep", (Table("sweep", "quality against sparsity", columns, tuple(rows)),), notes)
