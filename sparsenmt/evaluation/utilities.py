"""Minimum Bayes risk: of several candidates, the one that is most like all of them by a metric.

The expected utility of a candidate is the mean of a metric's sentence scores with every candidate, itself included, as
the reference (Kumar and Byrne 2004; of samples, "Is MAP Decoding All You Need?", Eikema and Aziz 2020). A text that was
drawn several times counts as often.

Shapes: N candidates, M different texts among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import make_scorer
from sparsenmt.evaluation.scorer import Scorer, ScoringSettings
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
        if record.needs_documents or not record.validates:
            what = "compares documents" if record.needs_documents else "is no measure of quality"
            raise UserError(f"{record.label} {what}", where="--mbr", hint="Take chrf, or another metric of sentences.")
        tokenize = fitting_tokenizer(language, [], tell=lambda note: None)
        unspaced = lacks_spaces(language, [])
        settings = ScoringSettings((metric,), False, tokenize, language, unspaced=unspaced, sentences=True)
        self._scorer: Scorer = make_scorer(metric, settings)
        self._sign = -1.0 if record.lower_is_better else 1.0

    def expected(self, candidates: Sequence[str]) -> NDArray[np.float64]:
        """Return (N,) the expected utility of each candidate, in the metric's unit."""
        counts = Counter(candidates)
        texts = list(counts)
        hypotheses = [text for text in texts for _ in texts]
        rows = self._scorer.statistics(hypotheses, [texts * len(texts)])  # (M * M, K)
        values = np.array([self._scorer.value(row) for row in rows]).reshape(len(texts), -1)
        means = values @ np.array(list(counts.values()), dtype=np.float64) / len(candidates)
        found = dict(zip(texts, means.tolist(), strict=True))
        return np.array([found[text] for text in candidates])

    def order(self, expected: NDArray[np.float64]) -> list[int]:
        """Return the numbers of candidates with these expected utilities, the best first; the first of equal ones."""
        order: list[int] = np.argsort(-self._sign * expected, kind="stable").tolist()
        return order
