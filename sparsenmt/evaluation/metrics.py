"""Values of the metrics of `sparsenmt.metric` for a corpus, each with its signature, and statistics for resampling."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.evaluation.rouge import words
from sparsenmt.evaluation.scorer import Scorer, ScoringOptions, ScoringSettings
from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.plugins.record import explain_missing

_NAME_DOCUMENTS = "Name a file with the document id of every line with --documents."
_MOST_PAIRS = 10_000_000
"""The most pairs of words that a quadratic metric compares in a line; more take minutes and gigabytes of memory."""


@dataclass(frozen=True)
class Score:
    """A metric's value for a corpus, in percent, with the signature that defines it."""

    name: str
    value: float
    signature: str


def scores_in_words(scores: Iterable[Score]) -> str:
    """Return the values of scores in a line, without their signatures."""
    return ", ".join(f"{METRICS[score.name].label} {score.value:.2f}" for score in scores)


@dataclass(frozen=True)
class Statistics:
    """The sufficient statistics of a metric for every segment.

    Args:
        values: (N, K).
        score: maps a sum over rows, (K,), to the metric's value.
    """

    name: str
    values: NDArray[np.float64]
    score: Callable[[NDArray[np.float64]], float]


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], settings: ScoringSettings
) -> list[Score]:
    """Score a corpus by several metrics, in the order given.

    Args:
        hypotheses: N detokenised lines.
        references: one or more references of N lines each.

    Raises:
        UserError: an unknown metric or tokenizer, no lines, unequal numbers of lines, or d-BLEU without documents.
    """
    _check(hypotheses, references, settings)
    scores = []
    for name in settings.metrics:
        ours, theirs = _segments(name, hypotheses, references, settings)
        value, signature = _checked_score(name, make_scorer(name, settings).corpus(ours, theirs))
        documents = f"docs:{len(ours)}|" if METRICS[name].needs_documents else ""
        scores.append(Score(name, value, f"{documents}{signature}"))
    return scores


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], settings: ScoringSettings
) -> list[Statistics]:
    """Return the statistics of every segment, for resampling. Arguments and errors are those of `corpus_scores`."""
    _check(hypotheses, references, settings)
    found = []
    for name in settings.metrics:
        scorer = make_scorer(name, settings)
        values = scorer.statistics(*_segments(name, hypotheses, references, settings))
        found.append(Statistics(name, values, scorer.value))
    return found


def make_scorer(name: str, settings: ScoringSettings) -> Scorer:
    """Import and make the scorer of a metric."""
    make = METRICS[name].scorer
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        place = module if "." in module else f"sparsenmt.evaluation.{module}"
        make = getattr(importlib.import_module(place), attribute)
    made = make(name, settings)
    for method in ("corpus", "statistics", "value"):
        if not callable(getattr(made, method, None)):
            raise _wrong_scorer(name, f"makes {type(made).__name__}, which has no method '{method}'")
    return cast(Scorer, made)


def _checked_score(name: str, found: tuple[float, str]) -> tuple[float, str]:
    """Return value and signature of a corpus; UserError if a plugin gives something else."""
    if (origin := METRICS.origin(name)) is None or not origin.outside:
        return found
    match found:
        case (float() | int() as value, str() as signature) if np.isfinite(value):
            return float(value), signature
    raise _wrong_scorer(name, f"returns {found!r:.80} of a corpus, in place of a finite number and a text")


def _wrong_scorer(name: str, what: str) -> UserError:
    origin = METRICS.origin(name)
    return UserError(
        f"{METRICS.title(name)} {what}",
        where=None if origin is None else origin.file,
        hint="Correct the metric; `sparsenmt.evaluation.scorer.Scorer` says what it takes and returns.",
    )


