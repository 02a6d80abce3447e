"""Blocks with packed weights, in the place of those that were trained.

Each module computes what the one that it replaces computes, from weights that are fused and packed; on disk they stay
separate (design rule 10). The unpacked weights are free as soon as nothing else refers to them.
Shapes: B rows, K positions, H heads, E head size, N rows of a search, T tokens, D model dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparsenmt.engine.products import CompiledProduct, Product, packed_product
from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import AttentionStep, KeysValues, MultiHeadAttention, SlottedKeysValues
from sparsenmt.model.embeddings import Tables
from sparsenmt.model.layers import FeedForward, RecurrentLayer, TransformerBlock
from sparsenmt.model.linear import Activation, Linear
from sparsenmt.model.operators import Operators
from sparsenmt.model.sockets import Keys
from sparsenmt.model.stacks import Decoder, Encoder
from sparsenmt.native.kernels import FEW_QUERIES, Kernels, kernels_for
from sparsenmt.native.packing import PackedMatrix
from sparsenmt.native.steps import HEAD_SIZES, NormWeights


@dataclass(frozen=True)
class Packing:
    """Options of packing weights for decoding.

    Args:
        kernels: the compiled kernels; None: PyTorch's operators alone are used.
        dtype: the dtype that fp32 weights are rounded to, by compiled products; None: they are not rounded.
        compiled: use the layout of the compiled products also where weights are not rounded.
    """

    kernels: Kernels | None = None
    dtype: torch.dtype | None = None
    compiled: bool = False

    @staticmethod
    def of(like: Tensor) -> Packing:
        """The packing of weights like this one, without rounding."""
        return Packing(kernels_for(like) if like.dtype == torch.float32 else None)

    def product(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
        """Make ``x -> activation(x @ weight.T + bias)`` of weight (out, in) and bias (out)."""
        compiled = self.dtype is not None or (self.compiled and weight.dtype == torch.float32)
        if self.kernels is None or not compiled:
            return packed_product(weight, bias, activation)
        return CompiledProduct(self.kernels, weight.detach(), bias, self.dtype or weight.dtype, activation)

    def blocks(self, layers: nn.ModuleList, *, compiled: bool = False) -> None:
        """Pack the blocks of a stack in their places.

        compiled: a kernel will compute whole blocks, so that all products have the layout of the compiled ones.
        """
        how = replace(self, compiled=compiled)
        for block in layers:
            assert isinstance(block, TransformerBlock)
            if block.recurrence is not None:
                block.recurrence = PackedRecurrence(block.recurrence, how)
            else:
                block.add_module("self", PackedAttention(block.own, how, self_attention=True))
            if block.cross is not None:
                block.cross = PackedAttention(block.cross, how, self_attention=False)
            block.feed_forward = PackedFeedForward(block.feed_forward, how)


def take_over(part: nn.Module, plain: nn.Module) -> None:
    """Give ``part`` all attributes, parameters and submodules of ``plain``, which it replaces; they are shared."""
    vars(part).update(vars(plain))
    part._modules = dict(plain._modules)


class PackedLinear(nn.Module):
    """A linear layer by one product."""

    def __init__(self, plain: Linear, how: Packing) -> None:
        super().__init__()
        self.product = how.product(plain.weight, plain.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return self.product(x)


class PackedFeedForward(FeedForward):
    """A feed-forward network whose activation is a part of its first product."""

    def __init__(self, plain: FeedForward, how: Packing) -> None:
        nn.Module.__init__(self)
        self.activation, self.dropout = plain.activation, plain.dropout
        self.first = how.product(plain.inner.weight, plain.inner.bias, plain.activation)
        self.second = None if plain.value is None else how.product(plain.value.weight, plain.value.bias)
        self.last = how.product(plain.outer.weight, plain.outer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        hidden = self.first(x)
        return self.last(hidden if self.second is None else hidden * self.second(x))


class PackedRecurrence(RecurrentLayer):
    """A recurrent layer whose projections are one product."""

    def __init__(self, plain: RecurrentLayer, how: Packing) -> None:
        nn.Module.__init__(self)
        self.cell, parts = plain.cell, plain.linears
        biases: list[Tensor | None] = [part.bias for part in parts]  # None: without one, which torch's types do not say
        full = [
            each.weight.new_zeros(each.out_features) if b is None else b for each, b in zip(parts, biases, strict=True)
        ]
        self.product = how.product(torch.cat([part.weight for part in parts]), torch.cat(full))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (N, T, D) -> its projections (N, T, D), in the order of the cell."""
        return self.product(x).chunk(len(self.cell.projections), -1)


