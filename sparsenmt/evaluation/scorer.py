"""The settings of scoring, and the interface between `evaluation.metrics` and the libraries that compute a metric."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError, check_lists
from sparsenmt.metric import METRICS

DEFAULT_TOKENIZER = "13a"
WORD_TOKENIZERS = (DEFAULT_TOKENIZER, "intl", "none")
"""sacrebleu's tokenizers that leave letters together unless a space separates them."""


@dataclass(frozen=True)
class ScoringSettings:
    """The settings of a comparison.

    Args:
        metrics: names of `METRICS`, all that are wanted: scorers of related metrics may share their work.
        lowercase: ignore case in BLEU and chrF (TER and ROUGE always do, as is their default).
        tokenize: sacrebleu's tokenizer, for BLEU.
        language: code of the language; ROUGE's tokenizer and stemmer depend on it.
        documents: document id of every line, for d-BLEU; a document ends where the id changes.
        unspaced: True if the text has no spaces between words: TER compares BLEU's tokens, and ROUGE characters.
        sources: the source lines, for metrics that read them; None: not known.
        sentences: True if the value of single sentences counts: BLEU leaves out orders of n-grams that they lack.
    """

    metrics: Sequence[str]
    lowercase: bool = False
    tokenize: str = DEFAULT_TOKENIZER
    language: str = "en"
    documents: Sequence[Hashable] | None = None
    unspaced: bool = False
    sources: Sequence[str] | None = None
    sentences: bool = False


@dataclass(frozen=True)
class ScoringOptions:
    """The settings that a command line or a sweep asks for, alike for every table of scores; `settings` completes them.

    The text chooses the tokenizer where none is asked for.

    Args:
        metrics: names of metrics, the most important first; empty: the caller's default.
        lowercase: ignore case in BLEU and chrF.
        tokenize: sacrebleu's tokenizer, for BLEU; None: not chosen yet, or 13a.
        language: code of the language, for ROUGE; None: the models' target language, or English.
        unspaced: True if the text has no spaces between words; None: not known yet.
    """

    metrics: tuple[str, ...] = ()
    lowercase: bool = False
    tokenize: str | None = None
    language: str | None = None
    unspaced: bool | None = None

    def __post_init__(self) -> None:
        check_lists(metrics=self.metrics)

    def with_default(self, metrics: Sequence[str]) -> Self:
        """Return these options without repeated metrics, or with ``metrics`` if they name none."""
        return replace(self, metrics=tuple(dict.fromkeys(self.metrics or metrics)))

    def settings(
        self, *, language: str | None = None, documents: Sequence[Hashable] | None = None, only: Sequence[str] = ()
    ) -> ScoringSettings:
        """Complete the settings.

        Args:
            language: the models' target language.
            only: some of the metrics; empty: all.
        """
        tokenize, spoken = self.tokenize or DEFAULT_TOKENIZER, self.language or language or "en"
        metrics, unspaced = tuple(only) or self.metrics, bool(self.unspaced)
        return ScoringSettings(metrics, self.lowercase, tokenize, spoken, documents, unspaced)

    def key(self, metric: str) -> str:
        """Return the name of a metric with the settings that change its value: the metric alone for the defaults."""
        if metric not in METRICS:  # of a language model: nothing changes its value
            return metric
        record, tokenize, parts = METRICS[metric], self.tokenize or DEFAULT_TOKENIZER, [metric]
        parts += ["lowercase"] if self.lowercase else []
        tokenized = record.uses_tokenizer(bool(self.unspaced))
        parts += [f"tokenize:{tokenize}"] if tokenized and tokenize != DEFAULT_TOKENIZER else []
        parts += [f"language:{self.language}"] if record.by_language and self.language is not None else []
        parts += ["unspaced"] if record.by_language and self.unspaced else []
        parts += [f"model:{os.environ.get(record.model_variable, '')}"] if record.model_variable else []
        return " ".join(parts)

    def record(self) -> dict[str, Any]:
        """Return the options for the settings of a report."""
        tokenize = self.tokenize or DEFAULT_TOKENIZER
        common = {"lowercase": self.lowercase, "tokenize": tokenize, "language": self.language}
        return {"metrics": list(self.metrics), **common}

    def language_of(self, languages: Mapping[str, str]) -> str | None:
        """Return the language of the texts of one table.

        Args:
            languages: system -> its target language.

        Raises:
            UserError: they differ, no language is asked for, and a metric depends on it.
        """
        spoken = next((METRICS[name].label for name in self.metrics if METRICS[name].by_language), None)
        if self.language is None and spoken is not None and len(set(languages.values())) > 1:
            named = ", ".join(f"{label} {language}" for label, language in languages.items())
            raise UserError(
                f"{spoken} depends on the language, and the models' recipes name different ones ({named})",
                where="--metric",
                hint="Name the language of the text with --language.",
            )
        return self.language or next(iter(languages.values()), None)


class Scorer(Protocol):
    """Computes one metric. `Metric.scorer` names a function (metric name, `ScoringSettings`) -> `Scorer`.

    A segment is a sentence, or a document for metrics of documents. Values are percentages.
    """

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        """Return value and signature of a corpus.

        Args:
            hypotheses: N segments.
            references: one or more references of N segments each.
        """

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        """Return (N, K) sufficient statistics of the segments."""

    def value(self, sums: NDArray[np.float64]) -> float:
        """Return the value of a sample of segments from its (K,) sum of statistics."""


@runtime_checkable
class PairScorer(Scorer, Protocol):
    """A scorer that compares texts with one another in less time than pair by pair."""

    def pair_statistics(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return (M * M, K) the statistics of each of M texts with each as the only reference, the first one's first.

        They are those of `Scorer.statistics`.
        """


class SentenceMeans:
    """The part of `Scorer` of metrics that are means over sentences.

    Subclasses have `sentence_scores`, from hypotheses and references to (N,) scores, and `signature`.
    """

    signature: str

    def sentence_scores(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        raise NotImplementedError

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        value = self.value(self.statistics(hypotheses, references).sum(0))
        return value, f"nrefs:{len(references)}|{self.signature}"

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        found = self.sentence_scores(hypotheses, references)
        return np.stack([found, np.ones_like(found)], axis=1)

    def value(self, sums: NDArray[np.float64]) -> float:
        return float(100 * sums[0] / sums[1])
