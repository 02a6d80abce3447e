"""Small corpora for tests of `sparsenmt.data`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparsenmt.data.text import write_lines
from sparsenmt.recipe import schema

SYLLABLES = ["ka", "lo", "mi", "ter", "sun", "ga", "re", "pol", "vi", "den"]


def invented_lines(count: int, seed: int = 0) -> list[str]:
    """Lines of invented words, of 1 to 12 words each."""
    generator = random.Random(seed)
    words = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 4))) for _ in range(200)]
    return [" ".join(generator.choices(words, k=generator.randint(1, 12))) for _ in range(count)]


@pytest.fixture
def lines() -> Callable[..., list[str]]:
    return invented_lines


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[..., schema.Data]:
    """Writes corpora and returns the data section of a recipe that names them."""

    def make(
        train: Sequence[tuple[Sequence[str], Sequence[str]]] | None = None,
        dev: tuple[Sequence[str], Sequence[str]] | None = None,
        *,
        weights: Sequence[float] | None = None,
        **options: object,
    ) -> schema.Data:
        train = train if train is not None else [(invented_lines(300), invented_lines(300, seed=1))]
        dev = dev if dev is not None else (invented_lines(20, seed=2), invented_lines(20, seed=3))

        def corpus(name: str, sides: tuple[Sequence[str], Sequence[str]], weight: float = 1.0) -> schema.Corpus:
            for side, text in zip("st", sides, strict=True):
                write_lines(tmp_path / f"{name}.{side}", text)
            return schema.Corpus(
                name=name, source=str(tmp_path / f"{name}.s"), target=str(tmp_path / f"{name}.t"), weight=weight
            )

        weights = weights or [1.0] * len(train)
        tokenizer = {"kind": "bpe", "vocabulary_size": 60, **options.pop("tokenizer", {})}  # type: ignore[dict-item]
        return schema.Data(
            directory=str(tmp_path / "prepared"),
            train=[corpus(f"train{number}", sides, weights[number]) for number, sides in enumerate(train)],
            dev=corpus("dev", dev),
            tokenizer=schema.TokenizerSection(**tokenizer),
            **options,  # type: ignore[arg-type]
        )

    return make
