"""Lines of text as sources for a model.

Shapes: B sentences, S source pieces, </s> included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sparsenmt.data.batching import pad
from sparsenmt.data.features import FeatureSet
from sparsenmt.data.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import EOS
from sparsenmt.model.interfaces import Source, TranslationModel


class ModelBundle(Protocol):
    """A model with what it takes to feed it: what `store.open_model` returns."""

    @property
    def model(self) -> TranslationModel: ...
    @property
    def tokenizers(self) -> Tokenizers: ...
    @property
    def features(self) -> FeatureSet: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class SourceLine:
    """One line of input."""

    number: int  # from 0
    text: str
    ids: list[int]  # pieces and EOS; EOS alone for a line of nothing but spaces
    cut: int = 0  # pieces that were too many for the model

    @property
    def empty(self) -> bool:
        return len(self.ids) == 1


def read_sources(bundle: ModelBundle, lines: Sequence[str], first: int = 0) -> list[SourceLine]:
    """Tokenize lines; those longer than the model's positions are cut, and say so; those of spaces alone are empty."""
    most = bundle.max_positions - 1
    result = []
    for offset, (text, ids) in enumerate(zip(lines, bundle.tokenizers.source.encode_batch(lines), strict=True)):
        if not text.strip(" "):  # to some tokenizers a space is a piece
            ids = []
        result.append(SourceLine(first + offset, text, [*ids[:most], EOS], max(len(ids) - most, 0)))
    return result


def make_source(bundle: ModelBundle, lines: Sequence[SourceLine]) -> Source:
    """A padded batch with its features."""
    tokens, valid = pad([line.ids for line in lines])
    computed = [bundle.features.compute(line.ids, line.text) for line in lines]
    features = {name: pad([row[name] for row in computed])[0].to(bundle.device) for name in bundle.features.names}
    return Source(tokens.to(bundle.device), valid.to(bundle.device), features)