class PackedAttention(MultiHeadAttention):
    """Attention whose projections of one input are one product, by kernels where these are faster.

    Args:
        self_attention: queries, keys and values have the same input.
    """

    def __init__(self, plain: MultiHeadAttention, how: Packing, *, self_attention: bool) -> None:
        nn.Module.__init__(self)
        take_over(self, plain)
        self.together, self._kernels = self_attention, how.kernels
        if how.kernels is not None:
            self.operators = KernelOperators(how.kernels)
        self.o = PackedLinear(plain.o, how)  # type: ignore[assignment]
        self._sizes = [self.learned_heads * self.head_size] * (2 if self_attention else 1) + [plain.v.out_features]
        if not self.learned_heads:
            self.v = PackedLinear(plain.v, how)  # type: ignore[assignment]
            return
        parts = [self.q, self.k, self.v] if self_attention else [self.k, self.v]
        weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        self.fused = how.product(weight, bias)
        del self.k, self.v
        if self_attention:
            del self.q
        else:
            self.q = PackedLinear(plain.q, how)  # type: ignore[assignment]

    def project_keys_values(self, x: Tensor, *, transposed: bool = False) -> KeysValues:
        """Project x (B, K, D)."""
        if not self.learned_heads or self.together:
            return self.project_all(x)[1]
        k, v = self.fused(x).split(self._sizes, -1)
        keys, values = self.split(k), self.split(v).contiguous()
        if transposed and not self._kernel_reads(x.shape[1]):
            return KeysValues(keys.transpose(-1, -2).contiguous().transpose(-1, -2), values, True)
        return KeysValues(keys.contiguous(), values)

    def project_all(self, x: Tensor) -> tuple[Tensor | None, KeysValues]:
        """x (B, K, D) -> queries (B, L, K, E), keys and values, for self-attention."""
        if not self.learned_heads:
            return None, KeysValues(None, self.split(self.v(x)))
        q, k, v = self.fused(x).split(self._sizes, -1)
        return self.split(q), KeysValues(self.split(k), self.split(v))

    def forward(
        self,
        q: Tensor | None,
        kv: KeysValues | SlottedKeysValues,
        keys: Keys,
        step: AttentionStep,
        mask: AttentionMask | None = None,
    ) -> Tensor:
        """q (B, L, Q, E), kv (B, heads, K, E) -> (B, Q, D), as the module that it replaces."""
        if isinstance(kv, SlottedKeysValues):
            context = self._attend_slots(q, kv, keys, step)
            if context is not None:
                output: Tensor = self.o(step.without_disabled(context, 2).flatten(2))
                return output
        return super().forward(q, kv, keys, step, mask)

    def _attend_slots(self, q: Tensor | None, kv: SlottedKeysValues, keys: Keys, step: AttentionStep) -> Tensor | None:
        """q (N, H, 1, E) -> (N, 1, H, E), by a kernel that reads slots; None if it cannot or is slower."""
        found = self._kernels
        if found is None or q is None or kv.keys is None or self.fixed is not None or q.shape[2] > 1:
            return None
        if step.observed or not step.fused or keys.allowed is not None:  # rows that begin at different positions
            return None
        if (
            not found.attends_to_slots(q, kv.values, in_order=kv.identity)
            or step.transform.score_bias(keys) is not None
        ):
            return None
        return found.attend(q, kv.keys, kv.values, slots=kv.slots).transpose(1, 2)

    def _kernel_reads(self, keys: int) -> bool:
        """Return True if a kernel attends to this many keys in a step of beam search: it reads keys as they are."""
        found = self._kernels
        return (
            found is not None
            and self.head_size in HEAD_SIZES
            and found.faster("attention", self.head_size, FEW_QUERIES, keys)
        )


