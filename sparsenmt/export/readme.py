"""The README of an exported model: a description, and code that runs it."""

from __future__ import annotations

from pathlib import Path

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.model_card import about_scores, about_training, front_matter, plain_text
from sparsenmt.assemble.model_directory import read_manifest
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.export.plain_transformer import PlainTransformer, parameter_count
from sparsenmt.export.target import ExportTarget
from sparsenmt.recipe.schema import Decoding

_USUAL = Decoding()
_OPTIONS = ("method", "min_length", "no_repeat_ngram")
"""Keys of `decoding` that change outputs, and that not every program has; a greedy search is a beam of 1."""
_SAME = "Outputs are those of `sparsenmt decode` with the same settings, but for ties."


def readme(
    bundle: Bundle, plain: PlainTransformer, program: ExportTarget, *, sentencepiece: bool, source: Path | None = None
) -> str:
    """The text of the README. Its code runs in the model's directory if the target's packages are installed.

    source: the directory of the model, whose card tells of data and scores.
    """
    recipe = bundle.recipe
    languages = plain_text(f"{recipe.data.source_language} to {recipe.data.target_language}")
    facts = [
        f"{languages}, {plain.encoder_layers} encoder and "
        f"{plain.decoder_layers} decoder layers, {parameter_count(plain):,} weights, exported from a model of "
        f"sparsenmt (`sparsenmt.json` says which). Run in this directory:",
        "",
        "```python",
        program.usage(plain, bundle, sentencepiece).rstrip(),
        "```",
        "",
        *(f"- {note}" for note in [*program.notes(plain), *_notes(bundle, program, sentencepiece)] or [_SAME]),
    ]
    known = [] if source is None else [*about_training(source, recipe, read_manifest(source)), *about_scores(source)]
    return "\n".join(
        [*front_matter(recipe, program.name.lower()), "", f"# {plain_text(recipe.name)}", "", *facts, "", *known]
    )


def changed_penalty(decoding: Decoding) -> str | None:
    """Return the score by which the recipe ranks, if an exported model ranks by log-probability / length instead."""
    if strategy_of(decoding).penalizes_length and decoding.length_penalty == "gnmt" and decoding.alpha:
        return f"log-probability / ((5 + length) / 6)^{decoding.alpha:g}"
    return None


def _notes(bundle: Bundle, program: ExportTarget, sentencepiece: bool) -> list[str]:
    """Sentences on what the code above does not do, or a user must do before it."""
    recipe = bundle.recipe
    decoding, data = recipe.decoding, recipe.data
    notes = []
    if bundle.tokenizers.frames and program.own_vocabularies:
        notes.append("A line begins with the tag of the language to translate to.")
    elif bundle.tokenizers.frames:
        notes.append(
            "The code above puts no tokens of languages around sentences: `tokenizers/frames.json` says which belong."
        )
    if sentencepiece and data.tokenizer.lowercase:
        notes.append("The model was trained on lowercased text: lowercase the lines first.")
    if (changed := changed_penalty(decoding)) is not None:
        notes.append(
            f"The recipe ranks by {changed}, which is not available here; the lines above rank by "
            "log-probability / length."
        )
    if decoding.unknown == "copy":
        more = program.copies_unknown
        notes.append(f"The recipe replaces unknown tokens by source text, which the lines above do not{more}.")
    missing = [
        f"`decoding.{key}: {value}`"
        for key in _OPTIONS
        if (value := getattr(decoding, key)) not in (getattr(_USUAL, key), "greedy")
        and not {key, str(value)} & program.searches
    ]
    if missing:
        notes.append(f"The lines above do not have the recipe's {' and '.join(missing)}.")
    if data.filters.max_source_length is not None:
        notes.append(
            f"Training truncated sources to {data.filters.max_source_length:,} tokens: truncate longer ones too."
        )
    if data.documents is not None:
        notes.append(
            f"A line is a block of sentences with the word {plain_text(data.documents.separator)} between them, "
            f"at most {data.documents.max_length:,} tokens."
        )
    return notes
