"""Recurrent stacking: one layer applied several times (Dabre and Fujita 2019, "Recurrent Stacking of Layers for Compact
Neural Machine Translation Models", AAAI).

The encoder's L layers, the decoder's, or both, are the same layer: its weights are stored once. The engine executes
every application as a step of its own, with its own sockets and its own cache of self-attention; the memory's keys and
values belong to the layer and are projected once. What a method learns is shared by the applications or not, as the
method says (`registry.Place`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.sparsity.registry import Options, register

Sides = Literal["none", "encoder", "decoder", "both"]


class RecurrentOptions(Options):
    side: Literal["both", "encoder", "decoder"] = Field(
        "both", description="Which layers are one: those of the encoder, of the decoder, or of both (one on each side)."
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
