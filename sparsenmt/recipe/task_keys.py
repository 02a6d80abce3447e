"""The keys and defaults of a recipe that depend on its task, translation or a language model, or on its languages."""

from __future__ import annotations

from typing import Any

from sparsenmt.languages import uses_joiners

TASK_KEYS: dict[str, tuple[str, ...]] = {
    "translation": (
        *("model.encoder_layers", "model.tie_embeddings", "model.attention.encoder_self", "model.attention.cross"),
        "model.decoder_feed_forward",
        *("model.memory", "data.source_language", "data.tokenizer.shared", "data.filters", "data.tagger"),
        *("data.temperature", "data.stages", "data.subword_regularization"),
        *("data.documents", "training.accumulate_tokens", "training.validation.tokenize"),
        "training.guided_alignment",
        *("training.validation.beam_size", "training.validation.max_sentences", "decoding.encoder_layers"),
        *("decoding.source_language", "decoding.target_language", "decoding.shortlist", "decoding.long"),
    ),
    "language_model": (
        *("model.segment_memory", "training.streams", "training.segment_length"),
        *("decoding.segment_length", "decoding.segment_memory", "decoding.max_lines"),
    ),
}
"""The keys that have a meaning for one task only; those of corpora aside."""


_LANGUAGE_MODEL_DEFAULTS = {
    "model.encoder_layers": 0,
    "training.label_smoothing": 0.0,
    "training.validation.metric": "bpc",
}


def with_task_defaults(recipe: Any) -> Any:
    """Plain values of a recipe, with what is different by default in a language model, which has no encoder."""
    data = recipe.get("data") if isinstance(recipe, dict) else None
    if not isinstance(data, dict) or data.get("task") != "language_model":
        return recipe
    for key, value in _LANGUAGE_MODEL_DEFAULTS.items():
        recipe = _with_default(recipe, key.split("."), value)
    return recipe


def with_language_defaults(recipe: Any) -> Any:
    """Plain values of a recipe, with the normalisation that keeps joiners where a language needs them: `nfkc`.

    Of tokenizers that normalise, unless the recipe names the rule, or a model whose tokenizers are used.
    """
    data = recipe.get("data") if isinstance(recipe, dict) else None
    tokenizer = data.get("tokenizer", {}) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(tokenizer, dict):
        return recipe
    codes = [code for side in ("source", "target") if isinstance(code := data.get(f"{side}_language"), str)]
    normalizes = tokenizer.get("kind", "bpe") in ("bpe", "unigram") and tokenizer.get("from_model") is None
    if not uses_joiners(*codes) or not normalizes or "normalization" in tokenizer:
        return recipe
    return {**recipe, "data": {**data, "tokenizer": {**tokenizer, "normalization": "nfkc"}}}


def without_foreign_keys(values: dict[str, Any], task: str) -> dict[str, Any]:
    """Plain values of a recipe, without the keys of the other task; they are changed in place.

    Neither has the site that a recurrent layer replaces.
    """
    if values.get("model", {}).get("recurrence") is not None:
        values["model"].get("attention", {}).pop("decoder_self", None)
    for other, keys in TASK_KEYS.items():
        for key in keys if other != task else ():
            *sections, last = key.split(".")
            section: Any = values
            for name in sections:
                section = section.get(name, {})
            section.pop(last, None)
    return values


def _with_default(section: Any, path: list[str], value: Any) -> Any:
    """Values with another one at a path where there is none; sections that are not plain mappings stay."""
    if not isinstance(section, dict):
        return section
    key, *rest = path
    if rest:
        return {**section, key: _with_default(section.get(key, {}), rest, value)}
    return {key: value, **section}
