"""The source features, integers for each source token, that sparsity methods may ask for.

A feature is a class and one line in `FEATURES`. `prepare` fits its state on the training data, stores its values beside
the tokens, and saves its state, so that the same values can be computed for any later input. The features of
part-of-speech tags share one state, the `SourceTagger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.features.word_frequency import WordCoverage, WordRanks
from sparsenmt.data.tagging.source_tagger import SourceSentences, SourceTagger
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.errors import UserError


@dataclass(frozen=True)
class FeatureInputs:
    """What features are fitted and loaded with."""

    tokenizer: Tokenizer
    """The tokenizer of the source."""
    tagger: SourceTagger | None = None
    """None if no feature needs tags."""

    @property
    def required_tagger(self) -> SourceTagger:
        """The tagger; ValueError if there is none."""
        if self.tagger is None:
            raise ValueError("a feature of tags without a tagger")
        return self.tagger


class SourceFeature(Protocol):
    """One feature with its fitted state."""

    needs_text: bool
    """True if `compute` reads the text; otherwise the lines may be empty."""
    needs_tags: bool
    """True if `compute` reads part-of-speech tags, which it makes from the text unless they are given."""

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        """Learn the state from the training data."""
        ...

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        """Read what `save` wrote."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state, if there is any, into files named after the feature."""
        ...

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        """The (N,) values, not negative. The values of a sentence do not depend on other sentences."""
        ...


class WordId:
    """``word_id``: the index, from 0, of the word that a token belongs to; ``</s>`` is a word of its own."""

    needs_text = False
    needs_tags = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.keeps_word_boundaries:
            raise UserError(
                "the tokenizer of the source keeps no word boundaries: none of its tokens begins a word",
                where="data.tokenizer",
                hint="Choose another data.tokenizer.kind, or a method that works on tokens, not words.",
            )
        self._tokenizer = tokenizer

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(inputs.tokenizer)

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        return cls(inputs.tokenizer)

    def save(self, directory: Path) -> None:
        """There is no state."""

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return word_ids(sources.ids, self._tokenizer)


class FrequencyRank:
    """``frequency_rank``: the rank of a token's word by its frequency in the training sources.

    1 is the most frequent word. Unseen words, and words with an unknown token, have the number of known words + 1;
    ``</s>`` has 0. Words are defined in `word_frequency`: punctuation marks are words of their own.
    """

    needs_text = False
    needs_tags = False

    def __init__(self, ranks: WordRanks) -> None:
        self._ranks = ranks

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(WordRanks.fit(corpora, inputs.tokenizer))

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        return cls(WordRanks.load(directory / "frequency_rank.bin", inputs.tokenizer))

    def save(self, directory: Path) -> None:
        self._ranks.save(directory / "frequency_rank.bin")

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._ranks.ranks(sources.ids)


class FrequencyCoverage:
    """``frequency_coverage``: the share of running words in the training sources, in 1/10,000 and rounded down, that
    are the token's word or a more frequent one.

    Unseen words have 10,000, ``</s>`` has 0. Words are those of ``frequency_rank``; ``</s>`` is not counted.
    """

    needs_text = False
    needs_tags = False

    def __init__(self, coverage: WordCoverage) -> None:
        self._coverage = coverage

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(WordCoverage.fit(corpora, inputs.tokenizer))

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        return cls(WordCoverage.load(*cls._files(directory), inputs.tokenizer))

    def save(self, directory: Path) -> None:
        self._coverage.save(*self._files(directory))

    @staticmethod
    def _files(directory: Path) -> tuple[Path, Path]:
        return directory / "frequency_coverage.bin", directory / "frequency_coverage_counts.bin"

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._coverage.coverage(sources.ids)


class _TagFeature:
    """The common part of features of part-of-speech tags: their state is the feature set's `SourceTagger`."""

    needs_text = True
    needs_tags = True

    def __init__(self, tagger: SourceTagger) -> None:
        self._tagger = tagger

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(inputs.required_tagger)

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        return cls(inputs.required_tagger)

    def save(self, directory: Path) -> None:
        """The feature set saves the tagger once for all features."""


class PosCategory(_TagFeature):
    """``pos_category``: the `WordCategory` of a token's word, as a number. ``</s>`` has 0; a token without a word, such
    as the space symbol of a character tokenizer, has REST.
    """

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._tagger.token_tags(sources).categories


class LaterPiece(_TagFeature):
    """``later_piece``: 1 for the second and later tokens of a split word, 0 for all others, ``</s>`` too.

    Words are those of the tagger, or of the given tags: "dog." is two words, and its full stop a first token.
    """

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._tagger.token_tags(sources).later


FEATURES: dict[str, type[SourceFeature]] = {
    "word_id": WordId,
    "frequency_rank": FrequencyRank,
    "frequency_coverage": FrequencyCoverage,
    "pos_category": PosCategory,
    "later_piece": LaterPiece,
}
"""By name."""
