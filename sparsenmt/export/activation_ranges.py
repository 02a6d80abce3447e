"""The ranges of what matrices are multiplied with, which Bergamot's 8 bits need before they see a text.

Of every product the greatest absolute value is taken, once for a batch in the encoder and once for a step in the
decoder. A matrix's alpha is 127 over their mean and 1.1 standard deviations: the few values beyond it are clipped, as
in the scripts with which Bergamot's students were made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_lines
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.errors import UserError
from sparsenmt.export.plain_transformer import PlainTransformer
from sparsenmt.importers.marian_names import weight_name
from sparsenmt.process.progress import progress_bar

_MOST_LINES = 2000
_LEVELS, _DEVIATIONS = 127, 1.1
_OUTPUT = "output"


def activation_alphas(bundle: Bundle, plain: PlainTransformer, text: Path) -> dict[str, float]:
    """The alpha of each matrix, by Marian's name, from translations of a text.

    Raises:
        UserError: the text cannot be read, or is empty.
    """
    lines = list(islice((line for line in read_lines(text) if line.strip(" ")), _MOST_LINES))
    if not lines:
        raise UserError("the text is empty", where=str(text), hint="Name a text in the source language.")
    alphas = {
        name: _LEVELS / (float(np.mean(found)) + _DEVIATIONS * float(np.std(found)))
        for name, found in _greatest_inputs(bundle, plain, lines).items()
        if any(found)
    }
    plan = bundle.model.plan
    blocks = {"encoder": plan.encoder[: plain.encoder_layers], "decoder": plan.decoder[: plain.decoder_layers]}
    found = {}
    for name, tensor in plain.stacks.items():
        side, *inner, _ = name.split(".")
        if tensor.dim() == 2:
            module = ".".join([side, "layers", str(blocks[side][int(inner[1])]), *inner[2:]])
            recurrent = plain.section.recurrence is not None
            found[weight_name(name, norm=plain.section.norm, recurrent=recurrent)] = alphas.get(module, 1.0)
    table = "Wemb" if plain.section.tie_embeddings == "all" else "decoder_Wemb"
    return found | dict.fromkeys((table, "none"), alphas[_OUTPUT])  # with a shortlist the table has no name there


def _greatest_inputs(bundle: Bundle, plain: PlainTransformer, lines: Sequence[str]) -> Mapping[str, Sequence[float]]:
    """The greatest absolute value of each call of each linear layer, and of the projection to the vocabulary."""
    found: dict[str, list[float]] = defaultdict(list)

    def recorder(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: found[name].append(float(inputs[0].abs().max()))

    def record_hidden(module: nn.Module, inputs: Any, outputs: Mapping[int, Tensor]) -> None:
        found[_OUTPUT] += [float(each.abs().max()) for each in outputs.values()]

    modules = [(name, each) for name, each in bundle.model.named_modules() if isinstance(each, nn.Linear)]
    hooks = [each.register_forward_pre_hook(recorder(name)) for name, each in modules]
    hooks.append(bundle.model.decoder.register_forward_hook(record_hidden))
    depth = plain.encoder_layers, plain.decoder_layers
    options = bundle.recipe.decoding.at(depth).model_copy(update={"method": "greedy"})
    try:
        with torch.inference_mode(), progress_bar("ranges of numbers", len(lines)) as advance:
            for _ in translate_lines(bundle, input_lines(lines), options, advance=advance):
                pass
    finally:
        for hook in hooks:
            hook.remove()
    return found