def _segments(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], settings: ScoringSettings
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the lines that a metric compares, or the documents."""
    documents = settings.documents
    if documents is None or not METRICS[name].needs_documents:
        return hypotheses, references
    return by_document(hypotheses, documents), [by_document(reference, documents) for reference in references]


def by_document(lines: Iterable[str], documents: Sequence[Hashable]) -> list[str]:
    """Concatenate the lines of each document, with spaces between them, for d-BLEU (Liu et al. 2020).

    Its n-grams cross sentence boundaries. Therefore only the document boundaries of an output must agree with those of
    the references, not its lines.
    """
    beside = zip(documents, lines, strict=True)
    return [" ".join(line for _, line in group if line) for _, group in groupby(beside, key=lambda pair: pair[0])]


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]], settings: ScoringSettings) -> None:
    metrics, documents = settings.metrics, settings.documents
    _check_metrics(metrics, documents=documents is not None, sources=settings.sources is not None)
    if not references:
        raise UserError("scoring needs at least one reference", where="--reference", hint="Name a file of references.")
    if not hypotheses:
        raise UserError("there are no lines to score", where="the translations", hint="Name the file that was meant.")
    for number, reference in enumerate(references, start=1):
        check_lines(reference, hypotheses, f"reference {number}")
    if documents is not None and len(documents) != len(hypotheses):
        raise UserError(
            f"the number of ids, {len(documents):,}, is not that of the lines, {len(hypotheses):,}",
            where="the documents",
            hint="Id n must belong to line n of the text.",
        )
    for metric in (METRICS[name] for name in metrics):
        if metric.quadratic:
            _check_lengths(hypotheses, references, metric.label, unspaced=settings.unspaced)


def check_tokenizer(name: str, where: str = "--tokenize") -> None:
    """Check that a tokenizer of sacrebleu's can be used.

    Raises:
        UserError: about ``where``: there is none of this name, or a package that it needs is not installed.
    """
    try:
        make_scorer("bleu", ScoringSettings(("bleu",), tokenize=name))
    except UserError as error:
        error.where = where
        raise


def check_use_of_tokenizer(options: ScoringOptions) -> None:
    """Refuse a tokenizer that changes nothing; that of TER is known when the text is.

    Raises:
        UserError: as said.
    """
    used = [METRICS[name] for name in options.metrics]
    if options.tokenize is None or any(metric.uses_tokenizer(options.unspaced) for metric in used):
        return
    labels = ", ".join(metric.label for metric in used)
    spaced = " of a text with spaces between words" if any(metric.spaced for metric in used) else ""
    users = ", ".join(name for name, metric in METRICS.items() if metric.tokenized)
    raise UserError(
        f"changes nothing: {labels}{spaced} uses no tokenizer of sacrebleu's",
        where="--tokenize",
        hint=f"Leave it out, or add a metric that uses one: {users}.",
    )


def check_scoring(
    options: ScoringOptions,
    *,
    documents: bool,
    reads_documents: bool = True,
    tokenizes: bool = False,
    sources: bool = False,
    where: str = "--metric",
    hint: str = _NAME_DOCUMENTS,
) -> None:
    """Refuse settings that cannot be used, or that change nothing, before anything is translated.

    Args:
        documents: True if the documents of the text are known.
        reads_documents: True if a model may read documents, so that they count without a metric of documents.
        tokenizes: True if the tokenizer serves something else, too.
        sources: True if the source is known.
        where: the place in the message about missing documents; ``hint``: how to name them.

    Raises:
        UserError: as said.
    """
    _check_metrics(options.metrics, documents=documents, sources=sources, where=where, hint=hint)
    if documents and not reads_documents and not any(METRICS[name].needs_documents for name in options.metrics):
        raise UserError(
            "none of these metrics uses documents", where="--documents", hint="Add --metric dbleu, or leave it out."
        )
    if not tokenizes:
        check_use_of_tokenizer(options)
    for name in options.metrics:
        make_scorer(name, options.settings())  # a scorer makes its tokenizer, which may be unknown or not installed


def _check_metrics(
    metrics: Sequence[str],
    *,
    documents: bool,
    sources: bool = False,
    where: str = "--metric",
    hint: str = _NAME_DOCUMENTS,
) -> None:
    for name in metrics:
        if name in TEXT_METRICS:
            raise UserError(
                f"{name} is a metric of language models: these are translations",
                where="--metric",
                hint=f"Choose from {', '.join(METRICS)}.",
            )
        if name not in METRICS:
            close = difflib.get_close_matches(name, METRICS, n=1)
            meant = f"Did you mean '{close[0]}'? " if close else ""
            missing = explain_missing("metric", name)
            raise UserError(
                f"there is no metric '{name}'",
                where="--metric",
                hint=f"{missing}{meant}There are: {', '.join(METRICS)}.",
            )
        if METRICS[name].needs_documents and not documents:
            raise UserError(f"{METRICS[name].label} needs to know where documents end", where=where, hint=hint)
        if METRICS[name].reads_source and not sources:
            what = f"{METRICS[name].label} needs the source, which only `score` gives it, with --source"
            raise UserError(what, where="--metric", hint="Use `sparsenmt score`, or another metric.")


def check_lines(lines: Sequence[str], hypotheses: Sequence[str], where: str) -> None:
    """Raise a UserError about ``where`` unless there are as many lines as hypotheses."""
    if len(lines) != len(hypotheses):
        raise UserError(
            f"the number of its lines, {len(lines):,}, is not that of the hypotheses, {len(hypotheses):,}",
            where=where,
            hint="Line n of one must belong to line n of the other.",
        )


def _check_lengths(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], label: str, *, unspaced: bool
) -> None:
    for number, texts in enumerate(zip(hypotheses, *references, strict=True), start=1):
        if len(texts[0]) * max(map(len, texts[1:])) <= _MOST_PAIRS:  # no text has more words than characters
            continue
        count, *others = (max(len(text.split()), len(words(text, unspaced=unspaced))) for text in texts)
        if count * max(others) > _MOST_PAIRS:
            raise UserError(
                f"too long for {label}: {count:,} words against {max(others):,}",
                where=f"line {number:,}",
                hint="Split the line, or choose other metrics with --metric, such as bleu and chrf.",
            )
