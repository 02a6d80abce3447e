"""The prepared data of a recipe: write them, open them."""

from __future__ import annotations

from collections.abc import Iterable

from sparsenmt.assemble import methods_of_words, required_features
from sparsenmt.data.prepare import pipeline
from sparsenmt.data.prepared_data import PreparedData, PreparedReport
from sparsenmt.data.text import read_lines
from sparsenmt.data.unspaced import is_unspaced
from sparsenmt.errors import UserError
from sparsenmt.interrupts import resumable
from sparsenmt.progress import notify
from sparsenmt.recipe.schema import Recipe


def prepare(recipe: Recipe) -> PreparedReport:
    """Write the binary data of a recipe to its `data.directory`, unless they are there and up to date.

    Raises:
        UserError: the text or the settings are at fault.
    """
    with resumable("the stages that were finished are kept"):
        report = pipeline.prepare(recipe.data, features=required_features(recipe))
    dev = recipe.data.dev
    warn_of_missing_words(recipe, read_lines(dev.source))
    if recipe.data.tokenizer.kind == "word":
        for side, path in (("source", dev.source), ("target", dev.target)):
            if is_unspaced(read_lines(path)):
                notify(
                    f"warning: data.tokenizer.kind: words are what stands between spaces, and the {side} has none "
                    "between words, so that a sentence is one token; choose unigram, bpe or char"
                )
    return report


def warn_of_missing_words(recipe: Recipe, sources: Iterable[str]) -> None:
    """Warn of methods that decide by words if the sources have no spaces between words."""
    methods = methods_of_words(recipe)
    if methods and is_unspaced(sources):
        notify(
            f"warning: {', '.join(methods)}: words are what stands between spaces, and the source has none between "
            "words, so that a sentence is one word; put spaces there first, or choose a method that decides by tokens"
        )


def open_prepared(recipe: Recipe) -> PreparedData:
    """Open the prepared data of a recipe.

    Raises:
        UserError: there are none, they are damaged, or they were prepared with other settings.
    """
    data = PreparedData.open(recipe.data.directory)
    if pipeline.check_prepared_data(recipe.data, required_features(recipe)) != data.fingerprint:
        raise UserError(
            "the prepared data were replaced while they were read",
            where=recipe.data.directory,
            hint="Start the command again when no other process writes to them.",
        )
    return data
