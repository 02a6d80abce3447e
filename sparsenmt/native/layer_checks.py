"""Layers by PyTorch's operators, and the comparison of compiled ones with them on small problems.

The layers have no biases, and norms of weight 1 and bias 0.
Shapes: N rows, B sentences, D dimension, H heads, E head size, Q queries, K keys or entries of the memory, T positions
so far, the new one included, S slots, or positions of the longest source.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.agreement import distance, numbers
from sparsenmt.native.encoder import EncoderStack, PackedEncoderLayer
from sparsenmt.native.greedy import Embedding, greedy
from sparsenmt.native.packing import PackedMatrix, pack, row_table
from sparsenmt.native.steps import LayerCache, LayerFunctions, LayerStack, NormWeights, PackedLayer, matrix_shapes
from sparsenmt.native.token_lists import TokenLists

_SIZE, _WIDE, _HEADS = 64, 96, 2
_TOLERANCE, _SEARCH_TOLERANCE = 1e-5, 1e-4


def plain_norm(size: int) -> NormWeights:
    """The parameters of a layer normalisation (D) of weight 1 and bias 0."""
    return NormWeights(torch.ones(size), torch.zeros(size))


def plain_attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float, largest: int = 0) -> Tensor:
    """q (..., Q, E), k and v (..., K, E), bias broadcastable to (..., Q, K) -> softmax attention (..., Q, E).

    largest: the number of largest scores that the softmax is over, with those that equal the last; 0: all.
    """
    scores = (q @ k.transpose(-2, -1)).mul_(q.shape[-1] ** -0.5).add_(bias)
    if largest:
        scores = scores.masked_fill(scores < scores.topk(largest, -1).values[..., -1:], -math.inf)
    context: Tensor = scores.softmax(-1) @ v
    return context


def gather(stored: Tensor, slots: Tensor) -> Tensor:
    """Keys or values (T, S, H, E) of S slots, and each row's slots (N, T) -> (N, H, T, E)."""
    index = (slots + torch.arange(slots.shape[1]) * stored.shape[1]).flatten()
    picked: Tensor = stored.flatten(0, 1).index_select(0, index).unflatten(0, slots.shape)
    return picked.transpose(1, 2)


