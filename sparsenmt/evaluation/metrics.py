"""Corpus metrics: BLEU, chrF and TER through sacrebleu, ROUGE through rouge-score, each with its signature."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.evaluation import rouge
from sparsenmt.evaluation.documents import by_document
from sparsenmt.evaluation.names import LABELS, LENGTH, METRICS, OF_DOCUMENTS, ROUGE

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


_QUADRATIC = ("ter", "rougeL", "rougeLsum")  # compare every word of a line with every word of its reference
_MOST_PAIRS = 10_000_000
"""Pairs of words that they compare in a line: beyond it they take minutes and gigabytes, and soon all the memory."""


@dataclass(frozen=True)
class Score:
    """A metric's value for a corpus, in percent, with the signature that defines it.

    Lower is better for TER; 100 is best for the length, which is said in words of BLEU's tokenizer, over those of the
    reference that is nearest in length.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Statistics:
    """What a metric needs to know of each sentence (d-BLEU: document); sums give the value of any sample of them.

    ``values`` is (N, K); ``score`` maps a sum over rows, (K,), to the metric's value.
    """

    name: str
    values: NDArray[np.float64]
    score: Callable[[NDArray[np.float64]], float]


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
    language: str = "en",
    documents: Sequence[Hashable] | None = None,
) -> list[Score]:
    """The metrics' values, in the order asked for.

    Args:
        hypotheses: N detokenised lines.
        references: one or more references of N lines each.
        metrics: names out of `METRICS`.
        lowercase: ignore case in BLEU and chrF (TER and ROUGE always do, as is their default).
        tokenize: sacrebleu's tokenizer, for BLEU.
        language: code of the language; ROUGE's tokenizer and stemmer depend on it.
        documents: of every line the id of its document, for d-BLEU; where it changes, a document ends.

    Raises:
        UserError: an unknown metric or tokenizer, no lines, unequal numbers of lines, or d-BLEU without documents.
    """
    _check(hypotheses, references, metrics, documents)
    rouges = [name for name in metrics if name in ROUGE]
    by_sentence = rouge.sentence_scores(hypotheses, references, metrics=rouges, language=language) if rouges else {}
    scores = []
    for name in metrics:
        if name in by_sentence:
            signature = rouge.signature(references=len(references), language=language)
            scores.append(Score(name, 100 * float(by_sentence[name].mean()), signature))
        else:
            metric = _sacrebleu(name, lowercase=lowercase, tokenize=tokenize)
            ours, theirs = _put_together(name, hypotheses, references, documents)
            value = _value(name, metric.corpus_score(ours, theirs))
            of_documents = f"docs:{len(ours)}|" if name in OF_DOCUMENTS else ""
            scores.append(Score(name, value, f"{of_documents}{metric.get_signature()}"))
    return scores


def metric_value(
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    documents: Sequence[Hashable] | None = None,
) -> float:
    """One metric's value against one reference, with the default settings: what validation looks at."""
    return corpus_scores(hypotheses, [references], metrics=[name], language=language, documents=documents)[0].value


def statistics(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
    language: str = "en",
    documents: Sequence[Hashable] | None = None,
) -> list[Statistics]:
    """Sufficient statistics of every sentence, for resampling. Arguments and errors as for `corpus_scores`."""
    _check(hypotheses, references, metrics, documents)
    rouges = [name for name in metrics if name in ROUGE]
    by_sentence = rouge.sentence_scores(hypotheses, references, metrics=rouges, language=language) if rouges else {}
    found = []
    for name in metrics:
        if name in by_sentence:
            f1 = by_sentence[name]
            found.append(Statistics(name, np.stack([f1, np.ones_like(f1)], axis=1), _mean_f1))
        else:
            metric = _sacrebleu(name, lowercase=lowercase, tokenize=tokenize)
            # sacrebleu has no public call for this; its own significance tests use the same two methods.
            ours, theirs = _put_together(name, hypotheses, references, documents)
            values = np.array(metric._extract_corpus_statistics(ours, theirs), dtype=np.float64)
            found.append(Statistics(name, values, _score_of(name, metric)))
    return found


