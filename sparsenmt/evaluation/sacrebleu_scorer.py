"""BLEU, chrF, TER and the length ratio through sacrebleu."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import WORD_TOKENIZERS, ScoringSettings

# Without a handler, Python would print the library's messages as they are.
logging.getLogger("sacrebleu").addHandler(logging.NullHandler())


class SacrebleuScorer:
    """A metric of sacrebleu; see `evaluation.scorer.Scorer`.

    Args:
        value: maps sacrebleu's result to the metric's value.
    """

    def __init__(self, metric: Metric, value: Callable[[Any], float] = lambda result: float(result.score)) -> None:
        self._metric, self._value = metric, value

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        value = self._value(self._metric.corpus_score(hypotheses, references))
        return value, str(self._metric.get_signature())

    # sacrebleu has no public calls for the following; its own significance tests use the same two methods.

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        return np.array(self._metric._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def value(self, sums: NDArray[np.float64]) -> float:
        return self._value(self._metric._compute_score_from_stats(sums.tolist()))


class ChrfScorer(SacrebleuScorer):
    """chrF; see `evaluation.scorer.PairScorer`."""

    def __init__(self, metric: CHRF) -> None:
        super().__init__(metric)
        self._chrf = metric

    def pair_statistics(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Count the n-grams of each text once.

        What two texts have in common is the sum over n-grams of the smaller count, which is the sum over t of the
        n-grams that both have at least t times.
        """
        prepared = [self._chrf._preprocess_segment(text) for text in texts]
        ngrams = self._chrf._extract_reference_info(prepared)["ref_ngrams"]  # per text and order: n-gram -> count
        found = []
        for order in zip(*ngrams, strict=True):
            numbers = {ngram: i for i, ngram in enumerate(dict.fromkeys(chain.from_iterable(order)))}
            counts = np.zeros((len(texts), len(numbers)), dtype=np.float32)  # whole numbers: their sums are exact
            for row, own in zip(counts, order, strict=True):
                row[[numbers[ngram] for ngram in own]] = list(own.values())
            common = np.zeros((len(texts), len(texts)))
            for least in range(1, int(counts.max(initial=0)) + 1):
                has = (counts >= least)[:, counts.max(0) >= least].astype(np.float32)
                common += has @ has.T
            sizes = counts.sum(1)[:, None] + np.zeros(len(texts))  # (M, M) of the hypothesis
            found += [np.where(sizes.T > 0, sizes, 0), sizes.T, common]
        return np.stack(found, axis=-1).reshape(len(texts) ** 2, -1).astype(np.float64)


def bleu(name: str, settings: ScoringSettings) -> SacrebleuScorer:
    """BLEU (Papineni et al. 2002)."""
    return SacrebleuScorer(_bleu(settings))


def length_ratio(name: str, settings: ScoringSettings) -> SacrebleuScorer:
    """Words of the hypotheses, by BLEU's tokenizer, over words of the reference that is nearest in length."""
    return SacrebleuScorer(_bleu(settings), lambda result: float(100 * result.ratio))


def chrf(name: str, settings: ScoringSettings) -> SacrebleuScorer:
    """chrF2 (Popović 2016)."""
    return ChrfScorer(CHRF(lowercase=settings.lowercase))


def ter(name: str, settings: ScoringSettings) -> SacrebleuScorer:
    """The translation edit rate (Snover et al. 2006), without regard to case."""
    if settings.unspaced and settings.tokenize not in WORD_TOKENIZERS:
        return SacrebleuScorer(_TokenTer(tokenizer(settings)))
    return SacrebleuScorer(TER())


class _TokenTer(TER):
    """TER of the tokens of another tokenizer, for text without spaces: sacrebleu's own would compare whole lines.

    Its option for Asian scripts separates Chinese characters only, and leaves Kana and Thai as they are.
    """

    def __init__(self, split: Callable[[str], str]) -> None:
        super().__init__()
        self._split = split
        self.tokenizer_signature = f"{split.signature()}+{self.tokenizer_signature}"  # type: ignore[attr-defined]

    def _preprocess_segment(self, sent: str) -> str:
        return str(super()._preprocess_segment(self._split(sent)))


def tokenizer(settings: ScoringSettings) -> Callable[[str], str]:
    """Return BLEU's tokenizer, which puts spaces between the tokens of a line."""
    found: Callable[[str], str] = _bleu(settings).tokenizer
    return found


def _bleu(settings: ScoringSettings) -> BLEU:
    tokenize, known = settings.tokenize, list(BLEU.TOKENIZERS)
    if tokenize not in known:
        close = difflib.get_close_matches(tokenize, known, n=1)
        hint = f"Did you mean '{close[0]}'? " if close else ""
        raise UserError(
            f"there is no tokenizer '{tokenize}'", where="--tokenize", hint=f"{hint}sacrebleu has: {', '.join(known)}."
        )
    try:
        # `force`: its complaint about tokenized text is `tokenizer_choice`'s, which says it once.
        effective = settings.sentences
        return BLEU(lowercase=settings.lowercase, tokenize=tokenize, force=True, effective_order=effective)
    # Some tokenizers need another package or dictionary, or a download.
    except (ImportError, RuntimeError, OSError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"'{tokenize}' cannot be used ({reason})",
            where="--tokenize",
            hint="Install what it needs, or choose another one, such as 13a or char.",
        ) from None
