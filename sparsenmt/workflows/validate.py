"""What a validation of `sparsenmt train` is: dev loss, and the metric of decoded dev sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sparsenmt.store import Bundle, load_weights

if TYPE_CHECKING:
    import torch

    from sparsenmt.data.prepared_data import PreparedData
    from sparsenmt.model.transformer import Transformer
    from sparsenmt.recipe.schema import Recipe
    from sparsenmt.training.validation import Validator


def make_validator(recipe: Recipe, data: PreparedData, model: Transformer, device: torch.device) -> Validator:
    """Args:
    model: fp32, on the device, used for nothing else.
    """
    import torch

    from sparsenmt.data.input_line import input_lines
    from sparsenmt.decoding.documents import translate_documents
    from sparsenmt.decoding.translate import translate_lines
    from sparsenmt.evaluation.metrics import metric_value
    from sparsenmt.training.validation import Validator

    validation = recipe.training.validation
    bundle = Bundle(recipe, data.tokenizers, data.features, model, device)
    options = recipe.decoding.model_copy(update={"method": "beam", "beam_size": validation.beam_size})
    count = validation.max_sentences
    targets = [target for _, target in data.dev_lines[:count]]
    lines = input_lines([source for source, _ in data.dev_lines], tags=data.dev_tags, documents=data.dev_documents)[
        :count
    ]
    packing = recipe.data.documents

    def load(weights: Mapping[str, torch.Tensor]) -> None:
        load_weights(model, weights, "validation")
        model.pack(torch.float32)

    def measure() -> float:
        if packing is not None and data.dev_documents is not None:
            found = translate_documents(bundle, lines, options, packing)
            outputs = [line for block in found for line in block.lines]
        else:
            outputs = [each.text for each in translate_lines(bundle, lines, options)]
        documents = None if data.dev_documents is None else data.dev_documents[:count]
        return metric_value(validation.metric, outputs, targets, recipe.data.target_language, documents)

    metrics: dict[str, Callable[[], float]] = {} if validation.metric == "loss" else {validation.metric: measure}
    return Validator(
        model,
        load,
        data.dev,
        metrics,
        device=device,
        batch_tokens=recipe.training.batch_tokens,
        depth=(options.encoder_exits, options.decoder_exits),
    )
