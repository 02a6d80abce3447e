"""Tied-multi Transformers: one training run for models of N x M depths ("Balancing Cost and Benefit with Tied-Multi
Transformers", Dabre, Rubino and Fujita 2020).

The loss is the mean of the N x M cross-entropies of every decoder depth m that attends to every encoder depth n
(Algorithm 1; the paper leaves the aggregation open, here it is the mean, or a weighted one). Every exit equals the
output of a model cut to that depth: a pre-norm stack applies its last normalisation at each. Training runs the encoder
once, the decoder once for each encoder exit, the projection once for each pair (`training.gradients`). A side in
`sample` trains only a few exits in each update, drawn at random.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.sparsity.recurrent import Sides, blocks
from sparsenmt.sparsity.registry import Options, register


class TiedMultiOptions(Options):
    weights: list[list[float]] | None = Field(
        None,
        description="Weights of the losses at every pair of depths: a row for each encoder depth, in it a number for "
        "each decoder depth; only their ratios matter. A row or column of zeros is a depth that is not trained. "
        "`null`: equal weights.",
    )
    sample: dict[Literal["encoder", "decoder"], int] = Field(
        {},
        description="Number of depths of a side that are trained in each update, drawn at random: `{encoder: 1}` is "
        "the cheapest, as the decoder runs once. A side that is not named trains all of its depths.",
    )
    recurrent: Sides = Field(
        "none", description="Side whose layers are one layer, applied several times, as in `recurrent`."
    )

    @field_validator("weights")
    @classmethod
    def _numbers(cls, rows: list[list[float]] | None) -> list[list[float]] | None:
        if rows is not None and not any(weight > 0 for row in rows for weight in row):
            raise ValueError("some weight must be above 0")
        return rows


@register(
    "depth",
    "tied_multi",
    options=TiedMultiOptions,
    examples=({}, {"recurrent": "both"}, {"sample": {"encoder": 1, "decoder": 1}}),
)
def build(options: TiedMultiOptions, *, encoder_layers: int, decoder_layers: int) -> DepthPlan:
    rows = options.weights or [[1.0] * decoder_layers] * encoder_layers
    if len(rows) != encoder_layers or any(len(row) != decoder_layers for row in rows):
        raise ValueError(f"`weights` must have {encoder_layers} rows of {decoder_layers} numbers, one for each depth")
    if any(weight < 0 for row in rows for weight in row):
        raise ValueError("`weights` may not be negative")
    encoder = [n for n in range(encoder_layers) if any(rows[n])]
    decoder = [m for m in range(decoder_layers) if any(row[m] for row in rows)]
    return DepthPlan(
        encoder=blocks(encoder_layers, "encoder", options.recurrent),
        decoder=blocks(decoder_layers, "decoder", options.recurrent),
        encoder_exits=tuple(n + 1 for n in encoder),
        decoder_exits=tuple(m + 1 for m in decoder),
        weights=tuple(tuple(rows[n][m] for m in decoder) for n in encoder),
        drawn=(options.sample.get("encoder"), options.sample.get("decoder")),
    )
