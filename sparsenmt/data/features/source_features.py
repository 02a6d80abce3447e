"""The source features, integers for each source token, that sparsity methods may ask for.

A feature is a class with a name (`register_feature`), here or in a plugin. `prepare` fits its state on the training
data, stores its values beside the tokens, and saves its state, so that the same values can be computed for any later
input. The features of part-of-speech tags share one state, the `SourceTagger`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.features.word_frequency import WordRanks, count_words, rank_coverage
from sparsenmt.data.tagging.source_tagger import SourceSentences, SourceTagger
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.errors import UserError
from sparsenmt.plugins.failure import note_plugin
from sparsenmt.storage.files import invalid_file, write_bytes

_STORED = np.dtype("<u8")
_PLAIN = re.compile(r"[a-z][a-z0-9_]*")


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
    """A source feature with its fitted state: an array for each of `files`.

    Attributes:
        inputs: the source's tokenizer, and the tagger.
        state: the arrays.
    """

    needs_text = False
    """True if `compute` reads the text; otherwise the lines may be empty."""
    needs_tags = False
    """True if `compute` reads part-of-speech tags, which it makes from the text unless they are given."""
    files: tuple[str, ...] = ()
    """Names of the files of the state; they begin with the feature's name."""

    def __init__(self, inputs: FeatureInputs, *state: NDArray[np.uint64]) -> None:
        self.inputs, self.state = inputs, state

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        """Learn the state from the training data."""
        return cls(inputs)

    @classmethod
    def load(cls, directory: Path, inputs: FeatureInputs) -> Self:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing.
        """
        return cls(inputs, *(_read(directory / name) for name in cls.files))

    def save(self, directory: Path) -> None:
        """Write the state."""
        for name, numbers in zip(self.files, self.state, strict=True):
            write_bytes(directory / name, numbers.astype(_STORED).tobytes())

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        """The (N,) values, integers from 0 to 2^31 - 1. Those of a sentence do not depend on other sentences."""
        raise NotImplementedError


FEATURES: dict[str, type[SourceFeature]] = {}
"""By name."""
Feature = TypeVar("Feature", bound=type[SourceFeature])


def register_feature(name: str) -> Callable[[Feature], Feature]:
    """Decorate a class to register it as a source feature, which methods name in ``requires``.

    Raises:
        ValueError: another feature has this name, or the name or that of a file of the state is none for a file.
    """
    if not _PLAIN.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a source feature: small letters, digits and _")

    def add(feature: Feature) -> Feature:
        known = FEATURES.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (feature.__module__, feature.__qualname__):
            raise ValueError(f"source feature {name!r} is registered already, by {file_of(known) or 'this program'}")
        taken = {file for other, each in FEATURES.items() if other != name for file in each.files}
        for file in feature.files:
            if not _PLAIN.fullmatch(file.removesuffix(".bin")) or not file.startswith(name) or file in taken:
                raise ValueError(f"{file!r} is no file of source feature {name!r}: write {name}.bin or {name}_PART.bin")
        FEATURES[name] = feature
        if (place := file_of(feature)) is not None:
            note_plugin(f"the source feature '{name}'", feature.__module__, place)
        return feature

    return add


def file_of(feature: type[SourceFeature]) -> str | None:
    """The file of a feature from outside the package; None: it is one of the package."""
    module = feature.__module__
    return None if module == __name__ else getattr(sys.modules.get(module), "__file__", module)


@register_feature("word_id")
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
        return word_ids(sources.ids, self.inputs.tokenizer)


@register_feature("frequency_rank")
class FrequencyRank(SourceFeature):
    """``frequency_rank``: the rank of a token's word by its frequency in the training sources.

    1 is the most frequent word. Unseen words, and words with an unknown token, have the number of known words + 1;
    ``</s>`` has 0. Words are defined in `word_frequency`: punctuation marks are words of their own.
    """

    files: tuple[str, ...] = ("frequency_rank.bin",)

    def __init__(self, inputs: FeatureInputs, *state: NDArray[np.uint64]) -> None:
        super().__init__(inputs, *state)
        self._ranks = WordRanks(state[0], inputs.tokenizer)

    @classmethod
    def fit(cls, inputs: FeatureInputs, corpora: Sequence[Dataset]) -> Self:
        return cls(inputs, *count_words(corpora, inputs.tokenizer)[: len(cls.files)])

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self._ranks.ranks(sources.ids)


@register_feature("frequency_coverage")
class FrequencyCoverage(FrequencyRank):
    """``frequency_coverage``: the share of running words in the training sources, in 1/10,000 and rounded down, that
    are the token's word or a more frequent one.

    Unseen words have 10,000, ``</s>`` has 0. Words are those of ``frequency_rank``; ``</s>`` is not counted.
    """

    files = ("frequency_coverage.bin", "frequency_coverage_counts.bin")

    def __init__(self, inputs: FeatureInputs, *state: NDArray[np.uint64]) -> None:
        super().__init__(inputs, *state)
        self._coverage = rank_coverage(state[1])

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        coverage: NDArray[np.int64] = self._coverage[super().compute(sources)]
        return coverage


@register_feature("pos_category")
class PosCategory(SourceFeature):
    """``pos_category``: the `WordCategory` of a token's word, as a number. ``</s>`` has 0; a token without a word, such
    as the space symbol of a character tokenizer, has REST.
    """

    needs_text = needs_tags = True

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self.inputs.required_tagger.token_tags(sources).categories


@register_feature("later_piece")
class LaterPiece(SourceFeature):
    """``later_piece``: 1 for the second and later tokens of a split word, 0 for all others, ``</s>`` too.

    Words are those of the tagger, or of the given tags: "dog." is two words, and its full stop a first token.
    """

    needs_text = needs_tags = True

    def compute(self, sources: SourceSentences) -> NDArray[np.int64]:
        return self.inputs.required_tagger.token_tags(sources).later


def _read(path: Path) -> NDArray[np.uint64]:
    try:
        return np.fromfile(path, dtype=_STORED).astype(np.uint64)
    except OSError as error:
        raise invalid_file(path, f"cannot be read: {error.strerror}") from None
