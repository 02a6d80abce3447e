"""``sparsenmt compare``: trained models side by side: quality, size, attention and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.options import metrics_option
from sparsenmt.errors import UserError
from sparsenmt.evaluation.names import METRICS

if TYPE_CHECKING:
    from sparsenmt.report.tables import Report
    from sparsenmt.workflows.evaluate import TestText

_PATH = click.Path(path_type=Path)


@click.command("compare", short_help="Compare trained models: quality, size, attention, speed.")
@click.argument("models", metavar="MODEL_DIR...", type=_PATH, nargs=-1, required=True)
@click.option("--source", type=_PATH, help="Text to translate.  [default: `data.test` of the models' recipes]")
@click.option("--reference", type=_PATH, help="Its reference translation, line by line.")
@click.option("--documents", type=_PATH, help="Document ids of its lines, for d-BLEU and models of documents.")
@click.option("--tags", type=_PATH, help="Part-of-speech tags of --source, for models that read them.")
@click.option("--set", "kind", type=click.Choice(["test", "dev"]), default="test", help="Which text of the recipes.")
@click.option("--baseline", type=_PATH, help="Model that the others are tested against.  [default: the first]")
@metrics_option(METRICS, ", the most important first.  [default: the first recipe's; with BLEU, chrF too]")
@click.option("--attention/--no-attention", default=True, help="Count attended positions.  [default: do]")
@click.option("--speed/--no-speed", default=True, help="Time decoding, the models taking turns.  [default: do]")
@click.option("--speed-lines", type=click.IntRange(1), default=200, show_default=True, help="Lines that are timed.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns; the fastest counts.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
@click.option("--json", "json_file", type=_PATH, help="Write the report as JSON.")
@click.option("--csv", "csv_file", type=_PATH, help="Write the table as CSV; further tables beside it.")
@click.option("--plot", "plot_file", type=_PATH, help="Draw quality against speed: a name in .png or .svg.")
def command(
    models: tuple[Path, ...],
    source: Path | None,
    reference: Path | None,
    documents: Path | None,
    tags: Path | None,
    kind: str,
    baseline: Path | None,
    metrics: tuple[str, ...],
    attention: bool,
    speed: bool,
    speed_lines: int,
    rounds: int,
    threads: int | None,
    json_file: Path | None,
    csv_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Compare trained models on one text, each with the decoding options of its own recipe.

    \b
    score, chrF ...  the metrics' values; difference and p-value: paired bootstrap
                     against the baseline, 1000 resamples
    sparsity         share of encoder outputs that a filter drops
    attended         positions with weight, a query, over all heads of all sites;
                     density: their share of the positions that may be seen
    training         target tokens/s, median of the training's own log: compare
                     it between runs of one machine only
    decoding         target tokens/s, measured here: models take turns

    What was translated is kept in the model directories (evaluation/) as long as model and text stay the same: another
    model can be added without translating for the others again. Speed is always measured anew.
    """
    from sparsenmt.report.model_labels import check_models, model_labels
    from sparsenmt.report.output_files import check_outputs
    from sparsenmt.workflows.compare_table import Row, report
    from sparsenmt.workflows.evaluate import evaluate
    from sparsenmt.workflows.timing import decoding_speeds

    given = given_text(source, reference, documents, tags)
    files = {"--json": json_file, "--csv": csv_file, "--plot": plot_file}
    everybody = _with_baseline(models, baseline)
    check_models(everybody)
    check_outputs(files, [source, reference, documents, tags])
    if plot_file is not None:
        from sparsenmt.report.plots import check_plot

        check_plot(plot_file)
    if threads is not None:
        from sparsenmt.devices import use_threads

        use_threads(threads)
    labels = model_labels(everybody)
    text, names = given or shared_text(labels, kind), metrics or _default_metrics(everybody[0])
    found = {label: evaluate(directory, text, names, attention=attention) for label, directory in labels.items()}
    against = next(label for label, path in labels.items() if path.resolve() == (baseline or models[0]).resolve())
    speeds = decoding_speeds(labels, text, lines=speed_lines, rounds=rounds) if speed else {}
    rows = [Row(label, labels[label], own, speeds.get(label)) for label, own in found.items()]
    _write(report(rows, against, text, names, attention=attention), files)


def given_text(
    source: Path | None, reference: Path | None, documents: Path | None = None, tags: Path | None = None
) -> TestText | None:
    """The text that options name; None where they name none.

    Raises:
        UserError: only a part of it is named, or a file cannot be read.
    """
    from sparsenmt.data.text import check_readable
    from sparsenmt.workflows.evaluate import TestText

    given = {"--source": source, "--reference": reference, "--documents": documents, "--tags": tags}
    if source is not None and reference is not None:
        for path in given.values():
            if path is not None:
                check_readable(path)
        return TestText(source.name.split(".")[0] or "text", source, reference, tags, documents)
    for option, path in given.items():
        if path is not None:
            missing = "--reference" if source is not None else "--source"
            raise UserError(
                f"needs {missing}", where=option, hint="Give both, or none: then the recipes' text is taken."
            )
    return None


def _with_baseline(models: Sequence[Path], baseline: Path | None) -> list[Path]:
    """All models; a baseline that is not among them comes first."""
    if baseline is None or any(model.resolve() == baseline.resolve() for model in models):
        return list(models)
    return [baseline, *models]


def _default_metrics(model: Path) -> tuple[str, ...]:
    from sparsenmt.store import read_recipe
    from sparsenmt.workflows.evaluate import metric_of

    metric = metric_of(read_recipe(model))
    return (metric, "chrf") if metric == "bleu" else (metric,)


def shared_text(models: Mapping[str, Path], kind: str) -> TestText:
    """The text that all recipes name.

    Raises:
        UserError: a recipe names none, or they name different ones.
    """
    from sparsenmt.store import read_recipe
    from sparsenmt.workflows.evaluate import text_of

    found: dict[str, TestText] = {}
    hint = "Name a text with --source and --reference."
    for label, directory in models.items():
        text = text_of(read_recipe(directory), kind)
        if text is None:
            raise UserError(f"the model's recipe has no `data.{kind}`", where=str(directory), hint=hint)
        found[label] = text
    first = next(iter(found.values()))
    expected = first.digests()
    for label, text in found.items():
        digests = text.digests()
        if any(digests[role] != expected[role] for role in ("source", "reference")):
            raise UserError(
                f"`data.{kind}` of its recipe is another text than that of {next(iter(found))}",
                where=str(models[label]),
                hint=hint,
            )
    documents = next((text.documents for text in found.values() if text.documents is not None), None)
    tags = next((text.tags for text in found.values() if text.tags is not None), None)
    return replace(first, documents=documents, tags=tags)


def _write(found: Report, files: Mapping[str, Path | None]) -> None:
    from sparsenmt.report.tables import render, write_report
    from sparsenmt.workflows.compare_table import panels

    write_report(found, json=files["--json"], csv=files["--csv"])
    click.echo(render(found))
    if files["--plot"] is not None:
        from sparsenmt.report.plots import curves, save

        drawn = panels(found)
        if not drawn:
            raise UserError(
                "there is nothing to draw: no speed was measured", where="--plot", hint="Leave --no-speed out."
            )
        save(curves(drawn, share_y=True), files["--plot"])
