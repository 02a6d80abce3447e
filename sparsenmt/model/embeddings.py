"""Token embeddings and position encodings.

Shapes: B sentences, T positions, D model dimension, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from sparsenmt.model.row_sums import look_up

PositionKind = Literal["sinusoidal", "learned", "none"]
Wavelengths = Literal["tensor2tensor", "paper"]


def sinusoids(length: int, dimension: int, wavelengths: Wavelengths = "tensor2tensor") -> Tensor:
    """(length, D) sines in the first half of the dimensions, cosines in the second (Vaswani et al. 2017, 3.5).

    Args:
        wavelengths: ``tensor2tensor``: from 2 pi to 10000 * 2 pi inclusive; ``paper``: 10000^(2i/D) * 2 pi. Sines and
            cosines are interleaved in the paper, here never.
    """
    half = (dimension + 1) // 2
    steps = max(half - 1, 1) if wavelengths == "tensor2tensor" else dimension / 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10000.0) / steps))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :dimension]


class Positions(nn.Module):
    """Encodings of absolute positions, learned or sinusoidal.

    Args:
        kind: ``sinusoidal`` grows on demand; ``learned`` ends at ``maximum``; ``none``: zeros.
        wavelengths, first: of sinusoids; see `sinusoids`, and the number of the first position.
    """

    def __init__(
        self,
        kind: PositionKind,
        dimension: int,
        maximum: int,
        *,
        wavelengths: Wavelengths = "tensor2tensor",
        first: int = 0,
    ) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = None
        self.none = kind == "none"
        self._dimension = dimension
        # In float64 and no buffer: rounded at use, so that every precision has the same function.
        self._wavelengths, self._first = wavelengths, first
        self._table = self._sinusoids(256)
        if kind == "learned":
            self.weight = nn.Parameter(torch.empty(maximum, dimension))
            nn.init.normal_(self.weight, std=dimension**-0.5)

    def _sinusoids(self, length: int) -> Tensor:
        return sinusoids(self._first + length, self._dimension, self._wavelengths)[self._first :]

    def forward(self, start: int | Tensor, length: int, like: Tensor, bound: int | None = None) -> Tensor:
        """Encodings of positions start, start + 1, ... with the dtype and device of ``like``.

        Args:
            start: one for all rows -> (length, D); or (B), one for each -> (B, length, D). Without encodings: a zero.
            bound: a number above all these positions; None: it is computed, which waits for a device.
        """
        if self.none:
            return like.new_zeros(())
        end = length + start if isinstance(start, int) else bound or length + int(start.max())
        table = self.table(end, like)
        if isinstance(start, int):
            return table[start:end].to(like.dtype)
        return table[start[:, None] + torch.arange(length, device=start.device)].to(like.dtype)

    def table(self, end: int, like: Tensor) -> Tensor:
        """Return (at least ``end``, D) encodings on the device of ``like``; ValueError if fewer were learned."""
        if self.weight is not None:
            if end > self.weight.shape[0]:
                raise ValueError(f"position {end - 1} is beyond the {self.weight.shape[0]} learned positions")
            return self.weight
        table = self._table  # another thread may replace it by another one
        if end > table.shape[0]:
            self._table = table = self._sinusoids(2 * end)
        if table.device != like.device:
            self._table = table = table.to(like.device)
        return table


class Tables(nn.ParameterDict):
    """The tables of token vectors, (V, D) each, by name."""

    def rows(self, key: str, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., D): rows of a table."""
        return look_up(tokens, self[key])


def keep_zero_start(vectors: Tensor) -> Tensor:
    """Stop the gradient of first vectors (B, T, D) that are zero.

    Marian begins every target with zeros. Its models stay its models in further training only if this start does.
    """
    first = vectors[:, :1]
    kept = torch.where(first.detach().any(dim=-1, keepdim=True), first, first.detach())
    return torch.cat([kept, vectors[:, 1:]], 1)


def embed(
    tokens: Tensor, table: Tensor, positions: Positions, start: int | Tensor = 0, *, scaled: bool = True
) -> Tensor:
    """tokens (B, T), table (V, D) -> (B, T, D): vectors, scaled by sqrt(D) or not, plus position encodings.

    start: the position of the first token, one for all rows or (B) one for each.
    """
    return add_positions(look_up(tokens, table), positions, start, scaled=scaled)


def add_positions(
    vectors: Tensor, positions: Positions, start: int | Tensor = 0, *, scaled: bool = True, bound: int | None = None
) -> Tensor:
    """Do as `embed` does with the vectors (B, T, D) of the tokens; ``bound``: as for `Positions`."""
    if scaled:
        vectors = vectors * math.sqrt(vectors.shape[2])
    encodings: Tensor = positions(start, vectors.shape[1], vectors, bound)
    return vectors + encodings
