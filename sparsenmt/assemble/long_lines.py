"""Lines beyond the length that a model was trained on: when they are long, and what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsenmt.assemble.model_directory import ModelIdentity, read_recipe, text_sides
from sparsenmt.data.text import bounded_batches
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.recipe.choices import LongLines
from sparsenmt.recipe.schema import Decoding, Recipe


def whole_lengths(recipe: Recipe, text: TextSides | None, limit: int) -> tuple[int, int]:
    """Return the most source tokens of a line of several sentences, and of one sentence, that need not be divided.

    Of several: those of the longest source of the training text, where it is known. Of one: the longest that may have
    been in it (``data.filters.max_length``), if the positions hold it.

    Args:
        text: the sides of the training text; None: not known.
        limit: most source tokens that are read.
    """
    most = min(limit, recipe.data.filters.max_length or limit)
    several = most if text is None else min(limit, text.longest[0])
    return several, max(several, most)


def long_lines(recipe: Recipe, options: Decoding, *, cuts: bool) -> LongLines:
    """Return what is done with lines beyond `whole_lengths`; summaries are made of the beginning of a long text.

    These are models whose recipe cuts sources (``cuts``), or has one language on both sides.
    """
    data = recipe.data
    return options.long or ("cut" if cuts or data.source_language == data.target_language else "split")


def recorded_division(
    directory: Path, identity: ModelIdentity, options: Decoding, lines: Sequence[str]
) -> LongLines | None:
    """Return ``long`` as records of what is kept of a text state it: ``split``, if a model divides one of these lines.

    Earlier versions cut such lines. None: `options` say nothing, and no line is that long: what they kept still holds.
    """
    recipe, most = read_recipe(directory), identity.max_source_length
    if options.long or long_lines(recipe, options, cuts=most == recipe.data.filters.max_source_length) != "split":
        return options.long
    tokenizers = Tokenizers.load(directory / "tokenizers")
    around = len(tokenizers.frames.source_prefix) + len(tokenizers.frames.source_suffix)
    several, _ = whole_lengths(recipe, text_sides(directory), most - around)
    encoded = map(tokenizers.source.encode_batch, bounded_batches(lines, len))
    return "split" if any(len(ids) > several for part in encoded for ids in part) else None
