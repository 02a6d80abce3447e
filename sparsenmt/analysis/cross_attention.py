"""Cross-attention of a model over its own translations, averaged over heads and layers.

Nothing is compacted, so that every source position has its own column. Positions whose gate is 0 all hold the same zero
vector and share what one counted stand-in would get: their mass together is the stand-in's.
Shapes: B sentences, H heads, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.analysis.gates import GatedLine, encoded_batches, row_gates
from sparsenmt.data.batching import pad
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, not_numbers
from sparsenmt.model.interfaces import AttentionSeen


@dataclass(frozen=True)
class Output:
    """The target that is read along one source line."""

    tokens: Sequence[int]
    """Pieces, without EOS."""
    ended: bool = True
    """Whether EOS follows them; a translation that was cut at the maximum length has none."""

    @property
    def ids(self) -> list[int]:
        """All target positions."""
        return [*self.tokens, EOS] if self.ended else list(self.tokens)


@dataclass(frozen=True)
class AttentionMap:
    """One sentence."""

    source: GatedLine
    target: list[int]
    """(T,) pieces that were predicted, EOS included if there was one."""
    weights: NDArray[np.float64]
    """(T, S) mean over heads and layers; a row sums to 1 unless the transform says otherwise."""


class MeanCrossAttention:
    """An observer (`TranslationModel.listen`) that averages cross-attention over heads and layers.

    Args:
        layer: only this decoder layer, from 1; None: all.
    """

    def __init__(self, layer: int | None = None) -> None:
        self._layer = layer
        self._sum: Tensor | None = None
        self._layers = 0

    def __call__(self, seen: AttentionSeen) -> None:
        if seen.site != "cross" or self._layer not in (None, seen.step + 1):
            return
        mean = seen.weights.mean(1).double()
        self._sum = mean if self._sum is None else self._sum + mean
        self._layers += 1

    def mean(self) -> Tensor:
        """(B, T, S) of everything heard."""
        assert self._sum is not None, "no cross-attention was heard"
        return self._sum / self._layers


@torch.inference_mode()
def attention_maps(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    outputs: Sequence[Output],
    *,
    layer: int | None = None,
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, AttentionMap]]:
    """Read the outputs along their sources; one map a sentence, with its place in ``lines``, batch after batch.

    Args:
        batch_tokens: sentences times the longest source of a batch, at most.
        advance: told the number of sentences that each batch finished.

    Raises:
        UserError: a batch needs more memory than there is, or the model's scores are not numbers.
    """
    for chosen, _, memory in encoded_batches(bundle, lines, batch_tokens=batch_tokens, advance=advance):
        targets = [outputs[i].ids for i in chosen]
        inputs, _ = pad([[BOS, *target[:-1]] for target in targets])
        observer = MeanCrossAttention(layer)
        with bundle.model.listen(observer):
            bundle.model.decode(inputs.to(bundle.device), memory)
        weights = observer.mean().cpu().numpy()
        for row, (i, target) in enumerate(zip(chosen, targets, strict=True)):
            length = len(lines[i].ids)
            own = weights[row, : len(target), :length]
            if not np.isfinite(own).all():
                raise not_numbers(lines[i])
            yield i, AttentionMap(GatedLine(lines[i], row_gates(memory, row, length)), target, own)
