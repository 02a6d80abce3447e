"""Parallel text of any size: sentences of invented words with frequencies by Zipf's law.

A vocabulary of a million words made of syllables; the target word for a source word is made of other syllables, so
that a model can learn the translation. Sentences have about 12 words. The same seed gives the same text.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

WORDS = 1_000_000
_EXPONENT = 1.05
_BLOCK = 50_000  # pairs made at once
_CONSONANTS, _VOWELS = "bdfghklmnprstvwz", "aeiou"


def vocabulary(first: str, rest: str) -> list[str]:
    """Return a million words; the frequent ones are short."""
    syllables = [a + b for a in first for b in rest]
    words = itertools.chain.from_iterable(map("".join, itertools.product(syllables, repeat=n)) for n in range(1, 5))
    return list(itertools.islice(words, WORDS))


def write_corpus(folder: Path, pairs: int, seed: int = 1) -> tuple[Path, Path]:
    """Write ``pairs`` pairs, unless they exist; returns both paths. The first lines are always the same."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{pairs}.source", folder / f"{pairs}.target"
    if all(path.exists() for path in paths):
        return paths
    source_words = vocabulary(_CONSONANTS, _VOWELS)
    target_words = vocabulary(_VOWELS, _CONSONANTS)
    mass = np.cumsum(np.arange(1, WORDS + 1, dtype=np.float64) ** -_EXPONENT)
    mass /= mass[-1]
    generator = np.random.default_rng(seed)
    partial = [path.with_suffix(path.suffix + ".partial") for path in paths]
    with open(partial[0], "wb") as source, open(partial[1], "wb") as target:
        for start in range(0, pairs, _BLOCK):
            lengths = generator.poisson(11, _BLOCK) + 1
            ids = np.searchsorted(mass, generator.random(int(lengths.sum()))).tolist()
            ends = np.cumsum(lengths).tolist()
            for first, last in itertools.pairwise([0, *ends][: min(_BLOCK, pairs - start) + 1]):
                sentence = ids[first:last]
                source.write((" ".join([source_words[i] for i in sentence]) + "\n").encode())
                target.write((" ".join([target_words[i] for i in sentence]) + "\n").encode())
    for written, path in zip(partial, paths, strict=True):
        written.replace(path)
    return paths
