"""Fixed attention heads in O(length): Raganato, Scherrer and Tiedemann 2020, "Fixed Encoder
Self-Attention Patterns in Transformer-Based Machine Translation", section 3.2 (the eighth, ``last``: section 4.4).

Row i of a sentence of n positions, each row normalised to sum to 1:

    current   1          at j = i         left    (j + 1)^3  at j <= i - 2
    previous  1          at j = i - 1     right   (n - j)^3  at j >= i + 2
    next      1          at j = i + 1     end     (j + 1)^3  at every j
    last      1          at j = n - 1     start   (n - j)^3  at every j

n is the true length, ``</s>`` included. Keys that are not valid (padding, or masked by a filter) get no weight;
the rest of the row is normalised without them. The paper defines left only and says that the others have the same
function at other positions: right mirrors left, start mirrors end. Over words, i and j are words, not tokens.

Shapes: B rows, G fixed heads, Q queries, K keys, E head size, W words (no more than keys).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from sparsenmt.model.sockets import Keys
from sparsenmt.sparsity.fixed_maps import (
    ApplyMap,
    HeadMap,
    OrSelfMap,
    RunningSumMap,
    SentenceMeanMap,
    ShiftMap,
    TokenHeadsMap,
    WordHeadsMap,
)
from sparsenmt.sparsity.registry import Options

FixedPattern = Literal["current", "previous", "next", "left", "right", "end", "start", "last"]
SEVEN: tuple[FixedPattern, ...] = ("current", "previous", "next", "left", "right", "end", "start")
"""In the paper's order."""
LOOKING_LEFT = frozenset[FixedPattern]({"current", "previous", "left"})
"""Patterns that depend neither on later positions nor on the length."""

_SHIFTS: dict[FixedPattern, int] = {"current": 0, "previous": 1, "next": -1}
WORD = "word_id"


class FixedOptions(Options):
    patterns: list[FixedPattern] = Field(
        list(SEVEN), min_length=1, description="Pattern of each fixed head; `last` is the paper's eighth."
    )
    learned: int | None = Field(
        None, ge=0, description="Number of learned heads, as a check. `null`: the remaining heads of the site."
    )
    empty: Literal["zero", "self"] = Field(
        "zero", description="A row without a target (the first one of `previous`): all zero, or `self`: as `current`."
    )


def check_options(options: FixedOptions, heads: int) -> None:
    """Raise ValueError if there are not as many learned heads as the recipe says."""
    given, learned = len(options.patterns), options.learned
    if learned is not None and given + learned != heads:
        raise ValueError(
            f"{given} patterns and learned: {learned} are {given + learned} heads, but the site has {heads} "
            "(`model.heads`, or `heads.count` of the site)"
        )


def make_heads(
    patterns: Sequence[FixedPattern], seen: Tensor, positions: Tensor, *, or_self: bool, dtype: torch.dtype
) -> tuple[HeadMap, ...]:
    """The linear maps of fixed heads.

    Args:
        seen: (B, K) bool, the keys that have weights.
        positions: (B, K) of the keys, consecutive.
        or_self: rows without a target read themselves.
        dtype: of the weights, at least fp32; they are computed in float64.
    """
    number = positions.double() + 1  # (B, K) from 1
    length = (number * seen).amax(1, keepdim=True)  # (B, 1) the last one seen: padding is not
    rising, falling = number.pow(3) * seen, (length + 1 - number).pow(3) * seen

    def running(inner: Tensor, sums: Tensor, leftward: bool) -> tuple[HeadMap, Tensor]:
        outer = torch.where(sums > 0, 1 / sums, 0.0)
        return RunningSumMap(inner.to(dtype), outer.to(dtype), leftward), sums > 0

    def make(pattern: FixedPattern) -> tuple[HeadMap, Tensor]:
        """The map, and the rows that have a target (B, K) bool."""
        if pattern in _SHIFTS:
            by = _SHIFTS[pattern]
            return ShiftMap(by, seen.to(dtype)), _moved(seen, by)
        if pattern == "left":
            return running(rising, _moved(rising.cumsum(1), 2), True)
        if pattern == "right":
            return running(falling, _moved(falling.flip(1).cumsum(1).flip(1), -2), False)
        whole = {"end": rising, "start": falling}.get(pattern, ((number == length) & seen).double())
        return SentenceMeanMap((whole / whole.sum(1, keepdim=True).clamp_min(1)).to(dtype)), seen

    made = [make(pattern) for pattern in patterns]
    if not or_self:
        return tuple(head for head, _ in made)
    return tuple(OrSelfMap(head, (seen & ~has_target).to(dtype)) for head, has_target in made)


