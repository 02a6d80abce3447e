"""Minimum Bayes risk for `decode`: candidates from samples or from a beam, and the choice among them.

The candidates of a line do not depend on its batch: sample i of seed s is the output of ``--method sample`` with the
seed s + i * 2654435761 (modulo 2^32), so that the first one is that of the seed itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.terminology import stands
from sparsenmt.data.text import text_windows
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.decoding.sampling import STRIDE
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.decoding.translate import WINDOW, TranslatedLine, translate_lines
from sparsenmt.errors import UserError
from sparsenmt.evaluation.utilities import Utility
from sparsenmt.metric import METRICS
from sparsenmt.recipe.schema import Decoding
from sparsenmt.strategy import STRATEGIES

_SAMPLES = 16


class MinimumRisk:
    """Translates lines by the candidate of the least Bayes risk.

    Args:
        metric: the utility, one of `METRICS`.
        samples: candidates of a line, where the method is random (None: 16); others have as many as the search is wide.
        n_best: candidates that are wanted.

    Raises:
        UserError: the search has one candidate, or fewer than are wanted, or the metric is no utility.
    """

    def __init__(self, bundle: Bundle, options: Decoding, metric: str, samples: int | None, n_best: int) -> None:
        self._random = STRATEGIES[options.method].random
        if samples is not None and not self._random:
            hint = "Add --method sample, or leave it out: the candidates are those of the beam."
            raise UserError("changes nothing: nothing is drawn", where="--mbr-samples", hint=hint)
        self.candidates = (samples or _SAMPLES) if self._random else strategy_of(options).width
        if self.candidates < 2:
            hint = "Raise --mbr-samples." if self._random else "Raise --beam-size, or take --method sample."
            raise UserError("minimum Bayes risk needs several candidates, there is one", where="--mbr", hint=hint)
        if n_best > self.candidates:
            raise UserError(f"{n_best} are more than there are candidates", where="--n-best", hint="Lower it.")
        variable = METRICS[metric].model_variable
        self.record = [metric, self.candidates, *([os.environ.get(variable)] if variable else [])]
        """The settings that the choice depends on, beside the candidates themselves, as JSON."""
        self._utility = Utility(metric, bundle.recipe.data.target_language)

    def translate(
        self,
        bundle: Bundle,
        lines: Iterable[InputLine],
        options: Decoding,
        *,
        advance: Callable[[int], object] | None = None,
        window: int = WINDOW,
    ) -> Iterator[TranslatedLine]:
        """Translate lines, in order; hypotheses are different texts, the least risk first. As `translate_lines`.

        Long lines are not divided: what is best of a line need not be made of what is best of its parts.
        """
        options = options.undivided
        for batch in text_windows(lines, window, lambda line: len(line.text)):
            seeds = [options.seed + i * STRIDE for i in range(self.candidates if self._random else 1)]
            rounds = [
                list(translate_lines(bundle, batch, options.model_copy(update={"seed": seed % 2**32}), window=window))
                for seed in seeds
            ]
            candidates = [
                _with_most_terms(list(chain.from_iterable(map(_candidates, own))), line, bundle.tokenizers.target)
                for line, own in zip(batch, zip(*rounds, strict=True), strict=True)
            ]
            texts = [[text for text, _ in own] for own in candidates]
            expected = self._utility.expected(texts, [line.text for line in batch])
            for line, own, utilities in zip(rounds[0], candidates, expected, strict=True):
                best: dict[str, Hypothesis] = {}
                for i in self._utility.order(utilities):
                    text, hypothesis = own[i]
                    best.setdefault(text, replace(hypothesis, utility=float(utilities[i])))
                yield replace(line, hypotheses=list(best.values()))
                if advance is not None:
                    advance(1)


def _with_most_terms(
    candidates: list[tuple[str, Hypothesis]], line: InputLine, tokenizer: Tokenizer
) -> list[tuple[str, Hypothesis]]:
    """Return the candidates in which the most of the terms stand that must stand: no other one may be chosen."""
    required = [term for term in line.terms if term.bonus is None]
    counts = [sum(stands(term, text, tokenizer) for term in required) for text, _ in candidates]
    most = max(counts, default=0)
    return [each for each, count in zip(candidates, counts, strict=True) if count == most]


def _candidates(line: TranslatedLine) -> list[tuple[str, Hypothesis]]:
    """Return the texts of all hypotheses of a line, with these."""
    return list(zip(line.best_texts(len(line.hypotheses)), line.hypotheses, strict=True))
