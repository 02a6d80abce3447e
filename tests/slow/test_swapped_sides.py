"""Text of one language in the place of the other: found in every domain, and no text in its place is taken for it.

With `-rA` the table is printed: the part of the usual share of typical tokens, of the text's own and of the other side.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from sparsenmt.data.dataset import Dataset, DatasetWriter
from sparsenmt.data.text_sides import CorpusCounts, SideTokens, TextSides
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.recipe.schema import TokenizerSection

pytestmark = pytest.mark.slow
LINES, TRAINED = 500, 40_000
TRAINING = {
    "multi30k": ("multi30k/train", 8000),
    "tatoeba": ("tatoeba-deen/train", 8000),
    "wmt": ("wmt-10k/train", 8000),
}
NEWS = ("newstest2015", "newstest2021.de-en", "newstest2021.en-de")
BOTH = (
    *("multi30k/test_2016_flickr", "tatoeba-deen/test", "europarl-doc/dev", "europarl-doc/test", "wmt-10k/train"),
    *(f"newstest/{name}" for name in NEWS),
    "alignment-deen/test",
)
ENGLISH = (
    *("charlm/books.test.txt", "charlm/tinyshakespeare.txt", "charlm/wikitext2.valid.raw", "tanaka-jaen/test.en"),
    *(
        f"{name}/dev.{part}"
        for name in ("dialogsum", "scitldr", "convosumm-email", "qmsum")
        for part in ("source", "summary")
    ),
)
TREEBANKS = {"en": ("ud/en_ewt-ud-dev", "ud/en_ewt-ud-test"), "de": ("ud/de_gsd-ud-dev", "ud/de_gsd-ud-test")}


def read(path: Path, most: int | None) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\n") for line in islice(lines, most)]


def texts(data: Path, language: str) -> Iterator[tuple[str, list[str]]]:
    """The first lines of texts of many domains."""
    names = [f"{name}.{language}" for name in BOTH] + list(ENGLISH if language == "en" else ())
    for name in names:
        yield name, read(data / f"{name}.gz", LINES)
    for name in TREEBANKS[language]:
        rows = read(data / f"{name}.conllu.gz", None)
        yield name, [row.removeprefix("# text = ") for row in rows if row.startswith("# text = ")][:LINES]


def names_and_numbers(data: Path, language: str) -> Iterator[tuple[str, list[str]]]:
    """Text that is in no language: names of a treebank, and numbers."""
    rows = [row.split("\t") for row in read(data / f"{TREEBANKS[language][1]}.conllu.gz", None)]
    yield "names", [row[1] for row in rows if len(row) == 10 and row[3] == "PROPN"]
    yield "numbers", [f"{7 * number % 1000}.{number % 12}.{1900 + number % 100}" for number in range(300)]


def learned(folder: Path, data: Path, corpus: str, size: int, shared: bool) -> tuple[TextSides, Tokenizers]:
    """The tokenizers and the sides of an English-German training text."""
    pair = [read(data / f"{corpus}.{language}.gz", TRAINED) for language in ("en", "de")]
    options = TokenizerSection(kind="unigram", vocabulary_size=size if shared else size // 2, shared=shared)
    if shared:
        both = train_tokenizer(options, [*pair[0], *pair[1]])
        tokenizers = Tokenizers(both, both, shared=True)
    else:
        tokenizers = Tokenizers(*(train_tokenizer(options, lines) for lines in pair), shared=False)
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    with DatasetWriter(folder, name="train", **sizes) as writer:
        sources, targets = tokenizers.source.encode_batch(pair[0]), tokenizers.target.encode_batch(pair[1])
        writer.append(sources, targets, range(len(sources)))
    return TextSides.of([CorpusCounts.of(Dataset(folder), tokenizers)], tokenizers), tokenizers


def count(sides: TextSides, tokenizers: Tokenizers, lines: list[str], *, swapped: bool, source: bool) -> SideTokens:
    """Read lines in the place of the source or target, where they belong or are swapped."""
    found = SideTokens(sides, tokenizers, "source" if source != swapped else "target")
    tokenizer = tokenizers.source if source != swapped else tokenizers.target
    for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        found.add(ids, line)
    return found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", TRAINING)
def test_swapped_sides_are_found_in_every_domain(tmp_path: Path, real_data: Path, name: str, shared: bool) -> None:
    sides, tokenizers = learned(tmp_path, real_data, *TRAINING[name], shared)
    print(
        f"\ntrained on {name}, {'shared vocabulary' if shared else 'two vocabularies'}: typical tokens "
        f"{len(sides.typical[0])} en and {len(sides.typical[1])} de, shares {sides.shares[0]:.2f} {sides.shares[1]:.2f}"
    )
    right, false, missed, chunks, alarms, found = 0, [], [], 0, 0, 0
    for language in ("en", "de"):
        for text, lines in texts(real_data, language):
            own = count(sides, tokenizers, lines, swapped=False, source=language == "en")
            other = count(sides, tokenizers, lines, swapped=True, source=language == "en")
            print(
                f"{language} {text:35} in place {own.parts[0]:.2f} {own.parts[1]:.2f}   "
                f"swapped {other.parts[0]:.2f} {other.parts[1]:.2f}"
            )
            right += 1
            false += [text] if own.like_other else []
            missed += [] if other.like_other else [text]
            for first in range(0, 200, 10):
                if part := lines[first : first + 10]:
                    chunks += 1
                    alarms += count(sides, tokenizers, part, swapped=False, source=language == "en").like_other
                    found += count(sides, tokenizers, part, swapped=True, source=language == "en").like_other
        for text, lines in names_and_numbers(real_data, language):
            for swapped in (False, True):
                assert not count(sides, tokenizers, lines, swapped=swapped, source=language == "en").like_other, text
    print(
        f"{right} texts: {len(false)} false alarms, {right - len(missed)} found when swapped; "
        f"{chunks} times 10 lines: {alarms} false alarms, {found} found"
    )
    assert right >= 30 and not false and not missed and not alarms
    assert found > 0.7 * chunks
