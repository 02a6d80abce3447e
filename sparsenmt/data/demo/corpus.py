"""The demo corpus: English and German sentences from a grammar, created in seconds, the same on every machine.

It is small but has structures of real text: agreement in gender, number and case, verbs at the end of subordinate
clauses, separable verbs, compounds written as one word, numbers, dates, prices and names that must be copied,
questions, negation. Every source sentence has exactly one translation. The source tags are gold tags from the grammar.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparsenmt.data.demo.grammar import DemoSentence, sentences
from sparsenmt.data.text import write_lines
from sparsenmt.errors import UserError
from sparsenmt.files import explain_directory_errors

SOURCE_LANGUAGE = "en"
TARGET_LANGUAGE = "de"


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


def write_demo_corpus(
    directory: Path, *, train: int = 12_000, dev: int = 300, test: int = 300, seed: int = 1
) -> DemoCorpus:
    """Write ``{train,dev,test}.{en,de,tags}`` into ``directory``, which is created if it is missing.

    No source sentence occurs twice, not even in different splits. Dev and test sets do not depend on ``train``.

    Args:
        directory: for the nine files; files of these names are replaced.
        train, dev, test: numbers of sentences.
        seed: another seed gives another corpus of the same language pair.

    Raises:
        UserError: a size is below 1, or the directory cannot be written.
    """
    for name, size in (("train", train), ("dev", dev), ("test", test)):
        if size < 1:
            raise UserError(
                f"the demo corpus needs at least one sentence, not {size}",
                where=name,
                hint="Ask for a larger size.",
            )
    directory = Path(directory)
    with explain_directory_errors(directory, another="--directory"):
        directory.mkdir(parents=True, exist_ok=True)
    pairs = _distinct(dev + test + train, seed)
    return DemoCorpus(
        dev=_write_split(directory, "dev", pairs[:dev]),
        test=_write_split(directory, "test", pairs[dev : dev + test]),
        train=_write_split(directory, "train", pairs[dev + test :]),
    )


def _distinct(size: int, seed: int) -> list[DemoSentence]:
    """The first ``size`` different sentences."""
    found: dict[str, DemoSentence] = {}
    stream = sentences(seed)
    while len(found) < size:
        sentence = next(stream)
        found.setdefault(sentence.source, sentence)
    return list(found.values())


def _write_split(directory: Path, name: str, pairs: list[DemoSentence]) -> DemoSplit:
    split = DemoSplit(
        source=directory / f"{name}.{SOURCE_LANGUAGE}",
        target=directory / f"{name}.{TARGET_LANGUAGE}",
        tags=directory / f"{name}.tags",
    )
    write_lines(split.source, (pair.source for pair in pairs))
    write_lines(split.target, (pair.target for pair in pairs))
    write_lines(split.tags, (" ".join(f"{token.text}_{token.tag}" for token in pair.tokens) for pair in pairs))
    return split
