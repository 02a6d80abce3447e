"""The demo corpus: English sentences with gold part-of-speech tags and their German translations.

A grammar generated it (``tools/demo_corpus``, not installed). It is small but has structures of real text: agreement
in gender, number and case, verbs at the end of subordinate clauses, separable verbs, compounds written as one word,
numbers, dates, prices and names that must be copied, questions, negation. Every source sentence has one translation.

``demo_sentences.txt.gz`` holds one pair a line: the English tokens as ``token_TAG``, separated by a space where the
text has a space and by ``~`` where it has none, then a tab, then the German sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.errors import UserError
from sparsenmt.storage.files import explain_directory_errors

SOURCE_LANGUAGE = "en"
TARGET_LANGUAGE = "de"
SENTENCES = Path(__file__).with_name("demo_sentences.txt.gz")
NO_SPACE = "~"  # between the items of two tokens without a space between them


@dataclass(frozen=True)
class DemoSplit:
    """The three line-aligned files of a split; a line of ``tags`` holds ``token_TAG`` items separated by spaces.

    The tokens of a line, concatenated, are the source line without spaces. Tags and tokenization are those of the Penn
    treebank (Marcus et al. 1993): ``does_VBZ n't_RB``. The last ``_`` of an item is the separator.
    """

    source: Path
    target: Path
    tags: Path


@dataclass(frozen=True)
class DemoCorpus:
    """The files that `write_demo_corpus` wrote."""

    train: DemoSplit
    dev: DemoSplit
    test: DemoSplit


def write_demo_corpus(directory: Path, *, train: int = 12_000, dev: int = 300, test: int = 300) -> DemoCorpus:
    """Write ``{train,dev,test}.{en,de,tags}`` into ``directory``, which is created if it is missing.

    No source sentence occurs twice, not even in different splits. Dev and test sets do not depend on ``train``.

    Args:
        directory: for the nine files; files of these names are replaced.
        train, dev, test: numbers of sentences, 12,600 together at most.

    Raises:
        UserError: a size is below 1, there are too few sentences, or the directory cannot be written.
    """
    for name, size in (("train", train), ("dev", dev), ("test", test)):
        if size < 1:
            raise UserError(
                f"the demo corpus needs at least one sentence, not {size}",
                where=name,
                hint="Ask for a larger size.",
            )
    pairs = list(islice(read_lines(SENTENCES), dev + test + train))
    if len(pairs) < dev + test + train:
        raise UserError(
            f"the demo corpus has {len(pairs):,} sentences, not {dev + test + train:,}",
            where="train + dev + test",
            hint="Ask for smaller sizes.",
        )
    directory = Path(directory)
    with explain_directory_errors(directory, another="--directory"):
        directory.mkdir(parents=True, exist_ok=True)
    return DemoCorpus(
        dev=_write_split(directory, "dev", pairs[:dev]),
        test=_write_split(directory, "test", pairs[dev : dev + test]),
        train=_write_split(directory, "train", pairs[dev + test :]),
    )


def _write_split(directory: Path, name: str, pairs: Sequence[str]) -> DemoSplit:
    """Write the three files of a split from lines of the shipped file."""
    split = DemoSplit(
        source=directory / f"{name}.{SOURCE_LANGUAGE}",
        target=directory / f"{name}.{TARGET_LANGUAGE}",
        tags=directory / f"{name}.tags",
    )
    tagged, targets = zip(*(pair.split("\t") for pair in pairs), strict=True)
    write_lines(split.source, map(_source, tagged))
    write_lines(split.target, targets)
    write_lines(split.tags, (items.replace(NO_SPACE, " ") for items in tagged))
    return split


def _source(tagged: str) -> str:
    """Return the text of a tagged sentence."""
    return " ".join("".join(item.rpartition("_")[0] for item in word.split(NO_SPACE)) for word in tagged.split(" "))
