"""Encoder and decoder blocks: attention and feed-forward networks with residuals and layer normalisation.

Shapes: B rows or sentences, R hypotheses a sentence, T positions, D model dimension, F inner dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import AttentionStep, KeysValues, MultiHeadAttention, SlottedKeysValues
from sparsenmt.model.dropout import add_with_dropout, dropout
from sparsenmt.model.linear import ACTIVATIONS, Activation, Linear
from sparsenmt.model.operators import PYTORCH, Operators
from sparsenmt.model.row_sums import LayerNorm, RMSNorm
from sparsenmt.model.sockets import FixedHeads, Keys, Recurrence

Norm = Literal["pre", "post"]
NormKind = Literal["layer", "rms"]


@dataclass(frozen=True)
class BlockOptions:
    """Options that all blocks of a model share."""

    dimension: int
    feed_forward: int
    norm: Norm
    activation: Activation
    residual_dropout: float
    attention_dropout: float
    activation_dropout: float
    norm_epsilon: float = 1e-5
    final_norm: bool | None = None  # a normalisation after the last layer; None: where the norms come first
    norm_kind: NormKind = "layer"
    head_size: int | None = None  # None: the dimension over the number of heads
    glu: bool = False  # gated linear units in the feed-forward networks

    def layer_norm(self) -> LayerNorm | RMSNorm:
        """Make a normalisation."""
        return (LayerNorm if self.norm_kind == "layer" else RMSNorm)(self.dimension, self.norm_epsilon)

    def last_norm(self) -> nn.Module:
        """Make the module after the last layer, and at every exit of the model that is cut to that depth."""
        wanted = self.norm == "pre" if self.final_norm is None else self.final_norm
        return self.layer_norm() if wanted else nn.Identity()


def head_size(dimension: int, heads: int, chosen: int | None) -> int:
    """Return the size of a head: the chosen one, or the dimension over the number of heads."""
    return chosen or dimension // heads


@dataclass(frozen=True)
class SiteHeads:
    """The heads of one attention site."""

    count: int
    fixed: FixedHeads | None = None
    disabled: frozenset[int] = frozenset()  # numbers, from 1, of heads whose output is zero

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `protocol.TranslationModel.head_names`."""
        fixed = () if self.fixed is None else tuple(self.fixed.names)
        return (*fixed, *("learned",) * (self.count - len(fixed)))


class FeedForward(nn.Module):
    """``outer(activation(inner(x)))``; of gated linear units ``outer(activation(inner(x)) * value(x))``."""

    operators: Operators = PYTORCH

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.inner = Linear(options.dimension, options.feed_forward)
        self.value = Linear(options.dimension, options.feed_forward) if options.glu else None
        self.outer = Linear(options.feed_forward, options.dimension)
        self.activation: Activation = options.activation
        self.dropout = options.activation_dropout

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        # In place: autograd needs the result of a ReLU, not its input.
        activate = torch.relu_ if self.activation == "relu" else ACTIVATIONS[self.activation]
        hidden = activate(self.inner(x))
        if self.value is not None:
            hidden = hidden * self.value(x)
        output: Tensor = self.outer(dropout(hidden, self.dropout, self.operators.drop) if self.training else hidden)
        return output


class RecurrentLayer(nn.Module):
    """The projections of a recurrent cell, by their names, and the cell."""

    def __init__(self, dimension: int, cell: Recurrence) -> None:
        super().__init__()
        self.cell = cell
        for name, biased in cell.projections.items():
            self.add_module(name, Linear(dimension, dimension, bias=biased))

    @property
    def linears(self) -> list[Linear]:
        """The projections, in the order of the cell."""
        return [module for module in self.children() if isinstance(module, Linear)]

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (N, T, D), state (N, D) as in `Recurrence.forward` -> outputs (N, T, D), the next state (N, D)."""
        found: tuple[Tensor, Tensor] = self.cell(self.project(x), state)
        return found

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (N, T, D) -> its projections (N, T, D), in the order of the cell."""
        return tuple(linear(x) for linear in self.linears)


class TransformerBlock(nn.Module):
    """Self-attention, optionally cross-attention, and a feed-forward network.

    A decoder block without ``cross`` is the block of a decoder-only model.

    Args:
        own: the heads of self-attention; or the cell of a recurrent layer in its place.
    """

    operators: Operators = PYTORCH

    def __init__(self, options: BlockOptions, own: SiteHeads | Recurrence, cross: SiteHeads | None = None) -> None:
        super().__init__()
        self.norm: Norm = options.norm
        self.dropout = options.residual_dropout
        self.recurrence: RecurrentLayer | None = None
        if isinstance(own, Recurrence):
            self.recurrence = RecurrentLayer(options.dimension, own)
        else:
            self.add_module("self", self._attention(options, own))
        self.self_norm = options.layer_norm()
        self.cross: MultiHeadAttention | None = None
        if cross is not None:
            self.cross = self._attention(options, cross)
            self.cross_norm = options.layer_norm()
        self.feed_forward = FeedForward(options)
        self.feed_forward_norm = options.layer_norm()

    @staticmethod
    def _attention(options: BlockOptions, heads: SiteHeads) -> MultiHeadAttention:
        size = head_size(options.dimension, heads.count, options.head_size)
        return MultiHeadAttention(
            options.dimension, heads.count, size, fixed=heads.fixed, dropout=options.attention_dropout
        )

    @property
    def own(self) -> MultiHeadAttention:
        """The self-attention, stored under the name ``self``."""
        attention = self._modules["self"]
        assert isinstance(attention, MultiHeadAttention)
        return attention

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        normed: Tensor = norm(x) if self.norm == "pre" else x
        return normed

    def _after(self, x: Tensor, update: Tensor, norm: nn.Module) -> Tensor:
        added = add_with_dropout(x, update, self.dropout, self.operators.drop) if self.training else x + update
        return added if self.norm == "pre" else norm(added)

    def self_input(self, x: Tensor) -> Tensor:
        """The input of the projections of self-attention, or of the recurrence. (B, T, D) -> (B, T, D)."""
        return self._before(x, self.self_norm)

    def add_self(
        self, x: Tensor, q: Tensor | None, kv: KeysValues | SlottedKeysValues, keys: Keys, step: AttentionStep
    ) -> Tensor:
        """x (B, T, D) plus self-attention."""
        return self._after(x, self.own(q, kv, keys, step), self.self_norm)

    def add_recurrence(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (N, T, D) plus the recurrent layer, and its next state (N, D)."""
        assert self.recurrence is not None
        update, after = self.recurrence(self.self_input(x), state)
        return self._after(x, update, self.self_norm), after

    def add_cross(
        self, x: Tensor, kv: KeysValues, keys: Keys, step: AttentionStep, mask: AttentionMask | None = None
    ) -> Tensor:
        """x (B * R, T, D) plus attention to the memory of B sentences: hypotheses are on the query axis."""
        assert self.cross is not None
        sentences = kv.values.shape[0]
        h = self._before(x, self.cross_norm).reshape(sentences, -1, x.shape[-1])
        update = self.cross(self.cross.project_queries(h), kv, keys, step, mask)
        return self._after(x, update.view_as(x), self.cross_norm)

    def add_feed_forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """x (B, T, D) plus the feed-forward network.

        Args:
            rows: the numbers of those of the B * T rows that are computed; the others stay as they are. None: all.
        """
        if rows is not None:
            flat = x.flatten(0, 1)
            return flat.index_copy(0, rows, self.add_feed_forward(flat.index_select(0, rows))).view_as(x)
        return self._after(x, self.feed_forward(self._before(x, self.feed_forward_norm)), self.feed_forward_norm)
