"""Several trained models side by side: quality, sparsity, as a table and a plot."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.analysis.tables import Report
    from sparsenmt.recipe.schema import Corpus

EVALUATION = "evaluation.json"


def compare_runs(runs: Mapping[str, Path], output: Path) -> None:
    """Evaluate models on the dev and test sets of their recipes; write and print one table and one plot.

    Args:
        runs: name -> model directory.
        output: directory of `sweep.csv`, `sweep.json` and `sweep.png`, the last where matplotlib is installed.
    """
    from sparsenmt.analysis.plots import Panel, curves, save
    from sparsenmt.analysis.tables import render, write_report

    report = sweep_report({name: evaluate(directory) for name, directory in runs.items()})
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


def sweep_report(evaluations: Mapping[str, Mapping[str, Any]]) -> Report:
    """One row a model and a set of sentences."""
    from sparsenmt.analysis.tables import Column, Report, Table, Value

    columns = (
        Column("model"),
        Column("set"),
        Column("sentences", "count"),
        Column("metric"),
        Column("quality", "number"),
        Column("against_first", "number"),
        Column("sparsity", "share"),
    )
    rows: list[tuple[Value, ...]] = []
    first: dict[tuple[str, str], float] = {}
    for name, evaluation in evaluations.items():
        for kind, found in evaluation["sets"].items():
            metric, quality = evaluation["metric"], found["quality"]
            difference = quality - first.setdefault((kind, metric), quality)
            rows.append((name, kind, found["sentences"], metric, quality, difference, found["sparsity"]))
    note = "sparsity: share of source pieces, </s> included, whose gate is 0 in evaluation"
    return Report("sweep", (Table("sweep", "quality against sparsity", columns, tuple(rows)),), (note,))


def evaluate(directory: Path) -> dict[str, Any]:
    """Quality and sparsity of a model on the sets of its recipe; kept beside it, and not measured twice.

    The metric is that of the recipe's validation, BLEU if that is the loss; decoding is as the recipe says.
    """
    from sparsenmt import store
    from sparsenmt.files import read_sealed, write_sealed

    path, digest = directory / EVALUATION, store.weights_digest(directory)
    if path.exists():
        try:
            kept = read_sealed(path, hint="It is measured again.")
        except UserError:
            kept = {}
        if kept.get("weights") == digest:
            return kept
    bundle = store.open_model(directory)
    metric = bundle.recipe.training.validation.metric
    metric = "bleu" if metric == "loss" else metric
    sets = {"dev": bundle.recipe.data.dev, "test": bundle.recipe.data.test}
    found = {kind: _measure(bundle, kind, corpus, metric) for kind, corpus in sets.items() if corpus is not None}
    result = {"weights": digest, "metric": metric, "sets": found}
    write_sealed(path, result)
    return result


def _measure(bundle: Any, kind: str, corpus: Corpus, metric: str) -> dict[str, Any]:
    from tqdm import tqdm

    from sparsenmt.data.text import read_parallel
    from sparsenmt.decoding.translate import sparsity_rate, translate_lines
    from sparsenmt.evaluation.metrics import metric_value

    pairs = list(read_parallel([corpus.source, corpus.target]))
    with tqdm(total=len(pairs), desc=kind, unit="sentence", dynamic_ncols=True, leave=False, disable=None) as bar:
        found = list(translate_lines(bundle, [pair[0] for pair in pairs], bundle.recipe.decoding, advance=bar.update))
    outputs, references = [each.text for each in found], [pair[1] for pair in pairs]
    quality = metric_value(metric, outputs, references, bundle.recipe.data.target_language)
    return {"sentences": len(pairs), "quality": quality, "sparsity": sparsity_rate(found)}
