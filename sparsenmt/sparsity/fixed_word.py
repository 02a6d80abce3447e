"""Fixed heads over words: Raganato, Scherrer and Tiedemann 2020, section 3.2; see `fixed_heads`.

The paper "assigns the same attention values to all parts of the same word" and does not say if they add up to the
weight of the word (``split``: a row sums to 1) or each equal it (``copy``). ``</s>`` is a word.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparsenmt.sparsity.fixed_heads import WORD, FixedOptions, FixedPatternHeads, check_options
from sparsenmt.sparsity.registry import register


class FixedWordOptions(FixedOptions):
    mass: Literal["split", "copy"] = Field(
        "split", description="`split`: the tokens of a word share its weight equally; `copy`: each has all of it."
    )

    @property
    def reads_words(self) -> bool:
        return True


@register(
    "heads",
    "fixed_word",
    options=FixedWordOptions,
    requires=frozenset({WORD}),
    examples=(
        {"patterns": ["previous", "left", "right"]},
        {"patterns": ["current", "next", "end"], "mass": "copy", "empty": "self"},
        {"patterns": ["start", "last"]},
    ),
    refuses=("cross", "decoder_self"),
)
def build(options: FixedWordOptions, *, site: str, heads: int) -> FixedPatternHeads:
    if site != "encoder_self":
        raise ValueError("only the words of the source are known: use it at encoder_self")
    check_options(options, heads)
    return FixedPatternHeads(options.patterns, or_self=options.empty == "self", mass=options.mass)
