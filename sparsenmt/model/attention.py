"""Multi-head attention with sockets: projections here, the attention function in `attend`.

Shapes: B rows, H heads = G fixed + L learned, Q queries, K keys, D model dimension, E head size, S slots, N rows of a
search.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.attend import (
    AttentionMask,
    attend_banded,
    attend_fused,
    attend_masked,
    memory_mask,
    restrict,
    weigh,
)
from sparsenmt.model.bands import band_layout, first_keys
from sparsenmt.model.content_attention import attend_by_content, content_weights
from sparsenmt.model.linear import Linear
from sparsenmt.model.operators import PYTORCH, Operators, at_least_single
from sparsenmt.model.protocol import AttentionListener, AttentionSeen
from sparsenmt.model.relative_attention import DistanceSockets, attend_by_distance, distance_weights
from sparsenmt.model.sites import SiteName
from sparsenmt.model.sockets import ContentPattern, FixedHeads, Keys, Pattern, ScoreTerm, SoftmaxKernel, Span, Transform
from sparsenmt.process.devices import may_hold


@dataclass(frozen=True)
class KeysValues:
    """Projected keys and values."""

    keys: Tensor | None  # (B, L, K, E); None if no head is learned
    values: Tensor  # (B, H, K, E)
    transposed: bool = False
    """True if keys are stored as (B, L, E, K), which products with few queries read faster on a CPU."""

    def select(self, rows: Tensor) -> KeysValues:
        """Keep only these rows, in this order."""
        values = self.values.index_select(0, rows)
        if self.keys is None or not self.transposed:
            return KeysValues(None if self.keys is None else self.keys.index_select(0, rows), values)
        return KeysValues(self.keys.transpose(-1, -2).index_select(0, rows).transpose(-1, -2), values, True)

    def pad(self, length: int) -> KeysValues:
        """Append zeros up to ``length`` keys; the layout in memory stays."""
        missing = length - self.values.shape[2]
        if not missing:
            return self
        values, keys = F.pad(self.values, (0, 0, 0, missing)), self.keys
        if keys is not None and self.transposed:
            keys = F.pad(keys.transpose(-1, -2), (0, missing)).transpose(-1, -2)
        elif keys is not None:
            keys = F.pad(keys, (0, 0, 0, missing))
        return KeysValues(keys, values, self.transposed)

    @staticmethod
    def concatenate(parts: Sequence[KeysValues]) -> KeysValues:
        """Concatenate the rows of parts with the same layout, padded to the longest."""
        length, transposed = max(part.values.shape[2] for part in parts), parts[0].transposed
        padded = [part.pad(length) for part in parts]
        values = torch.cat([part.values for part in padded])
        keys = [part.keys.transpose(-1, -2) if transposed else part.keys for part in padded if part.keys is not None]
        if not keys:
            return KeysValues(None, values)
        return KeysValues(torch.cat(keys).transpose(-1, -2) if transposed else torch.cat(keys), values, transposed)


@dataclass(frozen=True)
class SlottedKeysValues:
    """Keys and values of N rows where they were written: those of row n at position t are in slot ``slots[n, t]``."""

    keys: Tensor | None  # (K, S, L, E); None if no head is learned
    values: Tensor  # (K, S, H, E)
    slots: Tensor  # (N, K) int32
    identity: bool  # row n is in slot n everywhere
    places: Callable[[], Tensor]
    """Computes (N * K) the places of all rows' positions in the first two axes of ``values``, flattened."""
    first: Tensor | None = None
    """(2, N, H, G, E) keys and values of positions 0 to G - 1, row by row; None: no others were dropped."""

    @property
    def first_length(self) -> int:
        """G."""
        return 0 if self.first is None else self.first.shape[3]

    @property
    def length(self) -> int:
        """G + K."""
        return self.first_length + self.values.shape[0]

    def select(self, rows: Tensor) -> SlottedKeysValues:
        """Those of these rows (numbers), in this order."""
        slots, first = self.slots.index_select(0, rows), self.first
        places = slots + torch.arange(slots.shape[1], device=slots.device) * self.values.shape[1]
        first = None if first is None else first.index_select(1, rows)
        return SlottedKeysValues(self.keys, self.values, slots, False, places.flatten, first)

    def gather(self) -> KeysValues:
        """Gather keys and values row by row, the first ones first: a copy, or a view where the slots are in order."""
        found = self._gather()
        if self.first is None or found.keys is None:
            return found
        keys, values = self.first
        return KeysValues(torch.cat([keys, found.keys], 2), torch.cat([values, found.values], 2))

    def _gather(self) -> KeysValues:
        if self.identity:
            rows = self.slots.shape[0]
            keys = None if self.keys is None else self.keys[:, :rows].permute(1, 2, 0, 3)
            return KeysValues(keys, self.values[:, :rows].permute(1, 2, 0, 3))
        index = self.places()

        def pick(x: Tensor) -> Tensor:
            """(K, S, H, E) -> (N, H, K, E)."""
            picked: Tensor = x.flatten(0, 1).index_select(0, index).unflatten(0, self.slots.shape)
            return picked.transpose(1, 2)

        return KeysValues(None if self.keys is None else pick(self.keys), pick(self.values))


