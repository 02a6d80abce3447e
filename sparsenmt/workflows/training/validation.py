"""The validation of a recipe: losses and translations of sentence pairs, or the likelihood of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.model import build_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.prepared_data import PreparedData, PreparedText
from sparsenmt.decoding.documents import translate_documents
from sparsenmt.decoding.text_scores import TextReading
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import check_tokenizer, corpus_scores
from sparsenmt.evaluation.scorer import DEFAULT_TOKENIZER, ScoringOptions
from sparsenmt.evaluation.text_quality import TextQuality
from sparsenmt.evaluation.tokenizer_choice import CHARACTERS, fit_to_text, fitting_tokenizer, lacks_spaces
from sparsenmt.metric import METRICS, TEXT_METRICS
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.progress import notify
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.tensors import load_weights
from sparsenmt.training.loop import Validate
from sparsenmt.training.state import Progress
from sparsenmt.training.validation import validation_losses
from sparsenmt.workflows.evaluation.score_text import token_nats, total_nats

Measure = Callable[[Transformer, Engine], dict[str, float]]
"""A model with packed weights -> values by name."""

_KEY = "training.validation.tokenize"
_TRIED, _TRIED_TOKENS = 2, 200  # sentences, tokens of a text


def validation_scoring(
    recipe: Recipe,
    data: PreparedData | PreparedText,
    progress: Progress | None = None,
    tell: Callable[[str], object] = notify,
) -> ScoringOptions:
    """Return the validation metric with its settings: a run keeps the tokenizer that it began with.

    The loss, and metrics of language models, have no settings.

    Args:
        progress: of the run's newest checkpoint; None: the run begins.
        tell: as for `fit_to_text`.

    Raises:
        UserError: the tokenizer cannot be used, or the recipe names another one than the run began with.
    """
    metric, language = recipe.training.validation.metric, recipe.data.target_language
    asked = recipe.training.validation.tokenize
    if metric == "loss" or isinstance(data, PreparedText):
        return ScoringOptions()
    references = [target for _, target in data.dev_lines]
    if progress is None:
        return fit_to_text(ScoringOptions((metric,)), references, {recipe.name: recipe}, tell=tell)
    began = progress.tokenizer or DEFAULT_TOKENIZER
    # Runs of older versions took no notice of the text, and name no tokenizer.
    unspaced = progress.tokenizer is not None and lacks_spaces(language, references)
    if not METRICS[metric].uses_tokenizer(unspaced):
        return ScoringOptions((metric,), unspaced=unspaced)
    if asked is not None and asked != began:
        raise UserError(
            f"the run is validated by {METRICS[metric].label} with the tokenizer {began}, not {asked}",
            where=_KEY,
            hint="Leave it out, or begin another run: name another `directory`.",
        )
    try:
        check_tokenizer(began)
    except UserError as error:
        raise UserError(
            f"the run is validated with a tokenizer that it began with: {error.message}",
            where=_KEY,
            hint="Install what it needs, or begin another run: name another `directory`.",
        ) from None
    if asked is None and (now := fitting_tokenizer(language, references, tell)) != began:
        label = METRICS[metric].label
        tell(
            f"warning: the run began with validation by {label} ({began}), and keeps it; for {label} ({now}), name "
            "another `directory`"
        )
    return ScoringOptions((metric,), tokenize=began, unspaced=unspaced)


def recorded_tokenizer(scoring: ScoringOptions) -> str | None:
    """Return the tokenizer for the state of a run: None for 13a of text with spaces, as in older versions."""
    if any(METRICS[name].by_language for name in scoring.metrics):
        return CHARACTERS if scoring.unspaced else None
    return scoring.tokenize if scoring.unspaced or scoring.tokenize != DEFAULT_TOKENIZER else None


def make_validator(
    recipe: Recipe,
    data: PreparedData | PreparedText,
    device: torch.device,
    scoring: ScoringOptions,
    *,
    tried: bool = False,
) -> Validate:
    """Return the function that validates weights as a recipe says: weights by name -> values by name.

    Each validation makes a model of its own, which exists during it only: neither its weights, also packed, nor the
    buffers of its searches take memory from the updates.

    Args:
        scoring: `validation_scoring`.
        tried: validate a few sentences only, or tokens of a text.

    Raises:
        UserError: the metric is of bytes, and the data are of a version that did not count them.
    """
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    measure = (
        _text_measure(recipe, data, device, tried)
        if isinstance(data, PreparedText)
        else _pairs_measure(recipe, data, device, scoring, tried)
    )

    def validate(weights: Mapping[str, torch.Tensor]) -> dict[str, float]:
        model = build_model(recipe.model, **sizes, seed=recipe.training.seed).to(device)
        load_weights(model, weights, "validation")
        return measure(model, build(model))

    return validate


def _pairs_measure(
    recipe: Recipe, data: PreparedData, device: torch.device, scoring: ScoringOptions, tried: bool
) -> Measure:
    """Return the function that measures the losses on the dev set, and the metric of its translations."""
    validation = recipe.training.validation
    options = recipe.decoding.model_copy(update={"method": "beam", "beam_size": validation.beam_size})
    count = _TRIED if tried else validation.max_sentences
    targets = [target for _, target in data.dev_lines[:count]]
    sources = [source for source, _ in data.dev_lines]
    lines = input_lines(sources, tags=data.dev_tags, documents=data.dev_documents)[:count]
    documents = None if data.dev_documents is None else data.dev_documents[:count]
    packing = recipe.data.documents

    def measure(model: Transformer, engine: Engine) -> dict[str, float]:
        losses = validation_losses(
            engine,
            data.dev,
            device=device,
            batch_tokens=recipe.training.batch_tokens,
            depth=(options.encoder_exits, options.decoder_exits),
            frames=data.tokenizers.frames.of(recipe.decoding),
            most=_TRIED if tried else None,
        )
        if validation.metric == "loss":
            return losses
        bundle = Bundle(recipe, data.tokenizers, data.features, model, device, built=engine)
        if packing is not None and documents is not None:
            blocks = translate_documents(bundle, lines, options, packing)
            outputs = [line for block in blocks for line in block.lines]
        else:
            outputs = [each.text for each in translate_lines(bundle, lines, options)]
        settings = scoring.settings(language=recipe.data.target_language, documents=documents)
        return {**losses, validation.metric: corpus_scores(outputs, [targets], settings)[0].value}

    return measure


def _text_measure(recipe: Recipe, data: PreparedText, device: torch.device, tried: bool) -> Measure:
    """Return the function that measures the likelihood of the validation text, read as one stream."""
    reading, metric = TextReading.of(recipe), recipe.training.validation.metric
    if metric in TEXT_METRICS and TEXT_METRICS[metric].per == "byte" and not data.dev.counts.bytes:
        raise UserError(
            "the prepared data are of a version that did not count bytes",
            where=f"training.validation.metric; {recipe.data.directory}",
            hint="Remove the directory and run `sparsenmt prepare` again, or validate by `bpc`.",
        )

    def measure(model: Transformer, engine: Engine) -> dict[str, float]:
        ids = data.dev.ids[: _TRIED_TOKENS if tried else None]
        nats = token_nats(engine, ids, reading, device, modules=model.modules(), shown=False)
        quality = TextQuality(total_nats(nats), data.dev.counts)
        return {name: quality.value(name) for name in dict.fromkeys(("loss", metric))}

    return measure