@dataclass(frozen=True)
class PlainLayer:
    """A layer of an encoder or a decoder by PyTorch's operators.

    Args:
        product: name of a matrix (`matrix_shapes`), rows (..., in) -> their product with it, (..., out).
        heads: H, of every attention.
        pre_norm: True: the input of each part is normalised; False: its sum with the part's output.
    """

    product: Callable[[str, Tensor], Tensor]
    heads: int
    pre_norm: bool

    @staticmethod
    def of(weights: Mapping[str, Tensor], heads: int, pre_norm: bool) -> PlainLayer:
        """Make a layer of matrices (out, in) by name."""
        return PlainLayer(lambda name, x: x @ weights[name].T, heads, pre_norm)

    def encode(self, x: Tensor, bias: Tensor) -> Tensor:
        """x (B, S, D), bias (B, 1, 1, S), minus infinity at padding, otherwise 0 -> (B, S, D)."""

        def own(x: Tensor) -> Tensor:
            q, k, v = self.product("own", x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return self.product("own_out", context.transpose(1, 2).flatten(2))

        return self._feed_forward(self._add(x, own))

    def step(
        self, x: Tensor, cache: LayerCache, slots: Tensor, starts: Tensor, largest: tuple[int, int] = (0, 0)
    ) -> Tensor:
        """x (N, D), the newest position -> (N, D); keys and values, or the state, are written to the cache.

        Args:
            cache: without ``memory_rows``.
            slots: (N, T), and starts (B): as for `LayerStack.run`.
            largest: as for `PackedLayer`.
        """
        (rows, size), sentences = x.shape, cache.memory_keys.shape[0]

        def recurrent(x: Tensor) -> Tensor:
            candidate, forget = self.product("own", x).chunk(2, -1)
            return cast(Tensor, cache.state).lerp_(candidate, torch.sigmoid(-forget)).relu()

        def own(x: Tensor) -> Tensor:
            q, k, v = self.product("own", x).view(rows, 3, self.heads, -1).unbind(1)
            stored, last = (cast(Tensor, cache.keys), cast(Tensor, cache.values)), slots.shape[1] - 1
            stored[0][last, :rows], stored[1][last, :rows] = k, v
            before_start = torch.arange(last + 1) < starts.repeat_interleave(rows // sentences)[:, None]
            bias = torch.zeros(before_start.shape).masked_fill(before_start, -math.inf)[:, None, None]
            keys, values = (gather(each, slots) for each in stored)
            return self.product("own_out", plain_attend(q[:, :, None], keys, values, bias, largest[0]).flatten(1))

        def cross(x: Tensor) -> Tensor:
            q = self.product("query", x).view(sentences, -1, self.heads, size // self.heads).transpose(1, 2)
            bias = 0.0 if cache.memory_bias is None else cache.memory_bias.view(sentences, 1, 1, -1)
            context = plain_attend(q, cache.memory_keys, cache.memory_values, bias, largest[1])
            return self.product("cross_out", context.transpose(1, 2).reshape(rows, size))

        return self._feed_forward(self._add(self._add(x, own if cache.state is None else recurrent), cross))

    def _add(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x (..., D) and the output of a part of the layer, added and normalised -> (..., D)."""
        size = x.shape[-1:]
        return x + part(F.layer_norm(x, size)) if self.pre_norm else F.layer_norm(x + part(x), size)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self._add(x, lambda x: self.product("outer", self.product("inner", x).relu()))


def _weights(t: float, *, recurrent: bool = False, cross: bool = True) -> dict[str, Tensor]:
    """Matrices (out, in) of a layer by name; other ``t``, other numbers."""
    shapes = matrix_shapes(_SIZE, _WIDE, recurrent=recurrent, cross=cross)
    return {name: numbers(*shape, speed=1.1 + 0.2 * i + t) / 8 for i, (name, shape) in enumerate(shapes.items())}


def _packed(weights: Mapping[str, Tensor]) -> tuple[PackedMatrix, ...]:
    """The matrices, packed in fp32, in their order."""
    return tuple(pack(each, None, torch.float32) for each in weights.values())


def _memory(sentences: int, entries: int, t: float = 0.0) -> tuple[Tensor, Tensor, None, Tensor]:
    """The memory's fields of `LayerCache` for B sentences and K entries, of which the first sentence hides one."""
    shape, bias = (sentences, _HEADS, entries, _SIZE // _HEADS), numbers(sentences, entries, speed=0.9)
    bias[0, 1] = -math.inf
    return numbers(*shape, speed=0.5 + t), numbers(*shape, speed=1.7 + t), None, bias


def step_error(functions: LayerFunctions, threads: int) -> float:
    """The largest deviation of a decoder's step, over the tolerance."""
    cases = ((True, 6, (0, 0)), (True, 60, (2, 3)), (False, 6, (1, 2)), (False, 60, (0, 0)))
    recurrent = ((True, 60, (0, 0), True), (False, 6, (0, 0), True))
    return max(_step_error(functions, threads, *case) for case in (*cases, *recurrent)) / _TOLERANCE


def _step_error(
    functions: LayerFunctions,
    threads: int,
    pre_norm: bool,
    rows: int,
    largest: tuple[int, int],
    recurrent: bool = False,
) -> float:
    length, sentences, norm = 3, 3, plain_norm(_SIZE)
    weights, own = _weights(0, recurrent=recurrent), (length, rows, _HEADS, _SIZE // _HEADS)
    layer = PackedLayer(_packed(weights), (norm, norm, norm), largest, recurrent=recurrent)
    written = (None, None) if recurrent else (numbers(*own, speed=0.7), numbers(*own, speed=0.3))
    state = numbers(rows, _SIZE, speed=0.8) if recurrent else None
    cache = LayerCache(written[0], written[1], *_memory(sentences, 5), state)
    slots = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, length)
    slots[:, 0] = slots[:, 0].flip(0)
    starts, x = torch.tensor([0, 1, 2]), numbers(rows, _SIZE, speed=0.6)
    expected = PlainLayer.of(weights, _HEADS, pre_norm).step(x, copy.deepcopy(cache), slots, starts, largest)
    last = norm if rows < 32 else None  # with and without, whatever the place of the other norms
    stack = LayerStack(functions, [layer], heads=_HEADS, last=last, pre_norm=pre_norm, epsilon=1e-5)
    # The memory of two finished sentences, here NaN, stays.
    keys, values = (
        F.pad(x, (0,) * 7 + (2,), value=math.nan)[[1, 3, 2, 4, 0]] for x in (cache.memory_keys, cache.memory_values)
    )
    mapped = replace(cache, memory_keys=keys, memory_values=values, memory_rows=torch.tensor([4, 0, 2]))
    found = stack.run(x.clone(), [mapped if pre_norm else cache], slots, threads, starts)
    return distance(found, expected if last is None else F.layer_norm(expected, (_SIZE,)))


def encoder_error(functions: LayerFunctions, threads: int) -> float:
    """The largest deviation of an encoder, over the tolerance."""
    return max(_encoder_error(functions, threads, pre_norm) for pre_norm in (True, False)) / _TOLERANCE


def _encoder_error(functions: LayerFunctions, threads: int, pre_norm: bool) -> float:
    weights, norm = [_weights(t, cross=False) for t in range(2)], plain_norm(_SIZE)
    layers = [PackedEncoderLayer(_packed(each), (norm, norm)) for each in weights]
    stack = EncoderStack(functions, layers, heads=_HEADS, pre_norm=pre_norm, epsilon=1e-5)
    lengths = torch.tensor([70, 1, 33, 60, 15, 2])
    x = numbers(len(lengths), 70, _SIZE, speed=0.6)
    padding = torch.arange(70) >= lengths[:, None]
    bias = torch.zeros(padding.shape).masked_fill(padding, -math.inf)[:, None, None]
    found, expected = stack.run(x, lengths, len(layers), threads), x
    for each in weights:
        expected = PlainLayer.of(each, _HEADS, pre_norm).encode(expected, bias)
    return distance(found, expected.masked_fill(padding[:, :, None], 0.0))


def search_error(functions: LayerFunctions, threads: int) -> float:
    """The largest deviation of a greedy search, over the tolerance; infinity if a token is another one."""
    sentences, vocabulary, longest, norm = 7, 40, 9, plain_norm(_SIZE)
    weights = [_weights(0.7 * t, recurrent=True) for t in range(2)]
    packed = [PackedLayer(_packed(each), (norm, norm, norm), recurrent=True) for each in weights]
    stack = LayerStack(functions, packed, heads=_HEADS, last=None, pre_norm=False, epsilon=1e-5)
    caches = [LayerCache(None, None, *_memory(sentences, 5, t)) for t in range(2)]
    given = Embedding(numbers(vocabulary, _SIZE, speed=1.9), numbers(longest, _SIZE, speed=0.31), 3.0)
    allowed = (torch.arange(vocabulary) < 3) | (torch.arange(vocabulary) % torch.arange(1, 8)[:, None] == 0)
    output = row_table(given.table, None, torch.float32), TokenLists.of(allowed)
    limits, (begin, end, never) = torch.tensor([9, 9, 1, 2, 9, 9, 5]), (1, 2, (0, 1))
    found, lengths, scores = greedy(stack, caches, given, output, limits, (begin, end, never), threads)
    caches = [replace(each, state=torch.zeros(sentences, _SIZE)) for each in caches]
    tokens, expected = torch.zeros(sentences, longest, dtype=torch.int32), torch.zeros(sentences)
    last, going, unused = torch.full((sentences,), begin), torch.ones(sentences, dtype=torch.bool), torch.zeros(1, 1)
    for t in range(longest):
        x = given.table[last] * given.scale + numbers(longest, _SIZE, speed=0.31)[t]
        for each, cache in zip(weights, caches, strict=True):
            x = PlainLayer.of(each, _HEADS, False).step(x, cache, unused, unused)
        likely = (x @ given.table.T).masked_fill(~allowed, -math.inf).log_softmax(-1)
        best, last = likely.index_fill(1, torch.tensor(never), -math.inf).max(-1)
        tokens[going, t] = last[going].int()
        expected[going] += best[going]
        going &= (last != end) & (t + 1 < limits)
    written = torch.arange(longest) < lengths[:, None]
    if not torch.equal(found.where(written, 0), tokens):
        return math.inf
    return distance(scores / (lengths + 1), expected / (lengths + 1)) / _SEARCH_TOLERANCE
