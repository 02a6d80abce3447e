"""A decoding step in one call of a compiled kernel.

The kernel covers the usual step: one new position of fp32 rows on a CPU, learned heads whose weights are a
`SoftmaxKernel` over everything before, or a recurrent cell that it knows, no listener. All else goes layer by layer
through `stacks.Decoder`, which computes the same.

Shapes: N rows, T positions, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import AttentionStep, MultiHeadAttention
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.layers import TransformerBlock
from sparsenmt.model.linear import CompiledProduct, compiled_dtypes
from sparsenmt.model.sockets import Keys, SoftmaxKernel
from sparsenmt.native.greedy import Embedding, GreedyOutputs, TokenRules, greedy
from sparsenmt.native.kernels import kernels, kernels_for, threads
from sparsenmt.native.packing import RowTable
from sparsenmt.native.steps import HEAD_SIZES, LayerCache, LayerStack, NormWeights, PackedLayer
from sparsenmt.native.token_lists import TokenLists

StepSockets = tuple[AttentionStep | None, AttentionStep]  # self-attention (None: a recurrent layer), cross-attention


class CompiledDecoder:
    """The layers of a packed decoder in one call.

    Args:
        plan: number of the block that every step executes.
        blocks: by number.
        sockets: of every step.
        weights: numbers in the matrices of a layer.
    """

    def __init__(
        self,
        stack: LayerStack,
        plan: Sequence[int],
        blocks: Sequence[TransformerBlock],
        sockets: Sequence[StepSockets],
        weights: int,
    ) -> None:
        self._stack, self._plan, self._blocks, self._sockets = stack, plan, blocks, sockets
        self._weights = weights

    @staticmethod
    def is_chosen(blocks: Sequence[TransformerBlock], sockets: Sequence[StepSockets], dtype: torch.dtype) -> bool:
        """Return True if the kernel covers these blocks, with products in ``dtype``, and is faster than the layers."""
        inner = blocks[0].feed_forward.inner.weight
        found = kernels_for(inner)
        simple = all(step is None or step.softmax_kernel is not None for both in sockets for step in both)
        if found is None or dtype not in compiled_dtypes(inner) or not simple or not all(map(_covered, blocks)):
            return False
        wide, size = inner.shape
        kind = "decoder step" if blocks[0].recurrence is None else "recurrent decoder step"
        return found.faster(kind, dtype, size, wide, _heads(blocks[0]))

    @staticmethod
    def of(
        plan: Sequence[int], blocks: Sequence[TransformerBlock], sockets: Sequence[StepSockets], last: nn.Module
    ) -> CompiledDecoder:
        """Make the decoder of blocks that are packed for the kernel, as `is_chosen` says.

        last: the module after the last layer, a normalisation or an identity.
        """
        found, known = kernels(), [_layer(block) for block in blocks]
        assert found is not None
        norm = blocks[0].self_norm
        assert isinstance(norm, nn.LayerNorm)
        stack = LayerStack(
            found.step,
            [_with_kernels(known[number], *both) for number, both in zip(plan, sockets, strict=True)],
            heads=_heads(blocks[0]),
            last=norm_weights(last) if isinstance(last, nn.LayerNorm) else None,
            pre_norm=blocks[0].norm == "pre",
            epsilon=norm.eps,
        )
        return CompiledDecoder(stack, plan, blocks, sockets, known[0].weights)

    def takes(self, x: Tensor, cache: KVCache, depth: int) -> bool:
        """Return True if `run` computes the step of embedded tokens x (N, T, D) through ``depth`` layers."""
        one_position = x.shape[1] == 1 and x.shape[0] > 0
        plain = x.dtype == torch.float32 and not torch.is_grad_enabled()
        return one_position and plain and depth <= cache.compiled_depth and not self._modified

    @property
    def _modified(self) -> bool:
        """True while attention has listeners or disabled heads, which all steps of a site have in common."""
        own, cross = self._sockets[0]
        return cross.observed or bool(cross.disabled or (own is not None and own.disabled))

    def read_depth(self, cache: KVCache, depth: int, keys: Callable[[], Keys]) -> int:
        """Return ``depth`` if the kernel can read the memory of a new cache in that many layers, otherwise 0.

        Projects the memory's keys and values and makes its masks, which the search needs in any case.

        keys: makes those of the memory, with its padding masked.
        """
        if self._modified or not cache.memory.valid.numel():
            return 0
        seen = keys()
        return depth if all(self._reads(cache, t, seen) for t in range(depth)) else 0

    def _reads(self, cache: KVCache, t: int, keys: Keys) -> bool:
        """Return True if the kernel can read the memory at step ``t``."""
        own, cross = self._sockets[t]
        if own is not None and adds_to_scores(own, _one_key()):
            return False
        if keys.counts is not None and cross.softmax_kernel is not None and cross.softmax_kernel.largest is not None:
            return False  # a key may count several times among the largest
        block = self._blocks[self._plan[t]]
        assert block.cross is not None
        kv = cache.memory_keys_values(self._plan[t], block.cross.project_keys_values)
        if kv.transposed or kv.keys is None or not _plain(kv.keys) or not _plain(kv.values):
            return False
        mask = cache.memory_mask(t, lambda: cross.memory_mask(keys, kv.values.dtype))
        if mask is None:  # either no key is masked, or every query needs a mask of its own
            return keys.allowed is None and not adds_to_scores(cross, keys)
        rows, _, entries, _ = kv.keys.shape
        return mask.fully_masked is None and _plain(mask.scores) and mask.scores.shape == (rows, 1, 1, entries)

    @property
    def recurrent(self) -> bool:
        """True if all layers are recurrent: a step depends on a state of one size, not on the number of the step."""
        return all(block.recurrence is not None for block in self._blocks)

    def greedy(
        self,
        cache: KVCache,
        depth: int,
        embedding: Embedding,
        output: tuple[RowTable, TokenLists],
        limits: Tensor,
        rules: TokenRules,
    ) -> GreedyOutputs | None:
        """Search greedily with a new cache, as `native.greedy`; None: it needs single steps."""
        if not self.recurrent or depth > cache.compiled_depth or cache.length or self._modified:
            return None
        cores = min(threads(len(limits) * self._weights), len(limits))
        return greedy(self._stack, self._memory(cache, depth), embedding, output, limits, rules, cores)

    def run(self, x: Tensor, cache: KVCache, depth: int) -> Tensor:
        """x (N, 1, D), embedded tokens at the position that ``cache`` has just advanced to -> (N, 1, D)."""
        rows, _, size = x.shape
        like = x.view(1, rows, _heads(self._blocks[0]), -1)
        caches = []
        for t, memory in enumerate(self._memory(cache, depth)):
            state = None
            if self._blocks[self._plan[t]].recurrence is not None:
                state = cache.states.get(t)
                state = cache.states[t] = x.new_zeros(rows, size) if state is None else state.contiguous()
            keys, values = (None, None) if state is not None else cache.extend(t, like)
            caches.append(replace(memory, keys=keys, values=values, state=state))
        flat, cores = x.reshape(rows, size).clone(), threads(rows * self._weights)
        out = self._stack.run(flat, caches, cache.slots, cores, cache.starts)
        return out.view(rows, 1, size)

    def _memory(self, cache: KVCache, depth: int) -> list[LayerCache]:
        """The memory as the first ``depth`` steps read it, without what they keep of the positions so far."""
        found = []
        for t in range(depth):
            (kv, memory_rows), mask = cache.stored_memory_keys_values(self._plan[t]), cache.memory_mask(t, _made)
            assert kv.keys is not None
            bias = None if mask is None else mask.scores
            found.append(LayerCache(None, None, kv.keys, kv.values, memory_rows, bias))
        return found


def adds_to_scores(step: AttentionStep, keys: Keys) -> bool:
    """Return True if the transform adds a bias to the scores."""
    return step.transform.fusable and step.transform.score_bias(keys) is not None


def _made() -> AttentionMask | None:
    raise AssertionError("the mask was made when the cache was constructed")


def _one_key() -> Keys:
    """The keys of self-attention at the first position."""
    zero = torch.zeros(1, 1, dtype=torch.long)
    return Keys(torch.ones(1, 1, dtype=torch.bool), zero, zero)


def _plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _covered(block: TransformerBlock) -> bool:
    """Return True if the kernel computes such blocks."""
    cross = block.cross
    if cross is None or not heads_are_compiled(cross) or block.feed_forward.activation != "relu":
        return False
    if block.recurrence is not None:
        return block.recurrence.cell.compiled
    return heads_are_compiled(block.own) and cross.learned_heads == block.own.learned_heads


def _layer(block: TransformerBlock) -> PackedLayer:
    """The weights of a packed block as the kernel takes them."""
    recurrence, cross, feed_forward = block.recurrence, block.cross, block.feed_forward
    assert cross is not None
    own = (block.own.packed_qkv, block.own.o.packed) if recurrence is None else (recurrence.packed,)
    products = (
        *(*own, cross.q.packed, cross.o.packed),
        *(feed_forward.packed_inner, feed_forward.outer.packed),
    )
    matrices = [product.packed for product in products if isinstance(product, CompiledProduct)]
    assert len(matrices) == len(products)
    norms = (block.self_norm, block.cross_norm, block.feed_forward_norm)
    return PackedLayer(tuple(matrices), tuple(norm_weights(norm) for norm in norms), recurrent=recurrence is not None)


def _with_kernels(layer: PackedLayer, own: AttentionStep | None, cross: AttentionStep) -> PackedLayer:
    both = [(step and step.softmax_kernel) or SoftmaxKernel() for step in (own, cross)]
    largest, tolerances = [kernel.largest or 0 for kernel in both], [kernel.tolerance for kernel in both]
    return replace(layer, largest=(largest[0], largest[1]), tolerances=(tolerances[0], tolerances[1]))


def _heads(block: TransformerBlock) -> int:
    assert block.cross is not None
    return block.cross.learned_heads


def heads_are_compiled(attention: MultiHeadAttention) -> bool:
    """Return True if kernels compute heads like these, all of which are learned."""
    size = attention.head_size
    return attention.fixed is None and size in HEAD_SIZES and attention.o.out_features == size * attention.learned_heads


def norm_weights(norm: nn.Module) -> NormWeights:
    """The parameters of a layer normalisation as kernels take them."""
    assert isinstance(norm, nn.LayerNorm)
    return NormWeights(norm.weight.detach(), norm.bias.detach())
