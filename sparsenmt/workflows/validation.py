"""The validation of a recipe: the loss on the prepared dev set, and the metric of its translated sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from sparsenmt import store
from sparsenmt.assemble import build_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.prepared_data import PreparedData
from sparsenmt.decoding.documents import translate_documents
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.recipe.schema import Recipe
from sparsenmt.training.validation import Validator


def make_validator(recipe: Recipe, data: PreparedData, device: torch.device) -> Validator:
    """Build the validation of a recipe, with a model of its own."""
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=recipe.training.seed).to(device)
    validation = recipe.training.validation
    bundle = store.Bundle(recipe, data.tokenizers, data.features, model, device)
    options = recipe.decoding.model_copy(update={"method": "beam", "beam_size": validation.beam_size})
    count = validation.max_sentences
    targets = [target for _, target in data.dev_lines[:count]]
    sources = [source for source, _ in data.dev_lines]
    lines = input_lines(sources, tags=data.dev_tags, documents=data.dev_documents)[:count]
    documents = None if data.dev_documents is None else data.dev_documents[:count]
    packing = recipe.data.documents

    def load(weights: Mapping[str, torch.Tensor]) -> None:
        store.load_weights(model, weights, "validation")
        model.pack(torch.float32)

    def measure() -> float:
        if packing is not None and documents is not None:
            blocks = translate_documents(bundle, lines, options, packing)
            outputs = [line for block in blocks for line in block.lines]
        else:
            outputs = [each.text for each in translate_lines(bundle, lines, options)]
        settings = ScoringSettings([validation.metric], language=recipe.data.target_language, documents=documents)
        return corpus_scores(outputs, [targets], settings)[0].value

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
