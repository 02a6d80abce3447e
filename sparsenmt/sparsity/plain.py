"""The plain Transformer: every layer has its own weights and runs once; the last one is the only exit."""

from __future__ import annotations

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.sparsity.registry import Options, register


@register("depth", "plain")
def build(options: Options, *, encoder_layers: int, decoder_layers: int) -> DepthPlan:
    return DepthPlan(
        encoder=tuple(range(encoder_layers)),
        decoder=tuple(range(decoder_layers)),
        encoder_exits=(encoder_layers,),
        decoder_exits=(decoder_layers,),
    )
