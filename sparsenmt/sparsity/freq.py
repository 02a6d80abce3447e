"""Rule: drop the encoder outputs of the most frequent words (Zhang, Titov and Sennrich 2021, "On Sparsifying Encoder
Outputs in Sequence-to-Sequence Models", section 7, "Freq Pattern").
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.sparsity.registry import register
from sparsenmt.sparsity.rule_filter import RuleFilter, RuleOptions

RANK, COVERAGE = "frequency_rank", "frequency_coverage"
_WHOLE = 10_000  # the value of `frequency_coverage` for all words


class FreqOptions(RuleOptions):
    top: PositiveInt | None = Field(None, description="Drop this number of the most frequent words; the paper: 100.")
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Instead of `top`: drop the most frequent words that together are at most this share of the words "
        "of the training source; the paper's 100 are 0.463 of its corpus.",
    )

    @property
    def reads_words(self) -> bool:
        return True

    @model_validator(mode="after")
    def _one_of_two(self) -> FreqOptions:
        if (self.top is None) == (self.coverage is None):
            raise ValueError("give either `top` or `coverage`; `null` removes one")
        return self


class FreqRule(RuleFilter):
    """The paper: "we propose to filter out the source encodings corresponding to top-frequent words with a threshold of
    46.3% (top 100 words)".

    The rule is over words, with all of their tokens: a rule over tokens would drop parts of rare words. Punctuation
    marks are words. ``</s>`` is no word and is kept.

    Published: WMT14 En-De 42.1% at 26.98 BLEU (dense 27.59), CNN/DailyMail 47.8% at 35.67 ROUGE-L (dense 36.88).
    """

    requires = (RANK, COVERAGE)

    def __init__(self, closed: Literal["zero", "mask"], rank: int | None, coverage: float | None) -> None:
        super().__init__(closed)
        self.rank = rank
        self.covered = round(_WHOLE * coverage) if coverage is not None else 0

    def is_frequent(self, memory: Memory) -> Tensor:
        """(B, S) bool: the words up to the rank, or up to the share of all words; and ``</s>``."""
        if self.rank is not None:
            return memory.features[RANK] <= self.rank
        return memory.features[COVERAGE] <= self.covered

    def dropped(self, memory: Memory) -> Tensor:
        return (memory.features[RANK] > 0) & self.is_frequent(memory)  # ranks are from 1; </s> has 0


@register(
    "memory",
    "freq",
    options=FreqOptions,
    requires=frozenset({RANK, COVERAGE}),
    examples=({"top": 2}, {"coverage": 0.0002, "closed": "mask"}),
)
def build(options: FreqOptions, *, dimension: int) -> FreqRule:
    return FreqRule(options.closed, options.top, options.coverage)
