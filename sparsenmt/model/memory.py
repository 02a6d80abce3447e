"""The encoder's output as the decoder reads it.

Shapes: B sentences, S source positions, S' entries of a memory, D model dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """The states that the decoder gets from one depth of the encoder, or an encoder layer from the one below."""

    states: Tensor  # (B, S', D)
    valid: Tensor  # (B, S') bool
    positions: Tensor  # (B, S') absolute source positions; stand-ins -1
    counts: Tensor | None = None  # (B, S') how many positions an entry stands for; None: one each
    features: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B, S), uncompacted
    gates: Tensor | None = None  # (B, S) source positions: the last filter's, times those before it at its place
    gated: bool = False  # the states are scaled by `gates`: no layer has followed
    entries: Tensor | None = None  # (B, S) the entry that stands for each source position, -1: none; None: its own
    source: Tensor | None = None  # (B, S) bool: the real source positions; None: those that are valid
    unnormed: Tensor | None = None  # (B, S', D) for filters: `before_norm`; None: the states themselves

    @property
    def before_norm(self) -> Tensor:
        """(B, S', D) the states before the encoder's final normalisation, which makes all of about the same norm.

        Between encoder layers, and in an encoder without such a normalisation, they are `states`. Only filters read
        them; gates of filters before have scaled them as they did `states`.
        """
        return self.states if self.unnormed is None else self.unnormed

    def select(self, sentences: Tensor) -> Memory:
        """Keep only these sentences, in this order. sentences: (B',)."""

        def pick(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.index_select(0, sentences)

        return Memory(
            states=self.states.index_select(0, sentences),
            valid=self.valid.index_select(0, sentences),
            positions=self.positions.index_select(0, sentences),
            counts=pick(self.counts),
            features={name: value.index_select(0, sentences) for name, value in self.features.items()},
            gates=pick(self.gates),
            gated=self.gated,
            entries=pick(self.entries),
            source=pick(self.source),
        )

    def on_source(self, values: Tensor) -> Tensor:
        """(B, S') -> (B, S): the value of the entry that stands for each source position; 0 where none does."""
        if self.entries is None:
            return values
        return values.gather(1, self.entries.clamp_min(0)) * (self.entries >= 0)

    def source_mean(self, values: Tensor) -> Tensor:
        """(B, S') -> (B): the mean over the real source positions. What is masked counts as 0."""
        counts = self.valid.to(values.dtype) if self.counts is None else self.counts * self.valid
        positions = counts if self.source is None else self.source.to(values.dtype)
        return (values * counts).sum(1) / positions.sum(1).clamp_min(1)

    def open_entries(self) -> Tensor:
        """(B, S') bool: entries that the filters have left open; a stand-in is closed unless one opened it again."""
        if self.gates is None or self.entries is None:
            return self.valid if self.gates is None else self.gates != 0
        opened = (self.gates != 0) & (self.entries >= 0)
        return torch.zeros_like(self.positions).scatter_add(1, self.entries.clamp_min(0), opened.long()) > 0

    def written_counts(self) -> Tensor:
        """(B, S') `counts`, of ones where it is None."""
        wide = torch.promote_types(self.states.dtype, torch.float32)
        return self.valid.to(wide) if self.counts is None else self.counts

    def written_entries(self) -> Tensor:
        """(B, S) `entries`, the positions themselves where it is None, as nothing was dropped."""
        return torch.where(self.valid, self.positions, -1) if self.entries is None else self.entries

    @staticmethod
    def concatenate(memories: Sequence[Memory]) -> Memory:
        """Concatenate the sentences of several memories of one model; narrower ones are padded on the right."""
        counted = any(each.counts is not None for each in memories)
        entered = any(each.entries is not None for each in memories)
        gates = [each.gates for each in memories if each.gates is not None]
        source = [each.source for each in memories if each.source is not None]
        return Memory(
            states=_concatenate_padded([each.states for each in memories]),
            valid=_concatenate_padded([each.valid for each in memories]),
            positions=_concatenate_padded([each.positions for each in memories]),
            counts=_concatenate_padded([each.written_counts() for each in memories]) if counted else None,
            features={
                name: _concatenate_padded([each.features[name] for each in memories]) for name in memories[0].features
            },
            gates=_concatenate_padded(gates) if len(gates) == len(memories) else None,
            gated=all(each.gated for each in memories),
            entries=_concatenate_padded([each.written_entries() for each in memories], fill=-1) if entered else None,
            source=_concatenate_padded(source) if len(source) == len(memories) else None,
        )


def _concatenate_padded(tensors: Sequence[Tensor], fill: int = 0) -> Tensor:
    """Concatenate tensors (B, n, ...) along B, with n padded to the largest."""
    size = max(each.shape[1] for each in tensors)
    tails = [(0, 0) * (each.dim() - 2) + (0, size - each.shape[1]) for each in tensors]
    return torch.cat([F.pad(each, tail, value=fill) for each, tail in zip(tensors, tails, strict=True)])
