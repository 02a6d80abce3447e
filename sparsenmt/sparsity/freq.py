"""Rule: drop the encoder outputs of the most frequent words (Zhang, Titov and Sennrich 2021, "On Sparsifying Encoder
Outputs in Sequence-to-Sequence Models", section 7, "Freq Pattern").
"""

from __future__ import annotations

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.sparsity.registry import register
from sparsenmt.sparsity.rule_filter import RuleFilter, RuleOptions

_RANK, _COVERAGE = "frequency_rank", "frequency_coverage"
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

    requires = (_RANK, _COVERAGE)

    def __init__(self, options: FreqOptions) -> None:
        super().__init__(options.closed)
        self.top = options.top
        self.covered = round(_WHOLE * options.coverage) if options.coverage is not None else 0

    def dropped(self, memory: Memory) -> Tensor:
        ranks = memory.features[_RANK]  # from 1; </s> has 0
        if self.top is not None:
            return (ranks > 0) & (ranks <= self.top)
        return (ranks > 0) & (memory.features[_COVERAGE] <= self.covered)


@register(
    "memory",
    "freq",
    options=FreqOptions,
    requires=frozenset({_RANK, _COVERAGE}),
    examples=({"top": 2}, {"coverage": 0.0002, "closed": "mask"}),
)
def build(options: FreqOptions, *, dimension: int) -> FreqRule:
    return FreqRule(options)
