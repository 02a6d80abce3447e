"""The validation of a language model: the likelihood of the whole validation text, read as one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from sparsenmt.assemble import build_model
from sparsenmt.data.prepared_data import PreparedText
from sparsenmt.decoding.text_scores import TextReading
from sparsenmt.engine.build import build
from sparsenmt.errors import UserError
from sparsenmt.evaluation.text_quality import TextQuality
from sparsenmt.metric import TEXT_METRICS
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.tensors import load_weights
from sparsenmt.workflows.evaluation.score_text import token_nats, total_nats


def make_text_validator(
    recipe: Recipe, data: PreparedText, device: torch.device, *, most: int | None = None
) -> Callable[[Mapping[str, torch.Tensor]], dict[str, float]]:
    """Return the validation of a recipe: weights in fp32 -> values by name.

    It makes a model of its own each time, as `Validator` does.

    Args:
        most: tokens, from the first; None: the whole text.

    Raises:
        UserError: the metric is of bytes, and the data are of a version that did not count them.
    """
    size = data.tokenizer.size
    reading, metric = TextReading.of(recipe), recipe.training.validation.metric
    if metric in TEXT_METRICS and TEXT_METRICS[metric].per == "byte" and not data.dev.counts.bytes:
        raise UserError(
            "the prepared data are of a version that did not count bytes",
            where=f"training.validation.metric; {recipe.data.directory}",
            hint="Remove the directory and run `sparsenmt prepare` again, or validate by `bpc`.",
        )

    def validate(weights: Mapping[str, torch.Tensor]) -> dict[str, float]:
        model = build_model(recipe.model, source_size=size, target_size=size, seed=recipe.training.seed).to(device)
        load_weights(model, weights, "validation")
        nats = token_nats(build(model), data.dev.ids[:most], reading, device, modules=model.modules(), shown=False)
        quality = TextQuality(total_nats(nats), data.dev.counts)
        return {name: quality.value(name) for name in dict.fromkeys(("loss", metric))}

    return validate
