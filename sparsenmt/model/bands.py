"""Banded attention: blocks of queries against the band of keys within reach, and the first keys where all may see them.

Queries are the last of the keys: before them a language model has those of its memory.
Shapes: B rows, H heads, L queries, K keys, E head size; s a stride, n blocks of b queries, W keys of a band, G first
keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsenmt.model.sockets import Keys, Pattern

_NOWHERE = -(2**29)  # position of padding

# Measured with 8 heads of 64, forward and backward, on a CPU.
_BLOCKS = ((24, 16), (96, 32), (384, 64))  # (keys beyond the ends of a block, at most; fastest block size)
_LARGEST_BLOCK = 128
_HOLES = 64  # up to this number of keys beyond the ends, masking the gaps of a stride is cheaper than rearranging
_AT_ONCE = 30 * 2**20  # bytes of bands: larger allocations come from the system each time, page by page
_OVERHEAD = 48  # cost of copying to bands, in keys of a masked matrix


@dataclass(frozen=True)
class BandLayout:
    """The division of a sequence into bands.

    The sequence is divided into ``stride`` sequences of every stride-th position, and these into blocks of ``block``
    queries, whose bands extend ``left`` and ``right`` keys beyond the ends of the block. Beside its band, a block sees
    the ``first`` keys of the sequence; ``symmetric``: the queries at their positions see all keys.
    """

    stride: int
    left: int
    right: int
    block: int
    first: int = 0
    symmetric: bool = False

    @property
    def width(self) -> int:
        """Keys of a band."""
        return self.left + self.block + self.right

    @property
    def shortest(self) -> int:
        """The length from which on bands are faster than a masked matrix."""
        return self.stride * self.width + self.first * (1 + self.symmetric) + _OVERHEAD


def first_keys(pattern: Pattern | None) -> int:
    """The number of keys at the beginning that every query may see beside those within reach."""
    found: int = 0 if pattern is None or pattern.reach is None else getattr(pattern, "first", 0)
    return found


def band_layout(pattern: Pattern, causal: bool) -> BandLayout | None:
    """The bands of a pattern; None if it has no reach."""
    if pattern.reach is None:
        return None
    segment: int | None = getattr(pattern, "segment", None)
    first = first_keys(pattern)
    symmetric = first > 0 and not causal and getattr(pattern, "symmetric", True)
    if segment is not None:
        return BandLayout(1, 0, 0, segment * max(1, _BLOCKS[0][1] // segment), first, symmetric)
    left, right = pattern.reach[0], 0 if causal else pattern.reach[1]
    stride: int = getattr(pattern, "stride", 1) if left + right > _HOLES else 1
    left, right = left // stride, right // stride
    block = next((b for most, b in _BLOCKS if left + right <= most), _LARGEST_BLOCK)
    return BandLayout(stride, left, right, block, first, symmetric)


def heads_at_once(keys: Tensor, layout: BandLayout) -> int:
    """The number of heads to process at a time, so that memory for their gradients is reused."""
    heads = keys.shape[1]
    if keys.device.type != "cpu":
        return heads
    size = keys.numel() // heads * keys.element_size() * (layout.first + layout.width) // layout.block
    return -(-heads // max(1, -(-heads * size // _AT_ONCE)))


class _Overlapping(torch.autograd.Function):
    """(B, H, L, E) -> (B * n, H, W, E): overlapping views of one buffer that holds all rows.

    Bands at the ends of a row contain keys of its neighbours, which must be masked and so get no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: BandLayout) -> Tensor:
        rows, heads, length, size = x.shape
        n = -(-length // layout.block)
        ctx.layout, ctx.shape = layout, x.shape
        buffer = x.new_empty(layout.left + rows * n * layout.block + layout.right, heads, size)
        buffer[: layout.left] = 0
        buffer[buffer.shape[0] - layout.right :] = 0
        laid = buffer[layout.left : buffer.shape[0] - layout.right].view(rows, n * layout.block, heads, size)
        laid[:, :length] = x.transpose(1, 2)
        laid[:, length:] = 0
        strides = (layout.block * heads * size, size, heads * size, 1)
        return buffer.as_strided((rows * n, heads, layout.width, size), strides)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        layout, (rows, heads, length, size) = ctx.layout, ctx.shape
        blocks, b = gradient.shape[0], layout.block
        gradient = gradient.transpose(1, 2)  # (B * n, W, H, E)
        parts = -(-layout.width // b)
        total = gradient.new_empty(blocks + parts - 1, b, heads, size)
        total[:blocks] = gradient[:, :b]
        total[blocks:] = 0
        for part in range(1, parts):
            added = gradient[:, part * b : (part + 1) * b]
            total[part : part + blocks, : added.shape[1]] += added
        flat = total.flatten(0, 1)[layout.left : layout.left + blocks * b].view(rows, -1, heads, size)
        return flat[:, :length].transpose(1, 2), None


def overlapping(x: Tensor, layout: BandLayout, queries: int | None = None) -> Tensor:
    """x (B, H, K, E) -> its bands (B * n, H, W, E). Keys beyond the ends of a row must be masked.

    queries: number of queries L; None: K.
    """
    length = x.shape[2] if queries is None else queries
    if length == x.shape[2]:
        bands: Tensor = _Overlapping.apply(x, layout)  # type: ignore[no-untyped-call]
        return bands
    x = F.pad(x, (0, 0, *_padding(layout, length, x.shape[2])))
    return x.unfold(2, layout.width, layout.block).permute(0, 2, 1, 4, 3).flatten(0, 1)


def with_first(bands: Tensor, first: Tensor) -> Tensor:
    """bands (B * s * n, H, W, E), first keys (B, H, G, E) -> (B * s * n, H, G + W, E), the first before each band."""
    if not first.shape[2]:
        return bands
    by_row = bands.unflatten(0, (len(first), -1))
    return torch.cat([first[:, None].expand(-1, by_row.shape[1], -1, -1, -1), by_row], 3).flatten(0, 1)


def _padding(layout: BandLayout, queries: int, keys: int) -> tuple[int, int]:
    """The numbers of keys to add before the first and after the last; negative: keys are out of reach."""
    return layout.left - (keys - queries), layout.right + -queries % layout.block


def blocks(x: Tensor, layout: BandLayout) -> Tensor:
    """x (B, H, L, E) -> (B * n, H, b, E), padded with zeros."""
    tail = -x.shape[2] % layout.block
    x = (F.pad(x, (0, 0, 0, tail)) if tail else x).unflatten(2, (-1, layout.block))
    return x.transpose(1, 2).flatten(0, 1)


def joined(x: Tensor, rows: int, length: int) -> Tensor:
    """(B * n, H, b, E) -> (B, H, L, E), the inverse of `blocks`."""
    x = x.transpose(1, 2)
    return x.reshape(rows, -1, *x.shape[2:])[:, :length].transpose(1, 2)


def band_keys(keys: Keys, layout: BandLayout) -> Keys:
    """The keys of all (B * n) bands, a row for each."""
    rows, length = len(keys.valid), keys.queries.shape[1]
    tail = -length % layout.block
    n = (length + tail) // layout.block
    padding = _padding(layout, length, keys.valid.shape[1])

    def bands(x: Tensor, fill: int | bool) -> Tensor:  # (B, K) -> (B * n, W)
        x = F.pad(x.expand(rows, -1), padding, value=fill)
        return x.unfold(1, layout.width, layout.block).flatten(0, 1)

    queries = keys.queries.expand(rows, -1)
    if tail:  # repeat the last query, which is not fully masked
        queries = torch.cat([queries, queries[:, -1:].expand(-1, tail)], 1)
    return Keys(
        valid=bands(keys.valid, False),
        queries=queries.unflatten(1, (n, layout.block)).flatten(0, 1),
        positions=bands(keys.positions, _NOWHERE),
        features={name: feature.repeat_interleave(n, 0) for name, feature in keys.features.items()},
    )


def without_first(keys: Keys, first: int) -> Keys:
    """The keys of the bands: those that stand before each band are none of its own."""
    later = torch.arange(keys.valid.shape[1], device=keys.valid.device) >= first
    return replace(keys, valid=keys.valid & later) if first else keys


def add_first(band: Keys, keys: Keys, first: int) -> Keys:
    """The keys of all bands, after the first of the ``keys`` of B rows."""
    if not first:
        return band

    def before(x: Tensor, part: Tensor) -> Tensor:  # (B, K), (B * s * n, W) -> (B * s * n, G + W)
        ahead = x[:, None, :first].expand(-1, len(part) // len(x), -1).flatten(0, 1)
        return torch.cat([ahead, part], 1)

    return replace(band, valid=before(keys.valid, band.valid), positions=before(keys.positions, band.positions))


def classes(x: Tensor, stride: int) -> Tensor:
    """x (B, H, L, E) -> (B * s, H, ceil(L / s), E): every s-th position in a row of its own."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % stride)).unflatten(2, (-1, stride))
    return x.permute(0, 3, 1, 2, 4).flatten(0, 1)


def unclassed(x: Tensor, stride: int, length: int) -> Tensor:
    """(B * s, H, ceil(L / s), E) -> (B, H, L, E), the inverse of `classes`."""
    x = x.unflatten(0, (-1, stride)).permute(0, 2, 3, 1, 4)
    return x.flatten(2, 3)[:, :, :length]


def class_keys(keys: Keys, stride: int) -> Keys:
    """The keys of `classes`."""
    rows, length = keys.valid.shape
    tail = -length % stride

    def split(x: Tensor) -> Tensor:  # (B, L + tail) -> (B * s, (L + tail) / s)
        parts: Tensor = x.unflatten(1, (-1, stride))
        return parts.transpose(1, 2).flatten(0, 1)

    queries = keys.queries.expand(rows, -1)
    return Keys(
        valid=split(F.pad(keys.valid.expand(rows, -1), (0, tail), value=False)),
        queries=split(torch.cat([queries, queries[:, -1:].expand(-1, tail)], 1)),
        positions=split(F.pad(keys.positions.expand(rows, -1), (0, tail), value=_NOWHERE)),
        features={name: feature.repeat_interleave(stride, 0) for name, feature in keys.features.items()},
    )
