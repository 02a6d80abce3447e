"""Self-attention in which queries and keys themselves decide what is seen: by a mask, or in groups of positions.

Shapes: B rows, H heads, L of them without groups, R = H - L with groups, Q queries, K keys, E head size, C groups of W
queries and U keys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sparsenmt.model.attend import attend_masked, restrict, weigh
from sparsenmt.model.dropout import dropout as drop_out
from sparsenmt.model.operators import PYTORCH, Operators, at_least_single
from sparsenmt.model.relative_attention import DistanceSockets, distance_weights
from sparsenmt.model.sockets import ContentPattern, Groups, Keys, Transform


def content_weights(
    q: Tensor, k: Tensor, keys: Keys, content: ContentPattern, sockets: DistanceSockets
) -> tuple[Tensor, Keys]:
    """q (B, H, Q, E), k (B, H, K, E), keys restricted -> weights (B, H, Q, K), and the keys that are seen."""
    q, k = content.prepare(q, k)
    groups, seen = content.groups(q, k, keys), content(q, k, keys)
    if groups is not None:
        grouped = _GroupedHeads(groups, keys)
        split = q.shape[1] - groups.queries.shape[1]
        own = replace(keys, allowed=keys.visible() & seen[:, :split])
        weights = weigh(q[:, :split], k[:, :split], own, sockets.transform)
        found, allowed = grouped.matrix(grouped.weights(q[:, split:], k[:, split:], sockets.transform), *seen.shape[2:])
        visible = own.visible().expand(len(q), split, -1, -1)
        return torch.cat([weights, found], 1), replace(keys, allowed=torch.cat([visible, allowed], 1))
    keys = replace(keys, allowed=keys.visible() & seen)
    if sockets.by_distance:
        return distance_weights(q, k, keys, sockets)
    return weigh(q, k, keys, sockets.transform), keys


def attend_by_content(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    content: ContentPattern,
    sockets: DistanceSockets,
    dropout: float,
    operators: Operators = PYTORCH,
) -> Tensor:
    """(B, H, Q, E). ``keys`` is not restricted yet."""
    keys, transform = restrict(keys, None, sockets.causal), sockets.transform
    q, k = content.prepare(q, k)
    groups, seen = content.groups(q, k, keys), content(q, k, keys)
    if groups is not None:
        split = q.shape[1] - groups.queries.shape[1]
        own = replace(keys, allowed=keys.visible() & seen[:, :split])
        local = attend_masked(q[:, :split], k[:, :split], v[:, :split], own, transform, dropout, operators)
        grouped = _GroupedHeads(groups, keys)
        weights = grouped.weights(q[:, split:], k[:, split:], transform).to(v.dtype)
        return torch.cat(
            [local, grouped.context(drop_out(weights, dropout, operators.drop), v[:, split:], q.shape[2])], 1
        )
    keys = replace(keys, allowed=keys.visible() & seen)
    if sockets.by_distance:
        weights, _ = distance_weights(q, k, keys, sockets, exact=False)
        return drop_out(weights.to(v.dtype), dropout, operators.drop) @ v
    return attend_masked(q, k, v, keys, transform, dropout, operators)


class _GroupedHeads:
    """Attention within groups: each query's output is the mean over its groups, zero if it is in none.

    Args:
        keys: restricted.
    """

    def __init__(self, groups: Groups, keys: Keys) -> None:
        self.groups = groups
        rows, heads, count, _ = groups.queries.shape
        visible = keys.visible().expand(rows, heads, -1, -1)
        pairs = groups.queries[..., :, None] * visible.shape[3] + groups.keys[..., None, :]  # (B, R, C, W, U)
        allowed = visible.flatten(2).gather(2, pairs.flatten(2)).view(pairs.shape)
        width, size = pairs.shape[3:]
        nowhere = torch.zeros(rows * count, 1, dtype=torch.long, device=pairs.device)
        self.allowed = allowed
        self.keys = Keys(  # a row for each group
            valid=torch.ones(1, 1, dtype=torch.bool, device=pairs.device).expand(rows * count, size),
            queries=nowhere.expand(-1, width),
            positions=nowhere.expand(-1, size),
            allowed=allowed.transpose(1, 2).flatten(0, 1),
        )

    def weights(self, q: Tensor, k: Tensor, transform: Transform) -> Tensor:
        """q (B, R, Q, E), k (B, R, K, E) -> (B, R, C, W, U)."""
        own, other = at_least_single(_chosen(q, self.groups.queries)), at_least_single(_chosen(k, self.groups.keys))
        scores = (own * q.shape[-1] ** -0.5) @ other.transpose(-1, -2)
        mass: Tensor = transform(scores.transpose(1, 2).flatten(0, 1), self.keys)
        split: Tensor = mass.unflatten(0, (len(q), -1))
        return split.transpose(1, 2)

    def _share(self, queries: int) -> Tensor:
        """(B, R, Q): one over the number of groups of each query."""
        index = self.groups.queries.flatten(2)
        counts = index.new_zeros(*index.shape[:2], queries).scatter_add(2, index, torch.ones_like(index))
        return 1.0 / counts.clamp_min(1)

    def context(self, weights: Tensor, v: Tensor, queries: int) -> Tensor:
        """weights (B, R, C, W, U), v (B, R, K, E) -> (B, R, Q, E)."""
        found = (weights @ _chosen(v, self.groups.keys)).flatten(2, 3)  # (B, R, C * W, E)
        index = self.groups.queries.flatten(2)[..., None].expand_as(found)
        total = found.new_zeros(*found.shape[:2], queries, found.shape[3]).scatter_add(2, index, found)
        return total * self._share(queries)[..., None].to(total.dtype)

    def matrix(self, weights: Tensor, queries: int, keys: int) -> tuple[Tensor, Tensor]:
        """weights (B, R, C, W, U) -> (B, R, Q, K) by positions, and which keys are seen (bool)."""
        pairs = (self.groups.queries[..., :, None] * keys + self.groups.keys[..., None, :]).flatten(2)
        shape = *weights.shape[:2], queries * keys
        total = weights.new_zeros(shape).scatter_add(2, pairs, weights.flatten(2)).unflatten(2, (queries, keys))
        seen = weights.new_zeros(shape).scatter_add(2, pairs, self.allowed.flatten(2).to(weights.dtype)) > 0
        return total * self._share(queries)[..., None].to(total.dtype), seen.unflatten(2, (queries, keys))


def _chosen(x: Tensor, index: Tensor) -> Tensor:
    """x (B, R, K, E), index (B, R, C, U) -> (B, R, C, U, E)."""
    flat = index.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])
    chosen: Tensor = x.gather(2, flat).unflatten(2, index.shape[2:])
    return chosen