class KernelOperators(Operators):
    """The compiled attention in inference, and PyTorch's operators where there is none, or it is slower."""

    def __init__(self, found: Kernels) -> None:
        self._kernels = found

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> Tensor:
        """Attend as `Operators.attend`."""
        found, rows, entries = self._kernels, k.shape[0], k.shape[2]
        same = mask is None or (mask.shape == (rows, 1, 1, entries) and mask.is_contiguous())
        suits = same and not causal and not dropout and entries > 0 and not torch.is_grad_enabled()
        if suits and found.attends(q, v):
            return found.attend(q, k, v, bias=mask)
        return super().attend(q, k, v, mask, dropout, causal)


class PackedTables(Tables):
    """Token vectors of which one table, ``key``, is in the packed fp32 matrix ``only``; its unpacked copy is freed."""

    def __init__(self, plain: Tables, key: str, only: PackedMatrix) -> None:
        nn.Module.__init__(self)
        take_over(self, plain)
        self._key, self._only = key, only
        table: Tensor = self[key]
        table.data = table.data.new_empty(0)

    def rows(self, key: str, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., D): rows of the table of this key."""
        return self._only.rows(tokens) if key == self._key else super().rows(key, tokens)


# The parts of packed blocks as compiled kernels take them


def blocks_of(stack: Encoder | Decoder) -> list[TransformerBlock]:
    """The blocks of an encoder or a decoder."""
    return [block for block in stack.layers if isinstance(block, TransformerBlock)]


def matrices_of(block: TransformerBlock) -> tuple[PackedMatrix, ...]:
    """The matrices of a block whose products are all compiled, in the order of `steps.matrix_shapes`."""
    products: list[Product] = []
    if isinstance(block.recurrence, PackedRecurrence):
        products.append(block.recurrence.product)
    else:
        assert isinstance(block.own, PackedAttention)
        products += [block.own.fused, _product(block.own.o)]
    if isinstance(block.cross, PackedAttention):
        products += [_product(block.cross.q), _product(block.cross.o)]
    assert isinstance(block.feed_forward, PackedFeedForward)
    products += [block.feed_forward.first, block.feed_forward.last]
    matrices = [product.packed for product in products if isinstance(product, CompiledProduct)]
    assert len(matrices) == len(products)
    return tuple(matrices)


def _product(layer: nn.Module) -> Product:
    """The product of a packed linear layer."""
    assert isinstance(layer, PackedLinear)
    return layer.product


def layers_are_compiled(block: TransformerBlock) -> bool:
    """Return True if kernels compute feed-forward networks and normalisations like those of a block."""
    network = block.feed_forward
    return network.activation == "relu" and network.value is None and isinstance(block.self_norm, nn.LayerNorm)


def heads_are_compiled(attention: MultiHeadAttention) -> bool:
    """Return True if kernels compute heads like these, all of which are learned."""
    size = attention.head_size
    return attention.fixed is None and size in HEAD_SIZES and attention.o.out_features == size * attention.learned_heads


def norm_weights(norm: nn.Module) -> NormWeights:
    """The parameters of a layer normalisation as kernels take them."""
    assert isinstance(norm, nn.LayerNorm)
    return NormWeights(norm.weight.detach(), norm.bias.detach())


def adds_to_scores(step: AttentionStep, keys: Keys) -> bool:
    """Return True if the step's transform adds a bias to the scores of these keys, such as the log of their counts."""
    return step.transform.fusable and step.transform.score_bias(keys) is not None
