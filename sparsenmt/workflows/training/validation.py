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
from sparsenmt.engine.build import build
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import check_tokenizer, corpus_scores
from sparsenmt.evaluation.scorer import DEFAULT_TOKENIZER, ScoringOptions
from sparsenmt.evaluation.tokenizer_choice import CHARACTERS, fit_to_text, fitting_tokenizer, lacks_spaces
from sparsenmt.metric import METRICS
from sparsenmt.process.progress import notify
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.tensors import load_weights
from sparsenmt.training.state import Progress
from sparsenmt.training.validation import Validator

_KEY = "training.validation.tokenize"


def check_validation(recipe: Recipe) -> None:
    """Refuse a tokenizer of the recipe that cannot be used, before anything is written."""
    if recipe.training.validation.tokenize is not None:
        check_tokenizer(recipe.training.validation.tokenize, _KEY)


def validation_scoring(
    recipe: Recipe, data: PreparedData, progress: Progress | None = None, tell: Callable[[str], object] = notify
) -> ScoringOptions:
    """Return the validation metric with its settings: a run keeps the tokenizer that it began with.

    Args:
        progress: of the run's newest checkpoint; None: the run begins.
        tell: as for `fit_to_text`.

    Raises:
        UserError: the tokenizer cannot be used, or the recipe names another one than the run began with.
    """
    metric, language = recipe.training.validation.metric, recipe.data.target_language
    references = [target for _, target in data.dev_lines]
    asked = recipe.training.validation.tokenize
    if metric == "loss":
        return ScoringOptions()
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
    data: PreparedData,
    device: torch.device,
    scoring: ScoringOptions | None = None,
    *,
    most: int | None = None,
) -> Validator[store.Bundle]:
    """Return the validation of a recipe.

    Args:
        scoring: `validation_scoring`; None: that of a new run.
        most: sentences, from the first; None: those of the recipe.
    """
    scoring = scoring or validation_scoring(recipe, data)
    validation = recipe.training.validation
    options = recipe.decoding.model_copy(update={"method": "beam", "beam_size": validation.beam_size})
    count = validation.max_sentences if most is None else most
    targets = [target for _, target in data.dev_lines[:count]]
    sources = [source for source, _ in data.dev_lines]
    lines = input_lines(sources, tags=data.dev_tags, documents=data.dev_documents)[:count]
    documents = None if data.dev_documents is None else data.dev_documents[:count]
    packing = recipe.data.documents

    def make(weights: Mapping[str, torch.Tensor]) -> store.Bundle:
        sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
        model = build_model(recipe.model, **sizes, seed=recipe.training.seed).to(device)
        load_weights(model, weights, "validation")
        engine = build(model)
        return store.Bundle(recipe, data.tokenizers, data.features, model, device, built=engine)

    def measure(bundle: store.Bundle) -> float:
        if packing is not None and documents is not None:
            blocks = translate_documents(bundle, lines, options, packing)
            outputs = [line for block in blocks for line in block.lines]
        else:
            outputs = [each.text for each in translate_lines(bundle, lines, options)]
        settings = scoring.settings(language=recipe.data.target_language, documents=documents)
        return corpus_scores(outputs, [targets], settings)[0].value

    metrics: dict[str, Callable[[store.Bundle], float]] = (
        {} if validation.metric == "loss" else {validation.metric: measure}
    )
    return Validator(
        make,
        data.dev,
        metrics,
        device=device,
        batch_tokens=recipe.training.batch_tokens,
        depth=(options.encoder_exits, options.decoder_exits),
        frames=data.tokenizers.frames.of(recipe.decoding),
        most=most,
    )
