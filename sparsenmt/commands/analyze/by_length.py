"""``sparsenmt analyze by-length``: quality by the length of the reference, of models and of translations."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import click

from sparsenmt.commands.analyze.ablate_heads import METRICS
from sparsenmt.commands.analyzing import AnalysisRequest, Text, analysis_options
from sparsenmt.commands.options import metrics_option, resamples_option
from sparsenmt.errors import UserError


@click.command("by-length", short_help="Quality by reference length.")
@click.option("--reference", "-r", type=click.Path(path_type=Path), required=True, help="Reference translation.")
@click.option(
    "--edges",
    default="10,20,30,40,50",
    show_default=True,
    metavar="N,N",
    help="Last length of every bucket but the last, in words of the reference.",
)
@metrics_option(METRICS, ".  [default: bleu]")
@resamples_option
@analysis_options(translates=True, files=True)
def command(job: AnalysisRequest, reference: Path, edges: str, metrics: tuple[str, ...], resamples: int) -> None:
    """Quality by the length of the reference, in words, of models and of files of translations, in any order.

    Models translate --input. Each system is compared with the first by paired bootstrap, in buckets of at least ten
    sentences.
    """
    cuts = _edges(edges)

    from sparsenmt.data.text import read_lines

    references = list(islice(read_lines(reference), job.limit))
    if not references:
        raise UserError("the file has no lines", where=str(reference), hint="Name a file of reference translations.")

    from dataclasses import replace

    from sparsenmt.analysis.lengths import measure, panels, report
    from sparsenmt.report.plots import curves

    wanted = tuple(dict.fromkeys(metrics)) or ("bleu",)
    cells = measure(
        _translations(job, reference, references), references, edges=cuts, metrics=wanted, resamples=resamples
    )
    settings = {"reference": str(reference), "edges": cuts, "resamples": resamples, "beam_size": job.beam_size}
    job.finish(replace(report(cells), settings=settings), draw=lambda: curves(panels(cells)))


def _translations(job: AnalysisRequest, reference: Path, references: list[str]) -> dict[str, list[str]]:
    """Of every system, in the order of the command line; what is wrong with a file shows before a model translates."""
    from sparsenmt.store import open_model

    files = {label: path for label, path in job.labels().items() if job.is_hypotheses(path)}
    given = {label: job.read_beside(path, len(references), str(reference)) for label, path in files.items()}
    text: Text | None = None
    if len(given) < len(job.models):
        text = job.read()
        if len(text.lines) != len(references):
            raise UserError(
                f"it has {len(text.lines):,} lines, but {reference} has {len(references):,}",
                where=job.text_name,
                hint="Line n of one must belong to line n of the other.",
            )
    found = {}
    for label, path in job.labels().items():
        if text is None or label in given:
            found[label] = given[label]
        else:
            found[label] = [each.text for each in job.translate(label, open_model(path), text)]
    return found


def _edges(value: str) -> list[int]:
    """Rising whole numbers.

    Raises:
        UserError: they are not.
    """
    try:
        found = [int(part) for part in value.split(",")]
    except ValueError:
        found = []
    if not found or found[0] < 1 or any(a >= b for a, b in pairwise(found)):
        raise UserError(
            f"'{value}' is not a list of rising lengths",
            where="--edges",
            hint="Write whole numbers with commas between them, as 10,20,30.",
        )
    return found