def _put_together(
    name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], documents: Sequence[Hashable] | None
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """What a metric compares: lines, or documents."""
    if documents is None or name not in OF_DOCUMENTS:
        return hypotheses, references
    return by_document(hypotheses, documents), [by_document(reference, documents) for reference in references]


def _mean_f1(sums: NDArray[np.float64]) -> float:
    return float(100 * sums[0] / sums[1])


def _score_of(name: str, metric: Metric) -> Callable[[NDArray[np.float64]], float]:
    return lambda sums: _value(name, metric._compute_score_from_stats(sums.tolist()))


def _value(name: str, found: Any) -> float:
    """What is wanted of sacrebleu's result: the length is a by-product of BLEU."""
    return float(100 * found.ratio if name == LENGTH else found.score)


def _sacrebleu(name: str, *, lowercase: bool, tokenize: str) -> Metric:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "chrf":
        return CHRF(lowercase=lowercase)
    if name == "ter":
        return TER()
    known = list(BLEU.TOKENIZERS)
    if tokenize not in known:
        close = difflib.get_close_matches(tokenize, known, n=1)
        hint = f"Did you mean '{close[0]}'? " if close else ""
        raise UserError(
            f"there is no tokenizer '{tokenize}'", where="--tokenize", hint=f"{hint}sacrebleu has: {', '.join(known)}."
        )
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize)
    except (ImportError, RuntimeError, OSError) as error:  # tokenizers that need another package, or a download
        reason = " ".join(str(error).split())
        raise UserError(
            f"'{tokenize}' cannot be used ({reason})",
            where="--tokenize",
            hint="Install what it needs, or choose another one, such as 13a.",
        ) from None


def _check(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    documents: Sequence[Hashable] | None,
) -> None:
    for name in metrics:
        if name not in METRICS:
            close = difflib.get_close_matches(name, METRICS, n=1)
            hint = f"Did you mean '{close[0]}'? " if close else ""
            raise UserError(
                f"there is no metric '{name}'", where="--metric", hint=f"{hint}There are: {', '.join(METRICS)}."
            )
    for name in OF_DOCUMENTS:
        if name in metrics and documents is None:
            raise UserError(
                f"{LABELS[name]} needs to know where documents end",
                where="--metric",
                hint="Name a file with the document id of every line with --documents.",
            )
    if not references:
        raise UserError("scoring needs at least one reference", where="--reference", hint="Name a file of references.")
    if not hypotheses:
        raise UserError("there are no lines to score", where="the translations", hint="Name the file that was meant.")
    for number, reference in enumerate(references, start=1):
        if len(reference) != len(hypotheses):
            raise UserError(
                f"the number of its lines, {len(reference):,}, is not that of the hypotheses, {len(hypotheses):,}",
                where=f"reference {number}",
                hint="Line n of one must belong to line n of the other.",
            )
    if documents is not None and len(documents) != len(hypotheses):
        raise UserError(
            f"the number of ids, {len(documents):,}, is not that of the lines, {len(hypotheses):,}",
            where="the documents",
            hint="Id n must belong to line n of the text.",
        )
    for name in _QUADRATIC:
        if name in metrics:
            _check_lengths(hypotheses, references, name)


def _check_lengths(hypotheses: Sequence[str], references: Sequence[Sequence[str]], name: str) -> None:
    for number, texts in enumerate(zip(hypotheses, *references, strict=True), start=1):
        if len(texts[0]) * max(map(len, texts[1:])) <= _MOST_PAIRS:  # no text has more words than characters
            continue
        count, *others = (max(len(text.split()), len(rouge.words(text))) for text in texts)
        if count * max(others) > _MOST_PAIRS:
            raise UserError(
                f"too long for {LABELS[name]}: {count:,} words against {max(others):,}",
                where=f"line {number:,}",
                hint="Split the line, or choose other metrics with --metric, such as bleu and chrf.",
            )
