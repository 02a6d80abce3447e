"""Source features: integers for each source piece, ``</s>`` included, that sparsity methods may ask for.

A feature is a class and one line in `_KINDS`. `prepare` fits its state on the training data, stores its values beside
the pieces, and saves its state, so that the same values can be computed for any later input. Features that are made
from part-of-speech tags share one state: which tagger there is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.alignment import word_ids
from sparsenmt.data.features.pos_features import LaterPiece, PosCategory
from sparsenmt.data.features.source_sentences import Sources
from sparsenmt.data.features.word_frequency import WordCoverage, WordRanks
from sparsenmt.data.store import Dataset
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.tagging import Tagging
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.files import read_json, write_json

_TAGGING = "tagging.json"


@dataclass(frozen=True)
class Tools:
    """What features are made with."""

    tokenizer: Tokenizer
    """The source's."""
    tagging: Tagging | None = None

    def tagging_or_fail(self) -> Tagging:
        """For features that need tags; ValueError if whoever made the tools forgot it."""
        if self.tagging is None:
            raise ValueError("a feature of tags, but no tagging")
        return self.tagging


class SourceFeature(Protocol):
    """One feature with its fitted state."""

    needs_text: bool
    """Whether `compute` looks at the lines; if not, it may be given empty ones."""
    needs_tags: bool
    """Whether `compute` looks at part-of-speech tags, which it makes from the lines where none are given."""

    @classmethod
    def fit(cls, tools: Tools, corpora: Sequence[Dataset]) -> Self:
        """Learn the state from the training data."""
        ...

    @classmethod
    def load(cls, directory: Path, tools: Tools) -> Self:
        """Read what `save` wrote."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state, if there is any, into files named after the feature."""
        ...

    def compute(self, sources: Sources) -> NDArray[np.int64]:
        """The (N,) values, not negative. A sentence's values do not depend on those beside it."""
        ...


class WordId:
    """``word_id``: the index, from 0, of the word that a piece belongs to; ``</s>`` is a word of its own."""

    needs_text = False
    needs_tags = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def fit(cls, tools: Tools, corpora: Sequence[Dataset]) -> WordId:
        return cls(_with_words(tools.tokenizer))

    @classmethod
    def load(cls, directory: Path, tools: Tools) -> WordId:
        return cls(_with_words(tools.tokenizer))

    def save(self, directory: Path) -> None:
        """There is no state."""

    def compute(self, sources: Sources) -> NDArray[np.int64]:
        return word_ids(sources.ids, self._tokenizer)


