"""``sparsenmt report``: one page on trained models, with tables, diagrams and sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    TEXT,
    count_option,
    evaluation_options,
    language_options,
    processor_options,
    scoring_options,
    significance_options,
    speed_options,
    tagger_option,
    tags_option,
)
from sparsenmt.process.progress import notify


@click.command("report")
@click.argument("models", metavar="MODEL_DIR...", type=PATH, nargs=-1, required=True)
@click.option("--source", type=TEXT, required=True, help="Text that the models read, one sentence a line.")
@click.option("--reference", type=TEXT, help="Reference translation of --source, line by line, for all about quality.")
@click.option(
    "--target", type=TEXT, help="Translations that the decoders read for attention.  [default: the models' own]"
)
@tags_option
@click.option("--suite", "suites", multiple=True, type=PATH, help="Contrastive test suite; repeatable.")
@count_option("--sentences", 200, "Number of sentences that are shown one by one, drawn by --seed.")
@scoring_options("the first recipe's; with BLEU, chrF too")
@significance_options
@tagger_option("Part-of-speech tagger of texts without tags.")
@speed_options
@click.option("--depths", is_flag=True, help="Translate the text at every depth of models with several.")
@click.option("--alignments", is_flag=True, help="Align the words of the sentences that are shown.")
@evaluation_options
@language_options
@processor_options
@click.option("--output", "-o", type=PATH, required=True, help="Page to write, .html.")
@click.option("--json", type=PATH, help="Write everything that the page holds as JSON to this file.")
def command(models: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Write one HTML page on trained models: facts, curves of training, scores, sparsity, attention, sentences.

    \b
    sparsenmt report runs/dense runs/l0drop --source test.en --reference test.de -o report.html

    The page needs no other file and no network. Its figures are those of `compare`, `analyze`, `depth-table` and
    `contrast`; every section names its command. What cannot be made keeps its place, with the reason. Tables are of the
    whole text; --sentences limits the sentences that are shown one by one.

    Finished sections are kept until the page is written: an interrupted command resumes.
    """
    from sparsenmt.workflows.evaluation.report.model_report import write_model_report
    from sparsenmt.workflows.evaluation.report.report_request import ReportRequest

    write_model_report(ReportRequest(models, output=output, **options))
    notify(f"written: {', '.join(str(path) for path in (output, options['json']) if path is not None)}")
