"""The prepared data of a recipe: write them, open them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.methods import methods_of_words, required_features
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.line_parts import read_line_parts
from sparsenmt.data.prepare import pipeline
from sparsenmt.data.prepare.round_trips import MOST_UNKNOWN, RoundTrips, examine_round_trips
from sparsenmt.data.prepared_data import PreparedData, PreparedReport, PreparedText, train_directory
from sparsenmt.data.text import read_lines
from sparsenmt.data.text_sides import SIDES, CorpusCounts, TextSides, is_swapped
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.process.runtime import is_distributed
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.load import RecipeLike
from sparsenmt.recipe.resolve import Overrides
from sparsenmt.recipe.schema import Data, Recipe, TokenizerSection
from sparsenmt.workflows.decoding.shared_windows import CPU

_NAMED = 5  # sentences whose lines a warning names
_OTHER_TEXT = "another language or script than the training text"
_SWAPPED = "swapped sides (data.dev.source, data.dev.target)"


def prepare(recipe: RecipeLike, overrides: Overrides = (), *, processes: int | None = None) -> PreparedReport:
    """Write the binary data of a recipe to its `data.directory`, unless they are there and up to date.

    Args:
        recipe: its file, its keys and values, or what `load_recipe` returned.
        overrides: as for `load_recipe`.
        processes: number of processes that encode sentence pairs; None: one, with the tokenizer's own threads.

    Raises:
        UserError: the recipe, the text or the settings are at fault.
    """
    recipe = load_recipe(recipe, overrides)
    with resumable("the stages that were finished are kept"):
        report = pipeline.prepare(recipe.data, features=required_features(recipe), processes=processes)
    seen = [] if report.up_to_date else examine_round_trips(report, recipe.data)
    for warning in unknown_warnings(report, recipe.data, seen):
        notify(f"warning: {warning}")
    for trips in seen:
        if trips.changed:
            notify(trips.describe(recipe.data.tokenizer))
    dev = recipe.data.dev
    if not recipe.data.is_language_model:
        warn_of_missing_words(recipe, read_lines(dev.source))
        folder = report.directory
        train = [Dataset(train_directory(folder, number)) for number in range(len(recipe.data.train))]
        sides_of(recipe, train, Dataset(folder / "dev"), Tokenizers.load(folder / "tokenizers"))  # for its warnings
    if recipe.data.tokenizer.kind == "word":
        for side, path in dev.files.items():
            if is_unspaced(line.text for line in read_line_parts(path)):
                notify(
                    f"warning: data.tokenizer.kind: words are what stands between spaces, and the {side} has none "
                    "between words, so that a sentence is one token; choose unigram, bpe or char"
                )
    return report


def prepare_together(recipe: Recipe, processes: int | None = None) -> PreparedReport | None:
    """Prepare the data of a recipe, in one of several processes or alone; see `prepare`.

    Of the processes that torchrun started, the first one writes, with the help of as many processes as torchrun started
    on its machine; the others wait.

    Args:
        processes: as for `pipeline.prepare`.

    Returns:
        the report; None in the processes that wait.

    Raises:
        UserError: the text or the settings are at fault.
    """
    if not is_distributed():
        return prepare(recipe, processes=processes)
    workers, report = Workers.join(CPU), None
    with workers.checked_together(CPU):
        if workers.is_main_process:
            count = processes or int(os.environ.get("LOCAL_WORLD_SIZE") or workers.size)
            report = prepare(recipe, processes=count)
    return report


def warn_of_missing_words(recipe: Recipe, sources: Iterable[str]) -> None:
    """Warn of methods that decide by words if the sources have no spaces between words."""
    methods = methods_of_words(recipe)
    if methods and is_unspaced(sources):
        notify(
            f"warning: {', '.join(methods)}: words are what stands between spaces, and the source has none between "
            "words, so that a sentence is one word; put spaces there first, or choose a method that decides by tokens"
        )


def sides_of(recipe: Recipe, train: Sequence[Dataset], dev: Dataset, tokenizers: Tokenizers) -> TextSides:
    """Return the sides of the training text; warns of corpora that are unlike it.

    These are corpora with swapped sides, and validation sentences that are longer than all that are trained on. A
    training corpus is compared with the others, if these have more tokens: of two that differ, the smaller one is told.
    """
    data, counts = recipe.data, [CorpusCounts.of(each, tokenizers) for each in train]
    of = partial(TextSides.of, tokenizers=tokenizers, apart=data.source_language != data.target_language)
    sides = of(counts)
    sizes = [int(sum(of_side.sum() for of_side in each.tokens)) for each in counts]
    smaller = [i for i, size in enumerate(sizes) if 2 * size <= sum(sizes)] if len(counts) > 1 else []
    compared = [(train[i], of([*counts[:i], *counts[i + 1 :]])) for i in smaller]
    for corpus, learned in [*compared, (dev, sides)]:
        if is_swapped(corpus, learned, tokenizers):
            notify(f"warning: {corpus.name}: the sides are swapped: its source is like the target of the training text")
    for side, lengths, most in zip(SIDES, (dev.source_lengths, dev.target_lengths), sides.longest, strict=True):
        if count := len(long := np.flatnonzero(lengths - 1 > most)):
            lines = ", ".join(str(number + 1) for number in dev.line_numbers[long[:_NAMED]])
            notify(
                f"warning: {dev.name}: {count:,} of {len(dev):,} {side} sentences are longer than all that are trained "
                f"on, {most:,} tokens (lines {lines}{', ...' if count > _NAMED else ''})"
            )
    return sides


def unknown_warnings(report: PreparedReport, data: Data, seen: Sequence[RoundTrips] = ()) -> list[str]:
    """Return a warning for every side of a corpus with too many unknown tokens, with the likely cause.

    Args:
        seen: the unknown texts of each side of the training text.
    """
    usual = [max(shares) for shares in zip(*(each.unknown_shares() for each in report.corpora), strict=True)]
    total = report.lines * (2 if report.shared and len(data.dev.files) == 2 else 1)
    cause, found = _cause_of_unknown(data.tokenizer, total), []
    texts = {trips.side: trips.most_unknown for trips in seen}
    for each in (*report.corpora, report.dev):
        for side, share, of_training in zip(data.dev.files, each.unknown_shares(), usual, strict=True):
            if share > MOST_UNKNOWN:
                other = _OTHER_TEXT if side == "text" else f"{_OTHER_TEXT}, or {_SWAPPED}"
                why = cause if of_training > MOST_UNKNOWN else other
                named = f"; mostly {', '.join(texts[side])}" if of_training > MOST_UNKNOWN and texts.get(side) else ""
                found.append(f"{each.name}: {share:.1%} of the {side} tokens are unknown: {why}{named}")
    return found


def _cause_of_unknown(options: TokenizerSection, lines: int) -> str:
    """Return the reason why tokens of the training text are unknown, and the key to change, if one helps.

    Args:
        lines: that the vocabulary may be learned from.
    """
    if options.from_model is not None:
        return "the vocabulary of data.tokenizer.from_model was learned from another text"
    size = f"data.tokenizer.vocabulary_size ({options.vocabulary_size:,})"
    if options.kind == "word":
        return f"words that are too rare for {size}: raise it"
    coverage = f"data.tokenizer.character_coverage ({options.character_coverage:g})"
    limits = ([coverage] if options.character_coverage < 1 else []) + ([size] if options.kind == "char" else [])
    if lines > options.max_training_lines:
        limits.append(f"data.tokenizer.max_training_lines ({options.max_training_lines:,})")
    if limits:
        return f"characters beyond {' or '.join(limits)}: raise it"
    return "the character NUL (U+0000), which SentencePiece cannot keep: remove it"


def open_data(recipe: Recipe) -> PreparedData | PreparedText:
    """Open the prepared data of a recipe: of sentence pairs, or of the texts of a language model.

    Raises:
        UserError: there are none, they are damaged, they were prepared with other settings, or they are replaced.
    """
    kind: type[PreparedData] | type[PreparedText] = PreparedText if recipe.data.is_language_model else PreparedData
    data = kind.open(recipe.data.directory)
    if pipeline.check_prepared_data(recipe.data, required_features(recipe)) != data.fingerprint:
        raise UserError(
            "the prepared data were replaced while they were read",
            where=recipe.data.directory,
            hint="Start the command again when no other process writes to them.",
        )
    return data
