"""The source features, integers for each source token, that sparsity methods may ask for.

A feature is a class and one line in `FEATURES`. `prepare` fits its state on the training data, stores its values beside
the tokens, and saves its state, so that the same values can be computed for any later input. The features of
part-of-speech tags share one state, the `SourceTagger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

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
    """The tokenizer and the tagger that features need."""

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


class SourceFeature:
    """A source feature with its fitted state; this base class has no state."""

    needs_text = False
    """True if `compute` reads the text; otherwise the lines may be empty."""
    needs_tags = False
    """True if `compute` reads part-of-speech tags, which it makes from the text unless they are given."""

    def __init__(self, inputs: FeatureInputs) -> None:
        self._inputs = inputs

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        """Learn the state from the training data."""
        return cls(inputs)

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        """Read what `save` wrote."""
        return cls(inputs)

    def save(self, directory: Path) -> None:
        """Write the state, if there is any, into files named after the feature."""

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        """The (N,) values, not negative. The values of a sentence do not depend on other sentences."""
        raise NotImplementedError


class WordId(SourceFeature):
    """``word_id``: the index, from 0, of the word that a token belongs to; ``</s>`` is a word of its own."""

    def __init__(self, inputs: FeatureInputs) -> None:
        super().__init__(inputs)
        if not inputs.tokenizer.keeps_word_boundaries:
            raise UserError(
                "the tokenizer of the source keeps no word boundaries: none of its tokens begins a word",
                where="data.tokenizer",
                hint="Choose another data.tokenizer.kind, or a method that works on tokens, not words.",
            )

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return word_ids(sources.ids, self._inputs.tokenizer)


class FrequencyRank(SourceFeature):
    """``frequency_rank``: the rank of a token's word by its frequency in the training sources.

    1 is the most frequent word. Unseen words, and words with an unknown token, have the number of known words + 1;
    ``</s>`` has 0. Words are defined in `word_frequency`: punctuation marks are words of their own.
    """

    def __init__(self, inputs: FeatureInputs, ranks: WordRanks) -> None:
        super().__init__(inputs)
        self._ranks = ranks

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(inputs, WordRanks.fit(corpora, inputs.tokenizer))

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        return cls(inputs, WordRanks.load(directory / "frequency_rank.bin", inputs.tokenizer))

    def save(self, directory: Path) -> None:
        self._ranks.save(directory / "frequency_rank.bin")

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._ranks.ranks(sources.ids)


class FrequencyCoverage(SourceFeature):
    """``frequency_coverage``: the share of running words in the training sources, in 1/10,000 and rounded down, that
    are the token's word or a more frequent one.

    Unseen words have 10,000, ``</s>`` has 0. Words are those of ``frequency_rank``; ``</s>`` is not counted.
    """

    def __init__(self, inputs: FeatureInputs, coverage: WordCoverage) -> None:
        super().__init__(inputs)
        self._coverage = coverage

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(inputs, WordCoverage.fit(corpora, inputs.tokenizer))

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        return cls(inputs, WordCoverage.load(*cls._files(directory), inputs.tokenizer))

    def save(self, directory: Path) -> None:
        self._coverage.save(*self._files(directory))

    @staticmethod
    def _files(directory: Path) -> tuple[Path, Path]:
        return directory / "frequency_coverage.bin", directory / "frequency_coverage_counts.bin"

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._coverage.coverage(sources.ids)


class PosCategory(SourceFeature):
    """``pos_category``: the `WordCategory` of a token's word, as a number. ``</s>`` has 0; a token without a word, such
    as the space symbol of a character tokenizer, has REST.
    """

    needs_text = needs_tags = True

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._inputs.required_tagger.token_tags(sources).categories


class LaterPiece(SourceFeature):
    """``later_piece``: 1 for the second and later tokens of a split word, 0 for all others, ``</s>`` too.

    Words are those of the tagger, or of the given tags: "dog." is two words, and its full stop a first token.
    """

    needs_text = needs_tags = True

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._inputs.required_tagger.token_tags(sources).later


FEATURES: dict[str, type[SourceFeature]] = {
    "word_id": WordId,
    "frequency_rank": FrequencyRank,
    "frequency_coverage": FrequencyCoverage,
    "pos_category": PosCategory,
    "later_piece": LaterPiece,
}
"""By name."""
