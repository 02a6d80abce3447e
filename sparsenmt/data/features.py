"""Source features: integers for each source piece, ``</s>`` included, that sparsity methods may ask for.

A feature is a class and one line in `_KINDS`. `prepare` fits its state on the training data, stores its values beside
the pieces, and saves its state, so that the same values can be computed for any later input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.alignment import word_ids
from sparsenmt.data.store import Dataset
from sparsenmt.data.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.word_frequency import WordRanks
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, write_json


class SourceFeature(Protocol):
    """One feature with its fitted state."""

    needs_text: bool
    """Whether `compute` looks at the lines; if not, it may be given empty ones."""

    @classmethod
    def fit(cls, tokenizer: Tokenizer, corpora: Sequence[Dataset]) -> Self:
        """Learn the state from the training data."""
        ...

    @classmethod
    def load(cls, directory: Path, tokenizer: Tokenizer) -> Self:
        """Read what `save` wrote."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state, if there is any, into files named after the feature."""
        ...

    def compute(self, ids: NDArray[np.int64], lines: Sequence[str]) -> NDArray[np.int64]:
        """The (N,) values, not negative, for (N,) ids of sentences that each end with EOS, and for their lines.

        A sentence's values do not depend on those beside it.
        """
        ...


class WordId:
    """``word_id``: the index, from 0, of the word that a piece belongs to; ``</s>`` is a word of its own."""

    needs_text = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def fit(cls, tokenizer: Tokenizer, corpora: Sequence[Dataset]) -> WordId:
        return cls(tokenizer)

    @classmethod
    def load(cls, directory: Path, tokenizer: Tokenizer) -> WordId:
        return cls(tokenizer)

    def save(self, directory: Path) -> None:
        """There is no state."""

    def compute(self, ids: NDArray[np.int64], lines: Sequence[str]) -> NDArray[np.int64]:
        return word_ids(ids, self._tokenizer)


class FrequencyRank:
    """``frequency_rank``: the rank of a piece's word by its frequency in the training sources.

    1 is the most frequent word; a word that was never seen, or that holds an unknown piece, has the number of known
    words + 1; ``</s>`` has 0. Words are what `alignment` says, so "dog" and "dog," are two.
    """

    needs_text = False

    def __init__(self, ranks: WordRanks) -> None:
        self._ranks = ranks

    @classmethod
    def fit(cls, tokenizer: Tokenizer, corpora: Sequence[Dataset]) -> FrequencyRank:
        return cls(WordRanks.fit(corpora, tokenizer))

    @classmethod
    def load(cls, directory: Path, tokenizer: Tokenizer) -> FrequencyRank:
        return cls(WordRanks.load(directory / "frequency_rank.bin", tokenizer))

    def save(self, directory: Path) -> None:
        self._ranks.save(directory / "frequency_rank.bin")

    def compute(self, ids: NDArray[np.int64], lines: Sequence[str]) -> NDArray[np.int64]:
        return self._ranks.ranks(ids)


_KINDS: dict[str, type[SourceFeature]] = {"word_id": WordId, "frequency_rank": FrequencyRank}


class FeatureSet:
    """The features that a recipe's methods need, fitted."""

    def __init__(self, features: Mapping[str, SourceFeature]) -> None:
        self._features = dict(features)

    @classmethod
    def fit(cls, names: Collection[str], tokenizers: Tokenizers, corpora: Sequence[Dataset]) -> FeatureSet:
        """Fit features on the training data.

        Raises:
            UserError: a feature is unknown.
        """
        return cls({name: _kind(name).fit(tokenizers.source, corpora) for name in sorted(names)})

    @classmethod
    def load(cls, directory: Path, tokenizers: Tokenizers) -> FeatureSet:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing, or a feature is unknown to this version.
        """
        path = Path(directory) / "features.json"
        settings = read_json(path)
        if not isinstance(settings, dict) or not isinstance(settings.get("names"), list):
            raise UserError(
                "not a list of source features",
                where=str(path),
                hint="Take the directory from a copy, or make it again.",
            )
        names = settings["names"]
        return cls({name: _kind(name).load(Path(directory), tokenizers.source) for name in names})

    def save(self, directory: Path) -> None:
        """Write the names and states into a directory, which is made if need be."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "features.json", {"names": list(self.names)})
        for feature in self._features.values():
            feature.save(directory)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, sorted."""
        return tuple(self._features)

    @property
    def needs_text(self) -> bool:
        """Whether the lines must be given; if not, empty ones will do."""
        return any(feature.needs_text for feature in self._features.values())

    def compute(self, ids: Sequence[int] | NDArray[np.integer], line: str) -> dict[str, NDArray[np.int64]]:
        """All features of one sentence.

        Args:
            ids: (S,) source ids, ended by EOS.
            line: the text they come from.

        Returns:
            name -> (S,) values, not negative.
        """
        return self.compute_all(np.asarray(ids, dtype=np.int64), [line])

    def compute_all(self, ids: NDArray[np.int64], lines: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """All features of several sentences: as `compute`, with (N,) ids and values, one sentence after the other."""
        return {name: feature.compute(ids, lines) for name, feature in self._features.items()}


def check_names(names: Collection[str]) -> None:
    """Refuse unknown features before any work is done.

    Raises:
        UserError: a feature is unknown.
    """
    for name in names:
        _kind(name)


def _kind(name: str) -> type[SourceFeature]:
    try:
        return _KINDS[name]
    except KeyError:
        raise UserError(
            f"unknown source feature {name!r}",
            where="model",
            hint=f"Leave out the method that reads it; this version knows: {', '.join(sorted(_KINDS))}.",
        ) from None
