"""``sparsenmt analyze pos`` and ``sparsenmt analyze-pos``: which parts of speech are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, Text, analysis_options
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from sparsenmt.data.tagging.tagged_text import TaggedSentence


@click.command("pos", short_help="Sparsity rate by part of speech.")
@click.option(
    "--tagger",
    type=click.Choice(["hanta", "spacy", "stanza"]),
    default="hanta",
    show_default=True,
    help="Tagger of the text, where it has no tags.",
)
@click.option("--language", help="Language of the text, for the tagger.  [default: the first model's source language]")
@analysis_options()
def command(job: AnalysisRequest, tagger: str, language: str | None) -> None:
    """Sparsity rate by part of speech, overall and against the overall rate.

    BPEH and BPEO are the first and the later pieces of split words, whatever their tag; words of one piece are function
    words, content words, punctuation or rest, and have a row for their tag. </s> is a row of its own.

    Tags stand in a CoNLL-U --input (language-specific ones before universal ones) or in --tags, or a tagger makes them.
    Unknown tags count as rest.
    """
    notes = job.notes_on_gates(needed=True)
    text = job.read()

    from dataclasses import replace

    from sparsenmt.analysis.pos import categorise, measure, panels, report
    from sparsenmt.report.plots import curves

    sentences = text.tags or _tag(job, text, tagger, language)
    tagged, warning = categorise(sentences, sentences[0].tagset)
    if warning is not None:
        click.echo(warning, err=True)
    found = []
    for label, bundle in job.opened():
        gated = job.gates(label, bundle, text)
        own = [tagged[each.line.number] for each in gated]
        with progress_bar(f"{label}: align", len(gated)) as advance:
            found.append(measure(label, gated, own, bundle.tokenizers.source, advance))
    made = report(found, tagged)
    origin = {"tags": str(job.tags_file or job.input_file) if text.tags else tagger, "tagset": sentences[0].tagset}
    made = replace(made, notes=(*made.notes, *notes), settings={**made.settings, **origin})
    job.finish(made, draw=lambda: curves(panels(found)))


def _tag(job: AnalysisRequest, text: Text, tagger: str, language: str | None) -> list[TaggedSentence]:
    """Cut the lines into words, and tag them."""
    from sparsenmt.data.tagging.tagged_text import TaggedSentence
    from sparsenmt.data.tagging.taggers import open_tagger
    from sparsenmt.store import read_recipe

    tool = open_tagger(tagger, language or read_recipe(job.models[0]).data.source_language)
    sentences = []
    with progress_bar("tag", len(text.lines)) as advance:
        for line in text.lines:
            words = tool.tokenize(line)
            sentences.append(TaggedSentence(tuple(words), tuple(tool.tag(words)), text=line, tagset=tool.tagset))
            advance(1)
    return sentences
