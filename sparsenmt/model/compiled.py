"""A step of decoding in one call: a packed decoder whose layers a compiled kernel knows.

It is for what most steps are: one new position of fp32 rows on a CPU, learned heads with softmax over everything
before, or over the largest scores, nobody listening. All else goes through `stacks.Decoder`, which computes the same.

N rows, D dimension, H heads, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparsenmt.model.attend import Mask
from sparsenmt.model.attention import AttentionStep, KeysValues, MultiHeadAttention
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.layers import TransformerBlock
from sparsenmt.model.linear import CompiledProduct
from sparsenmt.model.sockets import Keys
from sparsenmt.native.kernels import HEAD_SIZES, kernels, threads
from sparsenmt.native.steps import Layer, Norm, Room, Stack

Sockets = tuple[AttentionStep, AttentionStep]  # of a step: self-attention, cross-attention


class CompiledDecoder:
    """The layers of a decoder.

    Args:
        plan: number of the block that every step executes.
        blocks: by number.
        sockets: of every step: self-attention, cross-attention.
    """

    def __init__(
        self,
        stack: Stack,
        plan: Sequence[int],
        blocks: Sequence[TransformerBlock],
        sockets: Sequence[Sockets],
        weights: int,
    ) -> None:
        self._stack, self._plan, self._blocks, self._sockets = stack, plan, blocks, sockets
        self._weights = weights  # numbers in a layer

    @staticmethod
    def of(
        plan: Sequence[int], blocks: Sequence[TransformerBlock], sockets: Sequence[Sockets], last: nn.Module
    ) -> CompiledDecoder | None:
        """For these, once they are packed; None where the kernel is not for them, or there is none.

        last: what comes after the last layer, a normalisation or nothing.
        """
        found, layers = kernels(), [_layer(block) for block in blocks]
        known = [layer for layer in layers if layer is not None]
        simple = all(step.compilable for both in sockets for step in both)
        if found is None or not found.has_products or len(known) < len(layers) or not simple:
            return None
        norm = blocks[0].self_norm
        assert isinstance(norm, nn.LayerNorm)
        stack = Stack(
            found.step,
            [replace(known[number], places=_places(*both)) for number, both in zip(plan, sockets, strict=True)],
            heads=blocks[0].own.learned_heads,
            last=_norm(last) if isinstance(last, nn.LayerNorm) else None,
            pre_norm=blocks[0].norm == "pre",
            epsilon=norm.eps,
        )
        return CompiledDecoder(stack, plan, blocks, sockets, known[0].weights)

    def takes(self, x: Tensor, cache: KVCache, depth: int, keys: Callable[[], Keys]) -> bool:
        """Whether `run` is for such embedded pieces (N, T, D).

        keys: makes those of the memory, with its padding hidden.
        """
        if x.shape[1] != 1 or not x.shape[0] or x.dtype != torch.float32 or torch.is_grad_enabled():
            return False
        if self._sockets[0][0].observed:
            return False
        if cache.compiled is None or cache.compiled[0] != depth:
            seen = keys()
            cache.compiled = depth, all(self._reads(cache, t, seen) for t in range(depth))
        return cache.compiled[1]

    def _reads(self, cache: KVCache, t: int, keys: Keys) -> bool:
        """Whether the kernel can read the memory at step ``t``."""
        own, cross = self._sockets[t]
        if own.disabled or cross.disabled or _adds(own, _one_key()):
            return False
        if cross.transform.places is not None and keys.counts is not None:  # a key may take several places
            return False
        kv = self._memory(cache, t)
        if kv.upright or kv.keys is None or not kv.keys.shape[2] or not _plain(kv.keys) or not _plain(kv.values):
            return False
        mask = cache.memory_mask(t, lambda: cross.memory_mask(keys, kv.values.dtype))
        if mask is None:  # either nothing is hidden, or every query needs a mask of its own
            return keys.allowed is None and not _adds(cross, keys)
        rows, _, entries, _ = kv.keys.shape
        return mask.blind is None and _plain(mask.scores) and mask.scores.shape == (rows, 1, 1, entries)

    def _memory(self, cache: KVCache, t: int) -> KeysValues:
        block = self._blocks[self._plan[t]]
        assert block.cross is not None
        return cache.memory_keys_values(self._plan[t], block.cross.project_keys_values)

    def run(self, x: Tensor, cache: KVCache, depth: int) -> Tensor:
        """x (N, 1, D), embedded pieces at the position that ``cache`` has just advanced to -> (N, 1, D)."""
        rows, _, size = x.shape
        like = x.view(1, rows, self._blocks[0].own.learned_heads, -1)
        rooms = []
        for t in range(depth):
            (kv, left), mask = cache.memory_as_it_lies(self._plan[t]), cache.memory_mask(t, _known)
            assert kv.keys is not None
            bias = None if mask is None else mask.scores
            rooms.append(Room(*cache.extend(t, like), kv.keys, kv.values, left, bias))
        flat, cores = x.reshape(rows, size).clone(), threads(rows * self._weights)
        out = self._stack.run(flat, rooms, cache.slots, cores, cache.starts)
        return out.view(rows, 1, size)


def _adds(step: AttentionStep, keys: Keys) -> bool:
    """Whether the transform adds something to the scores."""
    return step.transform.fusable and step.transform.score_bias(keys) is not None


def _places(own: AttentionStep, cross: AttentionStep) -> tuple[int, int]:
    return own.transform.places or 0, cross.transform.places or 0


def _known() -> Mask | None:
    raise AssertionError("made when it was asked whether the kernel can read the memory")


def _one_key() -> Keys:
    """What a self-attention that sees everything before it may look at, at the first position."""
    zero = torch.zeros(1, 1, dtype=torch.long)
    return Keys(torch.ones(1, 1, dtype=torch.bool), zero, zero)


def _plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _layer(block: TransformerBlock) -> Layer | None:
    """What the kernel needs of a packed block; None where it does not know such blocks."""
    own, cross, wide = block.own, block.cross, block.feed_forward
    if cross is None or not _simple(own) or not _simple(cross) or wide.activation != "relu":
        return None
    if cross.learned_heads != own.learned_heads:
        return None
    products = (own.packed_qkv, own.o.packed, cross.q.packed, cross.o.packed, wide.packed_inner, wide.outer.packed)
    matrices = [product.packed for product in products if isinstance(product, CompiledProduct)]
    if len(matrices) < len(products):
        return None
    norms = (block.self_norm, block.cross_norm, block.feed_forward_norm)
    return Layer(tuple(matrices), tuple(_norm(norm) for norm in norms))


def _simple(attention: MultiHeadAttention) -> bool:
    size = attention.head_size
    return attention.given is None and size in HEAD_SIZES and attention.o.out_features == size * attention.learned_heads


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm)
    return Norm(norm.weight.detach(), norm.bias.detach())
