"""The depth plan that a method of the depth socket builds: the order of a model's layers, and its exits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

Depth = tuple[int, int]
"""Encoder layers n, decoder layers m."""


def fastest_first(depths: Iterable[Depth]) -> list[Depth]:
    """Sort depths by m, then by n (Dabre, Rubino and Fujita 2020, Equation 1)."""
    return sorted(depths, key=lambda depth: (depth[1], depth[0]))


@dataclass(frozen=True)
class DepthPlan:
    """The block that runs at each step, and the exits that are trained.

    ``encoder[t]`` is the index of the block that step t executes; exits count steps from 1. A language model has no
    encoder steps, and the encoder exit 0.
    """

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    encoder_exits: tuple[int, ...]
    decoder_exits: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...] | None = None
    """Weights of the losses at each pair of exits, a row for each encoder exit; need not sum to 1. None: all equal."""
    drawn: tuple[int | None, int | None] = (None, None)
    """Number of encoder and of decoder exits that are drawn for each update; None: all are trained."""

    def __post_init__(self) -> None:
        for side, drawn in zip(("encoder", "decoder"), self.drawn, strict=True):
            steps, exits = getattr(self, side), getattr(self, f"{side}_exits")
            if side == "encoder" and not steps and exits == (0,):
                continue
            if not steps or sorted(set(steps)) != list(range(max(steps) + 1)):
                raise ValueError(f"{side}: blocks must be numbered from 0 without gaps, not {steps}")
            if list(exits) != sorted(set(exits)) or not exits or exits[0] < 1 or exits[-1] > len(steps):
                raise ValueError(f"{side}: exits must rise within 1..{len(steps)}, not {exits}")
            if drawn is not None and not 1 <= drawn <= len(exits):
                raise ValueError(f"{side}: {drawn} exits cannot be drawn of {len(exits)}")
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_weights(self, rows: tuple[tuple[float, ...], ...]) -> None:
        shape = len(self.encoder_exits), len(self.decoder_exits)
        if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
            raise ValueError(f"the exits take {shape[0]} rows of {shape[1]} weights")
        if any(not 0 <= weight < math.inf for row in rows for weight in row):
            raise ValueError("weights of exits must be at least 0, and finite")
        if not all(map(any, rows)) or not all(map(any, zip(*rows, strict=True))):
            raise ValueError("the weights of an exit may not all be 0")
        if None not in self.drawn and not all(map(all, rows)):
            raise ValueError("where exits of both sides are drawn, no pair may have the weight 0")

    @property
    def deepest(self) -> Depth:
        """The deepest trained exits, the default depth of a model."""
        return self.encoder_exits[-1], self.decoder_exits[-1]

    def depth(self, encoder_layers: int | None, decoder_layers: int | None) -> Depth:
        """The requested depth; None stands for the deepest exit of that side."""
        return encoder_layers or self.encoder_exits[-1], decoder_layers or self.decoder_exits[-1]

    def without_encoder(self) -> DepthPlan:
        """The plan of a language model with this decoder."""
        weights = None if self.weights is None else self.weights[-1:]
        return DepthPlan((), self.decoder, (0,), self.decoder_exits, weights, (None, self.drawn[1]))

    def depths(self) -> list[Depth]:
        """The trained pairs of exits, the fastest first."""
        return fastest_first(self.pairs())

    def pairs(self) -> dict[Depth, float]:
        """The share of every trained pair of exits in the loss; they sum to 1."""
        rows = self.weights or ((1.0,) * len(self.decoder_exits),) * len(self.encoder_exits)
        total = math.fsum(itertools.chain.from_iterable(rows))
        exits = itertools.product(self.encoder_exits, self.decoder_exits)
        found = zip(exits, itertools.chain.from_iterable(rows), strict=True)
        return {pair: weight / total for pair, weight in found if weight}
