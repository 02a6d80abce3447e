"""Source features that are made from part-of-speech tags: see `sparsenmt.data.features.feature_set`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tagging.tagging import Tagging

if TYPE_CHECKING:
    from sparsenmt.data.features.feature_set import Tools
    from sparsenmt.data.features.source_sentences import Sources
    from sparsenmt.data.store import Dataset


class _OfTags:
    """What features of tags have in common: their state is the set's `Tagging`."""

    needs_text = True
    needs_tags = True

    def __init__(self, tagging: Tagging) -> None:
        self._tagging = tagging

    @classmethod
    def fit(cls, tools: Tools, corpora: Sequence[Dataset]) -> Self:
        return cls(tools.tagging_or_fail())

    @classmethod
    def load(cls, directory: Path, tools: Tools) -> Self:
        return cls(tools.tagging_or_fail())

    def save(self, directory: Path) -> None:
        """The choice of the tagger is saved once, for all features."""


class PosCategory(_OfTags):
    """``pos_category``: the `Category` of a piece's word, as a number. ``</s>`` has 0; a piece without a word, such as
    the space symbol of a character tokenizer, has REST.
    """

    def compute(self, sources: Sources) -> NDArray[np.int64]:
        return self._tagging.pieces(sources).categories


class LaterPiece(_OfTags):
    """``later_piece``: 1 for the second and later pieces of a split word, 0 for all others, ``</s>`` too.

    Words are those of the tagger, or of the tags given: "dog." is two, and its full stop a first piece.
    """

    def compute(self, sources: Sources) -> NDArray[np.int64]:
        return self._tagging.pieces(sources).later
