"""Routing attention: heads in which queries attend to the keys of their cluster, beside heads with a local window.

Roy, Saffar, Vaswani and Grangier 2021, "Efficient Content-Based Sparse Attention with Routing Transformers", TACL,
section 4: queries and keys are normalised (a layer normalisation without parameters), and assigned to centroids, which
follow them by a moving average with decay 0.999.
Shapes: B rows, H heads, L of them local, R routed, Q queries, K keys, C centroids, W positions of a group, E head size.

The published selection (``assignment: balanced``) gives each centroid the K / C positions of the text that are nearest
to it. So later positions decide which keys an earlier query sees: a text cannot be decoded step by step by the same
function, and a language model may profit from the leak. With ``assignment: nearest`` every query and key belongs to the
centroid that is nearest to it, whatever the others are: this is exact, and the default.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from sparsenmt.model.sockets import ContentPattern, Groups, Keys
from sparsenmt.sparsity.patterns import check_self_attention
from sparsenmt.sparsity.registry import MethodPlace, Options, register


class RoutingOptions(Options):
    clusters: int = Field(16, ge=1, le=2**16, description="Number of centroids of a routed head.")
    local: int | list[int] = Field(
        4, description="Heads, the first ones, that have a local window instead; a list has one number for each layer."
    )
    window: int = Field(128, ge=1, le=2**20, description="Positions that a local head sees, the query's own included.")
    local_pattern: Literal["window", "blocks"] = Field(
        "window",
        description="`window`: the `window` positions up to the query; `blocks`, as in public code: the query's block "
        "of as many positions, and the block before.",
    )
    decay: float = Field(0.999, gt=0, lt=1, description="Decay of the moving average that the centroids follow.")
    assignment: Literal["nearest", "balanced"] = Field(
        "nearest",
        description="`nearest`: every position belongs to its nearest centroid; `balanced`, as published: every "
        "centroid takes its nearest positions, also later ones, so that the model cannot decode.",
    )

    younger = frozenset({"local_pattern"})


class Routing(ContentPattern):
    """The clusters of routed heads and the windows of local ones. The parameter ``centroids`` is (R, C, E)."""

    def __init__(self, local: int, routed: int, size: int, options: RoutingOptions, *, causal: bool) -> None:
        super().__init__()
        self.local, self.options, self.causal = local, options, causal
        self.least_keys = options.clusters
        first = F.normalize(torch.randn(routed, options.clusters, size), dim=-1)
        self.centroids = nn.Parameter(first, requires_grad=False)
        self._sums: Tensor | None = None  # (R, C, E + 1): of queries and keys, and their number

    def prepare(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._normalised(q), self._normalised(k)

    def _normalised(self, x: Tensor) -> Tensor:
        """Normalise the routed heads."""
        routed = F.layer_norm(x[:, self.local :], x.shape[-1:])
        return routed if not self.local else torch.cat([x[:, : self.local], routed], 1)

    def _similarity(self, x: Tensor) -> Tensor:
        """x (B, H, Q, E), prepared -> (B, R, Q, C), fp32 or wider: the cosine of the angle, times sqrt(E)."""
        routed = x[:, self.local :].detach()
        wide = routed.to(torch.promote_types(routed.dtype, torch.float32))
        return wide @ F.normalize(self.centroids, dim=-1).to(wide.dtype).transpose(-1, -2)

    def forward(self, q: Tensor, k: Tensor, keys: Keys) -> Tensor:
        own, other = self._similarity(q).argmax(-1), self._similarity(k).argmax(-1)  # (B, R, Q), (B, R, K)
        if self.training and not self.grouped:
            self._gather(q, own)
            self._gather(k, other)
        mask = own[..., :, None] == other[..., None, :]
        return torch.cat([self._windows(keys, len(mask)), mask], 1) if self.local else mask

    def _windows(self, keys: Keys, rows: int) -> Tensor:
        """(B, L, Q, K) bool."""
        window, queries, positions = self.options.window, keys.queries, keys.positions
        left, right = (window - 1, 0) if self.causal else (window // 2, (window - 1) // 2)
        if self.options.local_pattern == "blocks":  # count blocks in the place of positions
            queries, positions = queries // window, positions // window
            left, right = 1, 0 if self.causal else 1
        back = queries[:, None, :, None] - positions[:, None, None, :]
        return ((back <= left) & (back >= -right)).expand(rows, self.local, -1, -1)

    @torch.no_grad()
    def _gather(self, x: Tensor, cluster: Tensor) -> None:
        """Add the vectors x (B, H, Q, E) of the clusters (B, R, Q) to the pending sums."""
        vectors = x[:, self.local :].transpose(0, 1).flatten(1, 2).to(self.centroids.dtype)  # (R, B * Q, E)
        chosen = F.one_hot(cluster, self.options.clusters).transpose(0, 1).flatten(1, 2).to(vectors.dtype)
        sums = torch.cat([chosen.transpose(1, 2) @ vectors, chosen.sum(1)[..., None]], -1)
        self._sums = sums if self._sums is None else self._sums + sums

    def pending(self) -> list[Tensor]:
        if self._sums is None:  # a process without a batch in this update
            self._sums = self.centroids.new_zeros(*self.centroids.shape[:2], self.centroids.shape[2] + 1)
        return [self._sums]

    @torch.no_grad()
    def update(self) -> None:
        (sums,) = self.pending()
        means, counts = sums[..., :-1] / sums[..., -1:].clamp_min(1), sums[..., -1:]
        decay = self.options.decay
        moved = decay * self.centroids + (1 - decay) * F.normalize(means, dim=-1)
        self.centroids.copy_(torch.where(counts > 0, moved, self.centroids))
        self._sums = None

    def forget(self) -> None:
        self._sums = None


class BalancedRouting(Routing):
    """Each centroid's nearest positions of the whole text, as published."""

    grouped = True
    decodes = False

    def groups(self, q: Tensor, k: Tensor, keys: Keys) -> Groups | None:
        size = max(1, k.shape[2] // self.options.clusters)
        own, other = self._similarity(q), self._similarity(k)
        if self.training:
            self._gather(q, own.argmax(-1))
            self._gather(k, other.argmax(-1))
        hidden = ~keys.valid[:, None, :, None]
        chosen = [
            each.transpose(-1, -2).topk(min(size, each.shape[2]), -1).indices.sort(-1).values
            for each in (own, other.masked_fill(hidden, -torch.inf))
        ]
        return Groups(chosen[0], chosen[1])


@register(
    "pattern",
    "routing",
    options=RoutingOptions,
    per_step=True,
    examples=(
        {"clusters": 2, "local": 1, "window": 3},
        {"clusters": 3, "local": [0, 2], "window": 2},
        {"clusters": 2, "local": 2, "window": 4, "local_pattern": "blocks"},
    ),
    refuses=("cross",),
)
def build(options: RoutingOptions, *, site: str, heads: int, size: int, dimension: int, place: MethodPlace) -> Routing:
    check_self_attention(site)
    local = options.local
    if isinstance(local, list):
        if place.step >= len(local):
            raise ValueError(f"`local` has {len(local)} numbers, and there is a layer {place.step + 1}")
        local = local[place.step]
    if not 0 <= local <= heads:
        raise ValueError(f"there are {heads} heads, of which {local} cannot be local")
    made = BalancedRouting if options.assignment == "balanced" else Routing
    return made(local, heads - local, size, options, causal=site == "decoder_self")
