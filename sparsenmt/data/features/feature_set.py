"""The fitted source features of a recipe: saved with prepared data and models, computed for every input."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.features.source_features import FEATURES, FeatureInputs, SourceFeature, file_of
from sparsenmt.data.tagging.source_tagger import SourceSentences, SourceTagger
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.errors import UserError
from sparsenmt.storage.files import invalid_file, read_json, write_json

_TAGGER = "tagging.json"
_MOST = 2**31 - 1  # values are stored in 32 bits


class FeatureSet:
    """The fitted features that a recipe's methods need.

    Args:
        source_tagger: required if a feature needs tags; see `need_tags`.
    """

    def __init__(self, features: Mapping[str, SourceFeature], source_tagger: SourceTagger | None = None) -> None:
        self._features = dict(features)
        self.source_tagger = source_tagger

    @classmethod
    def fit(
        cls,
        names: Collection[str],
        tokenizers: Tokenizers,
        corpora: Sequence[Dataset],
        source_tagger: SourceTagger | None = None,
    ) -> FeatureSet:
        """Fit features on the training data.

        Raises:
            UserError: a feature is unknown.
        """
        inputs = FeatureInputs(tokenizers.source, source_tagger)
        return cls({name: _feature_class(name).fit(inputs, corpora) for name in sorted(names)}, source_tagger)

    @classmethod
    def load(cls, directory: Path, tokenizers: Tokenizers) -> FeatureSet:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing, or a feature is unknown to this version.
        """
        path = Path(directory) / "features.json"
        settings = read_json(path)
        names = settings.get("names") if isinstance(settings, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise invalid_file(path, "not a list of source features")
        tagger = SourceTagger.load(path.with_name(_TAGGER), tokenizers.source) if need_tags(names) else None
        inputs = FeatureInputs(tokenizers.source, tagger)
        return cls({name: _feature_class(name).load(path.parent, inputs) for name in names}, tagger)

    def save(self, directory: Path) -> None:
        """Write the names and states into a directory, which is created if it is missing."""
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "features.json", {"names": list(self.names)})
        if self.source_tagger is not None:
            self.source_tagger.save(directory / _TAGGER)
        for feature in self._features.values():
            feature.save(directory)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features, sorted."""
        return tuple(self._features)

    @property
    def needs_text(self) -> bool:
        """True if a feature reads the text; otherwise the lines may be empty."""
        return any(feature.needs_text for feature in self._features.values())

    def compute(
        self, ids: Sequence[int] | NDArray[np.integer], line: str, tags: TaggedSentence | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Compute all features of one sentence.

        Args:
            ids: (S,) source ids, ended by EOS.
            line: the text of the sentence.
            tags: the given tags; None: the tagger makes them if a feature needs them.

        Returns:
            name -> (S,) values, not negative.

        Raises:
            UserError: tags are needed but not given, and the tagger is not available.
        """
        return self.compute_all(np.asarray(ids, dtype=np.int64), [line], None if tags is None else [tags])

    def compute_all(
        self, ids: NDArray[np.int64], lines: Sequence[str], tags: Sequence[TaggedSentence] | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Compute all features of several concatenated sentences: as `compute`, with (N,) ids and values."""
        sources = SourceSentences(ids, lines, tags)
        return {
            name: _checked(name, feature, feature.compute(sources), ids) for name, feature in self._features.items()
        }


def need_tags(names: Collection[str]) -> bool:
    """True if any of these features is made from part-of-speech tags.

    Raises:
        UserError: a feature is unknown.
    """
    return any([_feature_class(name).needs_tags for name in names])


def _checked(name: str, feature: SourceFeature, values: object, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of a feature; UserError if they are not one small integer for each token."""
    found = values if isinstance(values, np.ndarray) else np.empty(0)
    fits = found.shape == ids.shape and found.dtype.kind in "iu"
    if not fits or found.min(initial=0) < 0 or found.max(initial=0) > _MOST:
        kind = f"{found.dtype} {found.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise UserError(
            f"the source feature '{name}' gives {kind}, not {ids.shape} integers from 0 to {_MOST:,}",
            where=file_of(type(feature)),
            hint="Correct its `compute`: one number for each token, </s> included.",
        )
    return found.astype(np.int64, copy=False)


def _feature_class(name: str) -> type[SourceFeature]:
    try:
        return FEATURES[name]
    except KeyError:
        raise UserError(
            f"unknown source feature {name!r}",
            where="model",
            hint="Remove the method that reads it, or name the module that registers it in SPARSENMT_PLUGINS; known: "
            f"{', '.join(sorted(FEATURES))}.",
        ) from None
