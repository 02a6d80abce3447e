"""Write a trained model for another program."""

from __future__ import annotations

from pathlib import Path

import torch

from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.text import StrPath
from sparsenmt.export import model_export
from sparsenmt.export.plain_transformer import parameter_count
from sparsenmt.export.readme import changed_penalty
from sparsenmt.export.target import FileChoices
from sparsenmt.process.progress import notify
from sparsenmt.workflows.decoding.depth_choice import at_depth


def export_model(
    model: StrPath,
    output: StrPath,
    target: str,
    *,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    file: str | None = None,
    text: StrPath | None = None,
) -> None:
    """Write the model in a directory as a directory of CTranslate2, Marian or Transformers.

    Args:
        output: the directory to write.
        target: ``ctranslate2``, ``marian`` or ``safetensors-hf``.
        encoder_layers, decoder_layers: layers that run; None: the recipe's, or all.
        file: of Marian: ``npz``, ``bin`` or ``int8``; None: as it was imported, otherwise ``npz``.
        text: of Marian in 8 bits: lines in the source language, whose translation shows the ranges of numbers.

    Raises:
        UserError: the target cannot compute the model, its package is missing, or ``output`` exists.
    """
    model, output = Path(model), Path(output)
    choices = FileChoices(file, None if text is None else Path(text))
    model_export.check_target(target, output, choices)
    bundle = open_model(model, device=torch.device("cpu"), dtype=None)
    options = at_depth(bundle.model.plan, bundle.recipe.decoding, encoder_layers, decoder_layers)
    plain = model_export.export_model(bundle, output, target, options.depth, source=model, choices=choices)
    layers = f"{plain.encoder_layers} encoder and {plain.decoder_layers} decoder layers"
    notify(f"{output}: {layers}, {parameter_count(plain):,} weights; README.md shows how to run it")
    if (changed := changed_penalty(bundle.recipe.decoding)) is not None:
        notify(f"note: the recipe ranks by {changed}, the exported model by log-probability / length")