class HeadRecorder:
    """The scores of one learned head of a step, with their gradient, and the weights that its transform makes of them.

    Args:
        head: its number among the learned heads, from 0.
    """

    def __init__(self, head: int) -> None:
        self._head = head
        self._last: tuple[Tensor, Tensor, Tensor] | None = None

    def record(self, q: Tensor, k: Tensor, keys: Keys, transform: Transform) -> None:
        """Keep the scores of queries q (B, L, Q, E) and keys k (B, L, K, E); ``keys`` must be restricted."""
        seen = keys.visible()
        own, other = at_least_single(q[:, self._head]), at_least_single(k[:, self._head])
        with torch.no_grad():
            weights = weigh(q, k, keys, transform)[:, self._head]
        scores = own @ other.transpose(1, 2) * q.shape[-1] ** -0.5
        # A pattern may decide for each head.
        self._last = scores, weights, seen[:, min(self._head, seen.shape[1] - 1)].expand_as(scores)

    def take(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return what `protocol.RecordedHead` says of the last forward pass, and forget it; None: it had none."""
        last, self._last = self._last, None
        return last


class AttentionStep(nn.Module):
    """The sockets of one site at one execution step. Steps may share layers, but never sockets."""

    def __init__(
        self,
        site: SiteName,
        step: int,
        *,
        transform: Transform,
        pattern: Pattern | None,
        listeners: list[AttentionListener],
        disabled: Collection[int] = (),
        position: ScoreTerm | None = None,
        span: Span | None = None,
        content: ContentPattern | None = None,
    ) -> None:
        super().__init__()
        self.site: SiteName = site
        self.step = step
        self.transform = transform
        self.pattern = pattern
        self.position = position
        self.span = span
        self.content = content
        self.causal = site == "decoder_self"
        self.disabled = frozenset(disabled)  # numbers, from 1, of heads whose output is zero
        self.banded = True  # compute in bands where the pattern has a reach and that is faster
        self._listeners = listeners
        self.recorder: HeadRecorder | None = None
        """Keeps the scores of a head in training; None: no loss depends on them."""

    @property
    def observed(self) -> bool:
        return bool(self._listeners)

    @property
    def fused(self) -> bool:
        """True if learned heads take the fused route."""
        return self.pattern is None and self.transform.fusable and not self.special

    @property
    def special(self) -> bool:
        """True if more than positions, causality and a transform of scores decides."""
        return self.by_distance or self.content is not None

    @property
    def by_distance(self) -> bool:
        """True if scores or weights depend on distances."""
        return self.position is not None or self.span is not None

    @property
    def distance_sockets(self) -> DistanceSockets:
        """The sockets of `relative_attention`."""
        return DistanceSockets(self.transform, self.pattern, self.position, self.span, self.causal, self.banded)

    @property
    def first(self) -> int:
        """The number of keys at the beginning that every query may see beside those within `reach`."""
        return 0 if self.by_distance else first_keys(self.pattern)

    @property
    def reach(self) -> int | None:
        """The largest distance to the left at which a key is seen, but for the first ones; None: no bound."""
        if self.first and self.pattern is not None and self.pattern.reach is not None:
            return self.pattern.reach[0]
        found = self.distance_sockets.reach
        return None if found is None else found[0]

    @property
    def softmax_kernel(self) -> SoftmaxKernel | None:
        """The kernel that computes a decoding step of learned heads; None: there is none."""
        computable = self.pattern is None and not self.transform.position_dependent and not self.special
        return self.transform.softmax_kernel() if computable else None

    def memory_mask(self, keys: Keys, dtype: torch.dtype) -> AttentionMask | None:
        """The mask of every attention to one memory, if all queries can share one; see `attend_fused`."""
        shared = self.fused or self.softmax_kernel is not None
        return memory_mask(keys, self.transform, dtype) if shared else None

    def without_disabled(self, x: Tensor, dim: int) -> Tensor:
        """``x`` with zeros for disabled heads; ``dim`` is the axis of the heads."""
        if not self.disabled:
            return x
        return x.index_fill(dim, torch.tensor([head - 1 for head in sorted(self.disabled)], device=x.device), 0.0)

    def tell(self, weights: Tensor, keys: Keys) -> None:
        for listener in self._listeners:
            listener(AttentionSeen(self.site, self.step, weights, keys, self.transform.normalised))


def record_cross_head(modules: Iterable[nn.Module], layer: int, head: int) -> HeadRecorder:
    """Record a learned head of cross-attention in training.

    Args:
        modules: of a model.
        layer: the execution step, from 1.
        head: its number among the learned heads, from 0.
    """
    steps = [each for each in modules if isinstance(each, AttentionStep) and each.site == "cross"]
    (step,) = (each for each in steps if each.step == layer - 1)
    step.recorder = HeadRecorder(head)
    return step.recorder


class MultiHeadAttention(nn.Module):
    """Fixed heads first, then learned ones; only learned heads have query and key projections."""

    operators: Operators = PYTORCH

    def __init__(
        self, dimension: int, heads: int, size: int, *, fixed: FixedHeads | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fixed = fixed
        self.head_size = size
        self.fixed_heads = 0 if fixed is None else fixed.heads
        self.learned_heads = heads - self.fixed_heads
        self.dropout = dropout
        inner = heads * self.head_size
        if self.learned_heads:
            self.q = Linear(dimension, self.learned_heads * self.head_size)
            self.k = Linear(dimension, self.learned_heads * self.head_size)
        self.v = Linear(dimension, inner)
        self.o = Linear(inner, dimension)

    def split(self, x: Tensor) -> Tensor:
        """(B, K, heads * E) -> (B, heads, K, E)."""
        split: Tensor = x.unflatten(-1, (-1, self.head_size))
        return split.transpose(1, 2)

    def project_keys_values(self, x: Tensor, *, transposed: bool = False) -> KeysValues:
        """Project x (B, K, D).

        transposed: the keys may be stored as plain products with few queries read them faster.
        """
        return KeysValues(self.split(self.k(x)) if self.learned_heads else None, self.split(self.v(x)))

    def project_all(self, x: Tensor) -> tuple[Tensor | None, KeysValues]:
        """x (B, K, D) -> queries (B, L, K, E), keys and values, for self-attention."""
        return self.project_queries(x), self.project_keys_values(x)

    def project_queries(self, x: Tensor) -> Tensor | None:
        """x (B, Q, D) -> (B, L, Q, E)."""
        return self.split(self.q(x)) if self.learned_heads else None

    def forward(
        self,
        q: Tensor | None,
        kv: KeysValues | SlottedKeysValues,
        keys: Keys,
        step: AttentionStep,
        mask: AttentionMask | None = None,
    ) -> Tensor:
        """q (B, L, Q, E), kv (B, heads, K, E) -> (B, Q, D).

        ``keys.allowed`` is None if only causality and the pattern hide keys. ``mask`` is that of
        `AttentionStep.memory_mask`, made once a memory rather than once a step.
        """
        if isinstance(kv, SlottedKeysValues):
            kv = kv.gather()
        contexts = []
        fixed_values, values = self._split_values(kv.values)
        if self.fixed is not None:
            contexts.append(self.fixed(fixed_values, keys))
        if q is not None and kv.keys is not None:
            contexts.append(self._learned(q, kv.keys, values, keys, step, mask))
        if step.observed:
            self._tell(q, kv, keys, step)
        if step.recorder is not None and self.training and q is not None and kv.keys is not None:
            step.recorder.record(q, kv.keys, restrict(keys, step.pattern, step.causal), step.transform)
        contexts = [context.transpose(1, 2) for context in contexts]  # (B, Q, heads, E): in the order of the product
        context = step.without_disabled(contexts[0] if len(contexts) == 1 else torch.cat(contexts, 2), 2)
        result: Tensor = self.o(context.flatten(2))
        return result

    def _split_values(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, K, E) -> values of fixed and of learned heads; all values twice if there is only one kind."""
        if not self.fixed_heads or not self.learned_heads:
            return values, values
        # Split along the axis of heads in memory, so that one copy concatenates the gradients.
        fixed, learned = values.transpose(1, 2).split([self.fixed_heads, self.learned_heads], 2)
        return fixed.transpose(1, 2), learned.transpose(1, 2)

    def _learned(
        self, q: Tensor, k: Tensor, v: Tensor, keys: Keys, step: AttentionStep, mask: AttentionMask | None
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        length = q.shape[2]
        pattern, transform = step.pattern, step.transform
        if step.content is not None:
            return attend_by_content(q, k, v, keys, step.content, step.distance_sockets, dropout, self.operators)
        if step.by_distance:
            return attend_by_distance(q, k, v, keys, step.distance_sockets, dropout, self.operators)
        if step.fused:
            # A single query sees everything before it: no causal mask is needed.
            causal = step.causal and length > 1
            return attend_fused(q, k, v, keys, transform, dropout, causal=causal, mask=mask, operators=self.operators)
        # At cross-attention hypotheses share the query axis, so that equal lengths do not mean equal positions.
        own = step.site != "cross" and keys.counts is None
        if pattern is not None and step.banded and own and 1 < length == k.shape[2]:
            layout = band_layout(pattern, step.causal)
            if layout is not None and length >= layout.shortest:
                return attend_banded(
                    q, k, v, keys, transform, dropout, pattern=pattern, causal=step.causal, operators=self.operators
                )
        alone = pattern is None and step.causal  # causality alone takes no matrix
        keys = restrict(keys, pattern, step.causal and not alone)
        if transform.fusable:
            return attend_fused(q, k, v, keys, transform, dropout, causal=False, operators=self.operators)
        return attend_masked(q, k, v, keys, transform, dropout, self.operators, causal=alone)

    def _tell(self, q: Tensor | None, kv: KeysValues, keys: Keys, step: AttentionStep) -> None:
        keys = restrict(keys, step.pattern, step.causal)
        parts = []
        if self.fixed is not None:
            parts.append(self.fixed.weights(keys))
        if q is not None and kv.keys is not None:
            if step.content is not None:
                weights, seen = content_weights(q, kv.keys, keys, step.content, step.distance_sockets)
            elif step.by_distance:
                weights, seen = distance_weights(q, kv.keys, keys, step.distance_sockets)
            else:
                weights, seen = weigh(q, kv.keys, keys, step.transform), keys
            if parts and step.special:  # fixed heads see what spans and clusters hide
                both = keys.visible().expand(parts[0].shape), seen.visible().expand(weights.shape)
                seen = replace(keys, allowed=torch.cat(both, 1))
            parts.append(weights)
            keys = seen
        step.tell(step.without_disabled(torch.cat([part.to(parts[-1].dtype) for part in parts], 1), 1), keys)


def hide_padding(keys: Keys) -> Keys:
    """Fill in ``allowed`` with the padding alone, or leave it None if there is none."""
    if not may_hold(~keys.valid):
        return keys
    return replace(keys, allowed=keys.valid[:, None, None, :])
