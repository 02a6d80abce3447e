"""A depth plan that executes one block twice on each side, and has several exits."""

from __future__ import annotations

from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.sparsity.registry import Options, register


@register("depth", "toy_revisit")
def build(options: Options, *, encoder_layers: int, decoder_layers: int) -> DepthPlan:
    """Encoder: the first block twice in a row. Decoder: the first block again at the end."""
    return DepthPlan(
        encoder=(0, *range(encoder_layers)),
        decoder=(*range(decoder_layers), 0),
        encoder_exits=(1, encoder_layers + 1),
        decoder_exits=(1, decoder_layers, decoder_layers + 1),
    )
