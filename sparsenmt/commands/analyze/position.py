"""``sparsenmt analyze position``: which places in a word are dropped."""

from __future__ import annotations

from typing import Literal

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.errors import UserError


@click.command("position", short_help="Sparsity rate by position in the word.")
@click.option(
    "--unit",
    type=click.Choice(["characters", "pieces"]),
    help="Relative position of characters, or number of pieces.  [default: as the model's tokenizer]",
)
@analysis_options()
def command(job: AnalysisRequest, unit: Literal["characters", "pieces"] | None) -> None:
    """Sparsity rate by position in the word.

    For character models by the relative position of a character: 0 is the first of its word, 1 the last. For others by
    the number of the piece in words of several pieces. Punctuation at the ends of a word is not part of it; it, the
    space symbol, words of one symbol and </s> are rows of their own.

    share of dropped: of all drops inside words, those in this place.
    """
    notes = job.notes_on_gates(needed=True)
    text = job.read()

    from dataclasses import replace

    from sparsenmt.analysis.position import measure, panels, report
    from sparsenmt.report.plots import curves

    found = []
    for label, bundle in job.opened():
        tokenizer = bundle.tokenizers.source
        if not tokenizer.keeps_word_boundaries:
            raise UserError(
                "its tokenizer does not show where words begin",
                where=str(job.labels()[label]),
                hint="Leave the model out.",
            )
        own = unit or ("characters" if bundle.recipe.data.tokenizer.kind == "char" else "pieces")
        found.append(measure(label, job.gates(label, bundle, text), tokenizer, own))
    job.finish(replace(report(found), notes=tuple(notes)), draw=lambda: curves(panels(found)))
