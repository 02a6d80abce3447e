"""Attention maps: what queries look at in every sentence, averaged over heads and layers, or each for itself.

Nothing is compacted, so that every source position has its own column. Positions whose gate is 0 all hold the same zero
vector and share what one counted stand-in would get: their mass together is the stand-in's.
Shapes: B sentences, H heads, S source positions, T target positions, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.analysis.gates import GatedLine, encoded_batches, row_gates
from sparsenmt.analysis.observe import Attended, Output
from sparsenmt.data.batching import pad
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, not_finite
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sites import SiteName


@dataclass(frozen=True)
class AttentionMap:
    """Cross-attention of one sentence."""

    source: GatedLine
    target: list[int]
    """(T,) pieces that were predicted, EOS included if there was one."""
    weights: NDArray[np.float64]
    """(T, S) mean over heads and layers; a row sums to 1 unless the transform says otherwise."""


class MeanCrossAttention:
    """An observer (`TranslationModel.listen`) that averages cross-attention over heads and layers."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._layers = 0

    def __call__(self, seen: AttentionSeen) -> None:
        if seen.site != "cross":
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
        inputs, _ = pad([outputs[i].inputs for i in chosen])
        observer = MeanCrossAttention()
        with bundle.model.listen(observer):
            bundle.model.decode(inputs.to(bundle.device), memory)
        weights = observer.mean().cpu().numpy()
        for row, (i, target) in enumerate(zip(chosen, targets, strict=True)):
            length = len(lines[i].ids)
            own = weights[row, : len(target), :length]
            if not np.isfinite(own).all():
                raise not_finite(lines[i])
            yield i, AttentionMap(GatedLine(lines[i], row_gates(memory, row, length)), target, own)


@dataclass(frozen=True)
class Pick:
    """Which attention is to be seen.

    Args:
        layers: from 1; empty: all.
        heads: from 1; empty: all.
        apart: every head of every layer for itself; otherwise their mean.
    """

    site: SiteName = "cross"
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    apart: bool = False


Part = tuple[int, int] | None
"""Layer and head, from 1; None: the mean of those that were picked."""


class PickedAttention:
    """An observer (`observe.observe`) that keeps the maps of a few sentences."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self._sums: dict[tuple[int, Part], tuple[int, Tensor]] = {}

    def __call__(self, seen: Attended) -> None:
        pick = self._pick
        if seen.site != pick.site or (pick.layers and seen.layer not in pick.layers):
            return
        heads = pick.heads or tuple(range(1, seen.weights.shape[1] + 1))
        for head in heads:
            part = (seen.layer, head) if pick.apart else None
            weights = seen.weights[:, head - 1].double()
            for row, place in enumerate(seen.places):
                count, total = self._sums.get((place, part), (0, torch.zeros_like(weights[row])))
                self._sums[place, part] = count + 1, total + weights[row]

    def parts(self) -> list[Part]:
        """What there is of every sentence, in order."""
        return sorted({part for _, part in self._sums}, key=lambda part: part or (0, 0))

    def weights(self, place: int, part: Part, queries: int, keys: int) -> NDArray[np.float64]:
        """(Q, K) of a sentence with so many queries and keys."""
        count, total = self._sums[place, part]
        found: NDArray[np.float64] = (total[:queries, :keys] / count).cpu().numpy()
        return found