def _with_words(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer; UserError if all of a sentence would be one word to it."""
    if not tokenizer.keeps_word_boundaries:
        raise UserError(
            "the tokenizer of the source keeps no word boundaries: none of its pieces begins a word",
            where="data.tokenizer",
            hint="Take another data.tokenizer.kind, or a method that goes by pieces, not words.",
        )
    return tokenizer


class FrequencyRank:
    """``frequency_rank``: the rank of a piece's word by its frequency in the training sources.

    1 is the most frequent word; a word that was never seen, or that holds an unknown piece, has the number of known
    words + 1; ``</s>`` has 0. What a word is here, `word_frequency` says: punctuation marks are words of their own.
    """

    needs_text = False
    needs_tags = False

    def __init__(self, ranks: WordRanks) -> None:
        self._ranks = ranks

    @classmethod
    def fit(cls, tools: Tools, corpora: Sequence[Dataset]) -> FrequencyRank:
        return cls(WordRanks.fit(corpora, tools.tokenizer))

    @classmethod
    def load(cls, directory: Path, tools: Tools) -> FrequencyRank:
        return cls(WordRanks.load(directory / "frequency_rank.bin", tools.tokenizer))

    def save(self, directory: Path) -> None:
        self._ranks.save(directory / "frequency_rank.bin")

    def compute(self, sources: Sources) -> NDArray[np.int64]:
        return self._ranks.ranks(sources.ids)


class FrequencyCoverage:
    """``frequency_coverage``: the share of the words of the training sources, in 1/10,000 and rounded down, that are
    the piece's word or one that is more frequent.

    A word that was never seen has 10,000, ``</s>`` has 0. Words are those of ``frequency_rank``; ``</s>`` is none.
    """

    needs_text = False
    needs_tags = False

    def __init__(self, coverage: WordCoverage) -> None:
        self._coverage = coverage

    @classmethod
    def fit(cls, tools: Tools, corpora: Sequence[Dataset]) -> FrequencyCoverage:
        return cls(WordCoverage.fit(corpora, tools.tokenizer))

    @classmethod
    def load(cls, directory: Path, tools: Tools) -> FrequencyCoverage:
        return cls(WordCoverage.load(*_coverage_files(directory), tools.tokenizer))

    def save(self, directory: Path) -> None:
        self._coverage.save(*_coverage_files(directory))

    def compute(self, sources: Sources) -> NDArray[np.int64]:
        return self._coverage.coverage(sources.ids)


def _coverage_files(directory: Path) -> tuple[Path, Path]:
    return directory / "frequency_coverage.bin", directory / "frequency_coverage_counts.bin"


_KINDS: dict[str, type[SourceFeature]] = {
    "word_id": WordId,
    "frequency_rank": FrequencyRank,
    "frequency_coverage": FrequencyCoverage,
    "pos_category": PosCategory,
    "later_piece": LaterPiece,
}


class FeatureSet:
    """The features that a recipe's methods need, fitted.

    Args:
        tagging: how sources are tagged, if a feature needs it.
    """

    def __init__(self, features: Mapping[str, SourceFeature], tagging: Tagging | None = None) -> None:
        self._features = dict(features)
        self._tagging = tagging

    @classmethod
    def fit(
        cls,
        names: Collection[str],
        tokenizers: Tokenizers,
        corpora: Sequence[Dataset],
        tagging: Tagging | None = None,
    ) -> FeatureSet:
        """Fit features on the training data.

        Args:
            tagging: must be there if `need_tags` says so.

        Raises:
            UserError: a feature is unknown.
        """
        tools = Tools(tokenizers.source, tagging)
        return cls({name: _kind(name).fit(tools, corpora) for name in sorted(names)}, tagging)

    @classmethod
    def load(cls, directory: Path, tokenizers: Tokenizers) -> FeatureSet:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing, or a feature is unknown to this version.
        """
        directory = Path(directory)
        path = directory / "features.json"
        settings = read_json(path)
        if not isinstance(settings, dict) or not isinstance(settings.get("names"), list):
            raise UserError(
                "not a list of source features",
                where=str(path),
                hint="Take the directory from a copy, or make it again.",
            )
        names = settings["names"]
        tagging = Tagging.load(directory / _TAGGING, tokenizers.source) if need_tags(names) else None
        tools = Tools(tokenizers.source, tagging)
        return cls({name: _kind(name).load(directory, tools) for name in names}, tagging)

    def save(self, directory: Path) -> None:
        """Write the names and states into a directory, which is made if need be."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "features.json", {"names": list(self.names)})
        if self._tagging is not None:
            self._tagging.save(directory / _TAGGING)
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

    @property
    def tagging(self) -> Tagging | None:
        """How sources are tagged; None if no feature needs tags."""
        return self._tagging

    def compute(
        self, ids: Sequence[int] | NDArray[np.integer], line: str, tags: TaggedSentence | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """All features of one sentence.

        Args:
            ids: (S,) source ids, ended by EOS.
            line: the text they come from.
            tags: given beside the text; without them the tagger makes them, where a feature needs them.

        Returns:
            name -> (S,) values, not negative.

        Raises:
            UserError: tags are needed, none are given, and the tagger cannot be had.
        """
        return self.compute_all(np.asarray(ids, dtype=np.int64), [line], None if tags is None else [tags])

    def compute_all(
        self, ids: NDArray[np.int64], lines: Sequence[str], tags: Sequence[TaggedSentence] | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """All features of several sentences: as `compute`, with (N,) ids and values, one sentence after the other."""
        sources = Sources(ids, lines, tags)
        return {name: feature.compute(sources) for name, feature in self._features.items()}


def need_tags(names: Collection[str]) -> bool:
    """Whether any of these features is made from part-of-speech tags.

    Raises:
        UserError: a feature is unknown.
    """
    return any(_kind(name).needs_tags for name in names)


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
