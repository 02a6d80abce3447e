"""The interface between `evaluation.metrics` and the libraries that compute a metric."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ScoringSettings:
    """The settings of a comparison.

    Args:
        metrics: names of `METRICS`, all that are wanted: scorers of related metrics may share their work.
        lowercase: ignore case in BLEU and chrF (TER and ROUGE always do, as is their default).
        tokenize: sacrebleu's tokenizer, for BLEU.
        language: code of the language; ROUGE's tokenizer and stemmer depend on it.
        documents: document id of every line, for d-BLEU; a document ends where the id changes.
    """

    metrics: Sequence[str]
    lowercase: bool = False
    tokenize: str = "13a"
    language: str = "en"
    documents: Sequence[Hashable] | None = None


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
