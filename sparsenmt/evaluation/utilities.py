"""Minimum Bayes risk: of several candidates, the one that is most like all of them by a metric.

The expected utility of a candidate is the mean of a metric's sentence scores with every candidate, itself included, as
the reference (Kumar and Byrne 2004; of samples, "Is MAP Decoding All You Need?", Eikema and Aziz 2020). A text that was
drawn several times counts as often.

Shapes: N candidates, M different texts among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import make_scorer
from sparsenmt.evaluation.scorer import PairScorer, Scorer, ScoringSettings
from sparsenmt.evaluation.tokenizer_choice import fitting_tokenizer, lacks_spaces
from sparsenmt.metric import METRICS


class Utility:
    """A metric of sentences as a utility.

    Args:
        metric: one of `METRICS` that compares sentences.
        language: code of the candidates' language; words are found as `score` finds them in it.

    Raises:
        UserError: the metric compares documents, or says nothing about quality.
    """

    def __init__(self, metric: str, language: str) -> None:
        record = METRICS[metric]
        if not record.is_utility:
            what = "compares documents" if record.needs_documents else "is no measure of quality"
            raise UserError(f"{record.label} {what}", where="--mbr", hint="Take chrf, or another metric of sentences.")
        tokenize, unspaced = fitting_tokenizer(language, [], tell=lambda note: None), lacks_spaces(language, [])
        self._metric, self._sign = metric, -1.0 if record.lower_is_better else 1.0
        self._settings = ScoringSettings((metric,), False, tokenize, language, unspaced=unspaced, sentences=True)
        self._scorer = make_scorer(metric, self._settings)  # a missing package or model shows at once

    def expected(self, lines: Sequence[Sequence[str]], sources: Sequence[str]) -> list[NDArray[np.float64]]:
        """Return (N,) the expected utility of each candidate of every line, in the metric's unit.

        All lines are compared at once, as some metrics are only then fast.

        Args:
            sources: the source of each line, for metrics that read it.
        """
        counts = [Counter(candidates) for candidates in lines]
        values, first, result = self._values(counts, sources), 0, []
        for own, candidates in zip(counts, lines, strict=True):
            square = values[first : first + len(own) ** 2].reshape(len(own), -1)
            means = square @ np.array(list(own.values()), dtype=np.float64) / len(candidates)
            found = dict(zip(own, means.tolist(), strict=True))
            result.append(np.array([found[text] for text in candidates]))
            first += len(own) ** 2
        return result

    def _values(self, counts: Sequence[Counter[str]], sources: Sequence[str]) -> NDArray[np.float64]:
        """Return the metric of each text with each of its line as the reference: M * M of each line, in order."""
        scorer: Scorer = self._scorer
        if isinstance(scorer, PairScorer):
            return np.array([scorer.value(row) for own in counts for row in scorer.pair_statistics([*own])])
        hypotheses = [text for own in counts for text in own for _ in own]
        references = [text for own in counts for _ in own for text in own]
        if METRICS[self._metric].reads_source:
            beside = [source for source, own in zip(sources, counts, strict=True) for _ in range(len(own) ** 2)]
            scorer = make_scorer(self._metric, replace(self._settings, sources=beside))
        return np.array([scorer.value(row) for row in scorer.statistics(hypotheses, [references])])

    def order(self, expected: NDArray[np.float64]) -> list[int]:
        """Return the numbers of candidates with these expected utilities, the best first; the first of equal ones."""
        order: list[int] = np.argsort(-self._sign * expected, kind="stable").tolist()
        return order
