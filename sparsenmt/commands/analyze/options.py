"""The options that the reports of ``sparsenmt analyze`` share, and the call of a report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

from sparsenmt.commands.options import (
    PATH,
    PIPE,
    TEXT,
    Decorator,
    batch_tokens_option,
    beam_size_option,
    language_options,
    processor_options,
    report_options,
    stacked,
    tags_option,
)
from sparsenmt.model.sites import SITES

if TYPE_CHECKING:
    from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
    from sparsenmt.report.output_files import ReportFiles

P = ParamSpec("P")

_INPUT = click.option(
    "--input",
    "-i",
    "input",
    type=TEXT,
    help="Source text: one sentence a line, plain or gzipped; or CoNLL-U, whose tags are used.",
)
_LIMIT = click.option("--limit", type=click.IntRange(1), help="Number of lines to read.  [default: all]")
_SENTENCES = click.option("--sentence", "sentences", multiple=True, help="A sentence instead of --input; repeatable.")
_READ_TEXT = (
    click.option("--text", type=TEXT, help="Text that language models read, plain or gzipped, in place of --input."),
    click.option("--tokens", type=click.IntRange(1), help="Tokens of --text to read.  [default: 32,768]"),
)
_TARGET = click.option(
    "--target", type=TEXT, help="Translations that the decoder reads, line by line.  [default: the model's own]"
)
_WORDS = click.option(
    "--words",
    "segmenter",
    type=click.Choice(["spacy", "stanza"]),
    help="Tagger that splits the text into words, for text without spaces between them.  [default: given tags in such "
    "a text, otherwise spaces]",
)
_LANGUAGE = click.option(
    "--language", help="Language of the text, for --words.  [default: the first model's source language]"
)
reference_option = click.option("--reference", "-r", type=PIPE, required=True, help="Reference translation of --input.")


def site_option(default: str, text: str = "Attention site of the heads.") -> Decorator:
    """``--site``, one attention site."""
    return click.option("--site", type=click.Choice(SITES), default=default, show_default=True, help=text)


@dataclass(frozen=True)
class AnalysisArguments:
    """The shared arguments of a command line.

    Args:
        session: arguments of `AnalysisSession`.
    """

    session: Mapping[str, Any]
    files: ReportFiles

    def show(
        self,
        measure: Callable[Concatenate[AnalysisSession, P], AnalysisResult],
        *arguments: P.args,
        **settings: P.kwargs,
    ) -> None:
        """Make the report, write its files and print it."""
        from sparsenmt.analysis.session import AnalysisSession
        from sparsenmt.workflows.evaluation.analyze import analyze

        result = analyze(AnalysisSession(**self.session), measure, self.files, *arguments, **settings)
        click.echo(result.shown, color=True)  # colours are in the text only where they are wanted


def analysis_options(
    *,
    text: bool = True,
    words: bool = False,
    sentences: bool = False,
    language_models: bool = False,
    translates: bool = False,
    target: bool = False,
    files: bool = False,
) -> Callable[[Callable[..., None]], Any]:
    """The options of a report, passed on as one `AnalysisArguments`; the report's own options follow by name.

    Args:
        text: True if the models read a text.
        words: True if the report is about words of the text.
        sentences: True if sentences may stand on the command line.
        language_models: True if language models may read a text in place of sentences.
        translates: True if the models translate.
        target: True if given translations may replace the models' own.
        files: True if files of translations may stand beside models.
    """
    name = "MODEL_DIR|FILE..." if files else "MODEL_DIR..."
    options: list[Decorator] = [click.argument("models", metavar=name, type=PATH, nargs=-1, required=True)]
    options += (_INPUT, tags_option, _LIMIT) if text else ()
    options += (_WORDS, _LANGUAGE) if words else ()
    options += (_SENTENCES,) if sentences else ()
    options += _READ_TEXT if language_models else ()
    options += (beam_size_option,) if translates else ()
    options += (_TARGET,) if target else ()
    options += (batch_tokens_option(), language_options, processor_options) if text else ()
    options.append(report_options())

    def decorate(function: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(files: ReportFiles, **given: Any) -> None:
            session = {name: given.pop(name) for name in _SESSION & given.keys()}
            function(AnalysisArguments(session, files), **given)

        return stacked(*options)(call)

    return decorate


_SESSION = {
    *("models", "input", "tags", "segmenter", "language", "sentences", "limit", "text", "tokens"),
    *("batch_tokens", "beam_size", "target", "threads", "device", "source_language", "target_language"),
}
