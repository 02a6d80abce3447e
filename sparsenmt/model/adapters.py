"""Low-rank adapters beside linear layers (LoRA, Hu et al. 2021, section 4.1).

A layer with weight W computes (W + s B A) x + b, s = alpha / rank; W and b are frozen and B is zero at the start. The
scale s is a tensor of the checkpoint, so that weights can be merged without the recipe.
Shapes: R rank, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sparsenmt.errors import UserError
from sparsenmt.model.freeze import in_part
from sparsenmt.model.linear import Adapter, Linear
from sparsenmt.model.sockets import method_weights


def add_adapters(
    model: nn.Module, *, rank: int, alpha: float, dropout: float, targets: Sequence[str], seed: int
) -> list[str]:
    """Freeze a model except the weights of its methods, and put adapters beside some of its linear layers.

    Args:
        targets: names of layers or of modules that contain them, anywhere in the full name: ``q``, ``cross.v``,
            ``feed_forward``, ``encoder``; ``*`` and ``?`` stand for characters.
        seed: of A.

    Returns:
        the names of the layers.

    Raises:
        UserError: a target is no linear layer of the encoder or decoder.
    """
    kept = method_weights(model)
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear) and f"{name}.weight" not in kept
    }
    chosen: dict[str, None] = {}
    for number, target in enumerate(targets):
        found = [name for name in layers if in_part(name, target) or in_part(name, f"*.{target}")]
        if not found:
            there = ", ".join(dict.fromkeys(name.partition("layers.")[2].partition(".")[2] for name in layers))
            raise UserError(
                f"the model has no linear layer {target!r}",
                where=f"training.lora.targets.{number}",
                hint=f"Its blocks have: {there}.",
            )
        chosen |= dict.fromkeys(found)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in kept)
    generator = torch.Generator().manual_seed(seed)
    for name in layers:
        if name in chosen:
            layers[name].adapter = Adapter(layers[name], rank, alpha / rank, dropout, generator)
    return [name for name in layers if name in chosen]