def _moved(x: Tensor, by: int) -> Tensor:
    """Shift x (B, K) by positions to the right, filled with 0."""
    moved, rest = torch.zeros_like(x), max(x.shape[1] - abs(by), 0)
    if by >= 0:
        moved[:, by:] = x[:, :rest]
    else:
        moved[:, :rest] = x[:, -by:]
    return moved


class FixedPatternHeads:
    """Fixed heads with these patterns; implements `sockets.FixedHeads`.

    Args:
        patterns: of each head.
        or_self: rows without a target attend as `current`; otherwise they are zero.
        mass: None: heads over tokens; ``split`` or ``copy``: over words, see `fixed_word`.
    """

    def __init__(
        self, patterns: Sequence[FixedPattern], *, or_self: bool, mass: Literal["split", "copy"] | None = None
    ):
        self.names = tuple(patterns)
        self.heads = len(self.names)
        self._or_self = or_self
        self._mass = mass
        # With what the map was made for: in one tuple, as searches of several threads share the heads.
        self._known: tuple[tuple[object, ...], TokenHeadsMap | WordHeadsMap] | None = None

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        if keys.queries.shape[1] == values.shape[2]:
            linear_map = self._map_for(keys, values.dtype)
            context: Tensor = ApplyMap.apply(values.transpose(1, 2), linear_map)  # type: ignore[no-untyped-call]
            return context.transpose(1, 2)
        # In step-by-step decoding, the queries are the last positions.
        weights = self.weights(keys).to(torch.promote_types(values.dtype, torch.float32))
        return (weights @ values.to(weights.dtype)).to(values.dtype)

    def _map_for(self, keys: Keys, dtype: torch.dtype) -> TokenHeadsMap | WordHeadsMap:
        """The map of a batch, made once, as the layers of a stack pass the same tensors."""
        dtype = torch.promote_types(dtype, torch.float32)
        words = keys.features[WORD] if self._mass is not None else None
        made_for = (keys.valid, keys.positions, words, dtype)
        known = self._known
        if known is None or any(a is not b for a, b in zip(made_for, known[0], strict=True)):
            self._known = known = made_for, self._make_map(keys, words, dtype)
        return known[1]

    def _make_map(self, keys: Keys, words: Tensor | None, dtype: torch.dtype) -> TokenHeadsMap | WordHeadsMap:
        if words is None:
            made = make_heads(self.names, keys.valid, keys.positions, or_self=self._or_self, dtype=dtype)
            return TokenHeadsMap(made)
        rows, count = words.shape  # no more words than tokens
        positions = torch.arange(count, device=words.device).expand(rows, -1)
        tokens = torch.zeros_like(words).scatter_add_(1, words, keys.valid.long())  # (B, W)
        made = make_heads(self.names, tokens > 0, positions, or_self=self._or_self, dtype=dtype)
        share = keys.valid.to(dtype)
        if self._mass == "split":
            share = share / tokens.gather(1, words).clamp_min(1)
        index = words + count * torch.arange(rows, device=words.device)[:, None]
        return WordHeadsMap(TokenHeadsMap(made), index.flatten(), share, count)

    def weights(self, keys: Keys) -> Tensor:
        """(B, G, Q, K) in float64, by the formulas."""
        queries, places = keys.queries, keys.positions
        valid = keys.valid.double()
        share = valid
        if self._mass is not None:
            words = keys.features[WORD]
            queries, places = words.gather(1, queries), words.gather(1, places)
            share = valid / (valid[:, None] @ (places[:, :, None] == places[:, None]).double())[:, 0].clamp_min(1)
        i, j = queries[:, :, None], places[:, None]  # (B, Q, 1), (B, 1, K)
        n = ((places + 1) * keys.valid).amax(1)[:, None, None]
        row = torch.ones_like(i, dtype=torch.float64)
        rising, falling = (j + 1) ** 3 * row, (n - j) ** 3 * row  # (B, Q, K)
        formulas = {
            "current": j == i,
            "previous": j == i - 1,
            "next": j == i + 1,
            "left": rising * (j <= i - 2),
            "right": falling * (j >= i + 2),
            "end": rising,
            "start": falling,
            "last": (j == n - 1) * row,
        }
        raw = torch.stack([formulas[name].double() for name in self.names], 1) * valid[:, None, None]
        sums = (raw * share[:, None, None]).sum(-1, keepdim=True)
        if self._or_self:
            own = formulas["current"].double()[:, None] * valid[:, None, None]
            raw = torch.where(sums > 0, raw, own)
            sums = (raw * share[:, None, None]).sum(-1, keepdim=True)
        mass = share if self._mass == "split" else valid
        return raw * mass[:, None, None] / sums.clamp_min(1e-300)
