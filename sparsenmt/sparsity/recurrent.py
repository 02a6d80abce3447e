"""Recurrent stacking: one layer applied several times (Dabre and Fujita 2019, "Recurrent Stacking of Layers for Compact
Neural Machine Translation Models", AAAI).

The encoder's L layers, the decoder's, or both, are one layer, whose weights are stored once. Each application is a step
with its own sockets and its own self-attention cache; cross-attention keys and values belong to the layer and are
projected once. A method decides whether applications share its parameters (`registry.MethodPlace`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.sparsity.registry import Options, register

Sides = Literal["none", "encoder", "decoder", "both"]


class RecurrentOptions(Options):
    side: Literal["both", "encoder", "decoder"] = Field(
        "both", description="Side whose layers are one layer: the encoder, the decoder, or both (one on each side)."
    )


def blocks(layers: int, side: str, shared: Sides) -> tuple[int, ...]:
    """The block that each step of a side executes."""
    return (0,) * layers if shared in (side, "both") else tuple(range(layers))


@register("depth", "recurrent", options=RecurrentOptions, examples=({}, {"side": "encoder"}, {"side": "decoder"}))
def build(options: RecurrentOptions, *, encoder_layers: int, decoder_layers: int) -> DepthPlan:
    return DepthPlan(
        encoder=blocks(encoder_layers, "encoder", options.side),
        decoder=blocks(decoder_layers, "decoder", options.side),
        encoder_exits=(encoder_layers,),
        decoder_exits=(decoder_layers,),
    )
