"""Rule: drop the encoder outputs of rare words (Zhang, Titov and Sennrich 2021, "On Sparsifying Encoder Outputs in
Sequence-to-Sequence Models", section 7, "Inv Freq Pattern").
"""

from __future__ import annotations

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.sparsity.freq import COVERAGE, RANK, FreqRule
from sparsenmt.sparsity.registry import register
from sparsenmt.sparsity.rule_filter import RuleOptions


class InvFreqOptions(RuleOptions):
    above: PositiveInt | None = Field(
        None, description="Drop words whose rank by frequency is above this number; the paper: 452."
    )
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Instead of `above`: keep the most frequent words that together are at most this share of the "
        "words of the training source, and drop the others; the paper keeps 0.6 of its corpus.",
    )

    @property
    def reads_words(self) -> bool:
        return True

    @model_validator(mode="after")
    def _one_of_two(self) -> InvFreqOptions:
        if (self.above is None) == (self.coverage is None):
            raise ValueError("give either `above` or `coverage`; `null` removes one")
        return self


class InvFreqRule(FreqRule):
    """The paper: "an inverse version, Inv Freq Pattern, for comparison, which drops the encodings of most rare words;
    source words whose frequency ranks lower than 452 are removed, covering ~40.0% of the source training data".

    The rule is over words, with all of their tokens. ``</s>`` is no word and is kept; an unknown word is
    dropped.

    Published: WMT14 En-De 44.7% at 26.42 BLEU (dense 27.59), CNN/DailyMail 39.0% at 27.89 ROUGE-L (dense 36.88).
    """

    def dropped(self, memory: Memory) -> Tensor:
        return (memory.features[RANK] > 0) & ~self.is_frequent(memory)


@register(
    "memory",
    "inv_freq",
    options=InvFreqOptions,
    requires=frozenset({RANK, COVERAGE}),
    examples=({"above": 2}, {"coverage": 0.0002, "closed": "mask"}),
)
def build(options: InvFreqOptions, *, dimension: int) -> InvFreqRule:
    return InvFreqRule(options.closed, options.above, options.coverage)
