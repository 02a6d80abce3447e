"""Fixed heads over tokens: Raganato, Scherrer and Tiedemann 2020, section 3.2; see `fixed_heads`.

At a site of eight heads the default is the paper's 7F + 1L; 8F adds ``last``; 1L is no method but ``heads.count: 1``.
At the decoder's self-attention, where the paper uses none, only patterns that look left are possible.
"""

from __future__ import annotations

from sparsenmt.sparsity.fixed_heads import LOOKING_LEFT, FixedOptions, FixedPatternHeads, check_options
from sparsenmt.sparsity.registry import register


@register(
    "heads",
    "fixed_token",
    options=FixedOptions,
    examples=(
        {"patterns": ["current", "previous", "left"]},
        {"patterns": ["next", "right", "end"], "empty": "self"},
        {"patterns": ["left", "start", "last"], "learned": 1},
        {"patterns": ["left", "previous"], "empty": "self"},
    ),
    refuses=(
        "cross",
        ("decoder_self", {"patterns": ["next", "right", "end"]}),
        ("decoder_self", {"patterns": ["left", "start", "last"]}),
    ),
)
def build(options: FixedOptions, *, site: str, heads: int) -> FixedPatternHeads:
    if site == "cross":
        raise ValueError("positions of the target have no previous, next or last position in the source")
    ahead = [pattern for pattern in options.patterns if pattern not in LOOKING_LEFT]
    if site == "decoder_self" and ahead:
        raise ValueError(f"{', '.join(ahead)}: depends on positions that the decoder has not produced yet")
    check_options(options, heads)
    return FixedPatternHeads(options.patterns, or_self=options.empty == "self")
