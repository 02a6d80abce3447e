"""A decoder whose step is one call of a compiled kernel, and the cache whose memory the kernel reads in place.

The kernel covers the usual step: one new position of fp32 rows on a CPU, learned heads whose weights are a
`SoftmaxKernel` over everything before, or a recurrent cell that it knows, no listener. All else goes layer by layer
through `stacks.Decoder`, which computes the same.
Shapes: N rows, B sentences, T new positions, D dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparsenmt.engine.packing import (
    Packing,
    adds_to_scores,
    blocks_of,
    heads_are_compiled,
    layers_are_compiled,
    matrices_of,
    norm_weights,
    take_over,
)
from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import AttentionStep, KeysValues
from sparsenmt.model.kv_cache import BufferPool, KVCache
from sparsenmt.model.layers import TransformerBlock
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import ExitRule
from sparsenmt.model.sockets import Keys, SoftmaxKernel
from sparsenmt.model.stacks import Decoder, memory_keys
from sparsenmt.native.greedy import Embedding, greedy
from sparsenmt.native.kernels import Kernels, threads
from sparsenmt.native.packing import RowTable
from sparsenmt.native.steps import LayerCache, LayerStack, PackedLayer
from sparsenmt.native.token_lists import TokenLists


class CompiledCache(KVCache):
    """The KV cache of `NativeDecoder`: finished sentences' cross-attention keys and values stay, and a table maps rows.

    Args:
        buffers, projected: as for `KVCache`.
        read_depth: a new cache, with its memory -> its `compiled_depth`.

    Attributes:
        compiled_depth: the number of first decoder layers in which the kernel can read the memory; 0: in none.
        memory_rows: (B) int64, each unfinished sentence's row of cross-attention keys and values; None: all, in order.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        buffers: BufferPool,
        read_depth: Callable[[CompiledCache], int],
        projected: dict[int, KeysValues] | None = None,
    ) -> None:
        super().__init__(memory, stepwise=False, buffers=buffers, projected=projected)
        self._read_depth = read_depth
        self.memory_rows: Tensor | None = None
        self.compiled_depth = read_depth(self)
        self.can_merge = self.compiled_depth > 0

    def stored(self, block: int) -> KeysValues:
        """The cross-attention keys and values of a block, with those of finished sentences: `memory_rows` maps them."""
        return self._memory_kv[block]

    def memory_keys_values(self, block: int, project: Callable[..., KeysValues]) -> KeysValues:
        """The cross-attention keys and values of a block, of unfinished sentences alone, as `KVCache` has them."""
        self._memory_kv = self._own_memory()
        return super().memory_keys_values(block, project)

    def _select_memory(self, sentences: Tensor) -> None:
        if self.compiled_depth:  # the kernel reads through a table of rows: nothing is copied
            rows = self.memory_rows
            self.memory_rows = sentences if rows is None else rows[sentences]
        else:
            super()._select_memory(sentences)

    def _own_memory(self) -> dict[int, KeysValues]:
        """Block -> cross-attention keys and values of unfinished sentences alone: the others are removed."""
        if self.memory_rows is not None:
            rows, self.memory_rows = self.memory_rows, None
            self._memory_kv = {number: kv.select(rows) for number, kv in self._memory_kv.items()}
        return self._memory_kv

    def _with_memory(self, memory: Memory, projected: dict[int, KeysValues]) -> CompiledCache:
        return CompiledCache(memory, buffers=self._buffers, read_depth=self._read_depth, projected=projected)


class NativeDecoder(Decoder):
    """A packed decoder whose step is one call; it replaces ``plain``, whose blocks it packs in their places."""

    def __init__(self, plain: Decoder, how: Packing, found: Kernels) -> None:
        nn.Module.__init__(self)
        take_over(self, plain)
        how.blocks(self.layers, compiled=True)
        self._blocks, self._sockets = blocks_of(self), _sockets(self)
        known, norm = [_layer(block) for block in self._blocks], self._blocks[0].self_norm
        assert isinstance(norm, nn.LayerNorm)
        self._heads, self._weights = _heads(self._blocks[0]), known[0].weights
        self._stack = LayerStack(
            found.layers,
            [_with_kernels(known[number], *both) for number, both in zip(self.plan, self._sockets, strict=True)],
            heads=self._heads,
            last=norm_weights(self.norm) if isinstance(self.norm, nn.LayerNorm) else None,
            pre_norm=self._blocks[0].norm == "pre",
            epsilon=norm.eps,
        )

    @staticmethod
    def knows(plain: Decoder, how: Packing, found: Kernels) -> bool:
        """Return True if the kernel computes blocks like these, packed as ``how`` says, faster than layer by layer."""
        if not plain.reads_source:
            return False
        blocks = blocks_of(plain)
        inner, dtype = blocks[0].feed_forward.inner.weight, how.dtype or torch.float32
        simple = all(step is None or step.softmax_kernel is not None for both in _sockets(plain) for step in both)
        if dtype not in found.layout.dtypes or not simple or not all(map(_covered, blocks)):
            return False
        wide, size = inner.shape
        kind = "decoder step" if blocks[0].recurrence is None else "recurrent decoder step"
        return found.faster(kind, dtype, size, wide, _heads(blocks[0]))

    def forward(
        self,
        x: Tensor,
        memory: Memory,
        cache: KVCache | None,
        exits: Sequence[int],
        valid: Tensor | None = None,
        rule: ExitRule | None = None,
    ) -> dict[int, Tensor]:
        """x (N, T, D) embedded tokens -> {depth: (N, T, D)}, as the decoder that it replaces."""
        if rule is None and isinstance(cache, CompiledCache) and self._takes(x, cache, exits):
            cache.advance(x.shape[0], 1)
            return {exits[0]: self._step(x, cache, exits[0])}
        return super().forward(x, memory, cache, exits, valid, rule)

    def new_cache(
        self, memory: Memory, exits: Sequence[int], buffers: BufferPool | None, segment_memory: int | None = None
    ) -> KVCache:
        """Make the cache of a search that runs to these exits."""
        if len(exits) != 1:
            return super().new_cache(memory, exits, buffers, segment_memory)
        depth = exits[0]
        return CompiledCache(memory, buffers=buffers or BufferPool(), read_depth=lambda own: self._reads(own, depth))

    def _takes(self, x: Tensor, cache: CompiledCache, exits: Sequence[int]) -> bool:
        """Return True if the kernel computes the step of embedded tokens x (N, T, D) to these exits."""
        one_position = x.shape[1] == 1 and x.shape[0] > 0
        plain = x.dtype == torch.float32 and not torch.is_grad_enabled()
        return one_position and plain and len(exits) == 1 and exits[0] <= cache.compiled_depth and not self._modified

    @property
    def _modified(self) -> bool:
        """True while attention has observers or disabled heads; all steps of a site have them in common."""
        own, cross = self._sockets[0]
        return cross.observed or bool(cross.disabled or (own is not None and own.disabled))

    def _reads(self, cache: CompiledCache, depth: int) -> int:
        """Return ``depth`` if the kernel can read the memory of a new cache in that many layers, otherwise 0.

        Projects the memory's keys and values and makes its masks, which the search needs in any case.
        """
        valid = cache.memory.valid
        if self._modified or not valid.numel():
            return 0
        first = torch.zeros(valid.shape[0], 1, dtype=torch.long, device=valid.device)  # any position will do
        keys = memory_keys(cache.memory, first)
        return depth if all(self._reads_at(cache, t, keys) for t in range(depth)) else 0

    def _reads_at(self, cache: CompiledCache, t: int, keys: Keys) -> bool:
        """Return True if the kernel can read the memory (``keys``: its positions) in execution step ``t``."""
        own, cross = self._sockets[t]
        if own is not None and adds_to_scores(own, _one_key()):
            return False
        if keys.counts is not None and cross.softmax_kernel is not None and cross.softmax_kernel.largest is not None:
            return False  # a key may count several times among the largest
        block = self._blocks[self.plan[t]]
        assert block.cross is not None
        kv = cache.memory_keys_values(self.plan[t], block.cross.project_keys_values)
        if kv.transposed or kv.keys is None or not _plain(kv.keys) or not _plain(kv.values):
            return False
        mask = cache.memory_mask(t, lambda: cross.memory_mask(keys, kv.values.dtype))
        if mask is None:  # either no key is masked, or every query needs a mask of its own
            return keys.allowed is None and not adds_to_scores(cross, keys)
        rows, _, entries, _ = kv.keys.shape
        return mask.fully_masked is None and _plain(mask.scores) and mask.scores.shape == (rows, 1, 1, entries)

    def takes_search(self, cache: KVCache, depth: int) -> bool:
        """Return True if `greedy` computes a search with this cache to decoder depth ``depth``; it must be new."""
        read = isinstance(cache, CompiledCache) and depth <= cache.compiled_depth
        return self.is_recurrent and read and not cache.length and not self._modified

    def greedy(
        self,
        cache: KVCache,
        depth: int,
        embedding: Embedding,
        output: tuple[RowTable, TokenLists],
        limits: Tensor,
        rules: tuple[int, int, Sequence[int]],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Search greedily with a new cache, with the other arguments and the results of `native.greedy.greedy`."""
        assert isinstance(cache, CompiledCache)
        cores = min(threads(len(limits) * self._weights), len(limits))
        return greedy(self._stack, self._memory(cache, depth), embedding, output, limits, rules, cores)

    def _step(self, x: Tensor, cache: CompiledCache, depth: int) -> Tensor:
        """x (N, 1, D), embedded tokens at the position that ``cache`` has just advanced to -> (N, 1, D)."""
        rows, _, size = x.shape
        like = x.view(1, rows, self._heads, -1)
        caches = []
        for t, memory in enumerate(self._memory(cache, depth)):
            state = None
            if self._blocks[self.plan[t]].recurrence is not None:
                state = cache.states.get(t)
                state = cache.states[t] = x.new_zeros(rows, size) if state is None else state.contiguous()
            keys, values = (None, None) if state is not None else cache.extend(t, like)
            caches.append(replace(memory, keys=keys, values=values, state=state))
        flat, cores = x.reshape(rows, size).clone(), threads(rows * self._weights)
        return self._stack.run(flat, caches, cache.slots, cores, cache.starts).view(rows, 1, size)

    def _memory(self, cache: CompiledCache, depth: int) -> list[LayerCache]:
        """The memory as each of the first ``depth`` execution steps reads it; the fields of self-attention are None."""
        found = []
        for t in range(depth):
            kv, mask = cache.stored(self.plan[t]), cache.memory_mask(t, _made)
            assert kv.keys is not None
            bias = None if mask is None else mask.scores
            found.append(LayerCache(None, None, kv.keys, kv.values, cache.memory_rows, bias))
        return found


StepSockets = tuple[AttentionStep | None, AttentionStep]  # self-attention (None: a recurrent layer), cross-attention


def _sockets(decoder: Decoder) -> list[StepSockets]:
    """The sockets of every execution step."""
    steps = range(len(decoder.plan))
    own = [None if decoder.is_recurrent else decoder.steps.at(t, "self") for t in steps]
    return [(own[t], decoder.steps.at(t, "cross")) for t in steps]


def _made() -> AttentionMask | None:
    raise AssertionError("the mask was made when the cache was constructed")


def _one_key() -> Keys:
    """The keys of self-attention at the first position."""
    zero = torch.zeros(1, 1, dtype=torch.long)
    return Keys(torch.ones(1, 1, dtype=torch.bool), zero, zero)


def _plain(x: Tensor) -> bool:
    """Return True if a kernel can read the tensor in its place."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def _covered(block: TransformerBlock) -> bool:
    """Return True if the kernel computes a block like this: heads, network, normalisations and recurrent cell."""
    cross = block.cross
    if cross is None or not heads_are_compiled(cross) or not layers_are_compiled(block):
        return False
    if block.recurrence is not None:
        return block.recurrence.cell.compiled
    return heads_are_compiled(block.own) and cross.learned_heads == block.own.learned_heads


def _layer(block: TransformerBlock) -> PackedLayer:
    """The weights of a packed block as the kernel takes them; they are shared."""
    norms = (block.self_norm, block.cross_norm, block.feed_forward_norm)
    return PackedLayer(
        matrices_of(block), tuple(norm_weights(norm) for norm in norms), recurrent=block.recurrence is not None
    )


def _with_kernels(layer: PackedLayer, own: AttentionStep | None, cross: AttentionStep) -> PackedLayer:
    """The layer of an execution step: its block's weights, and the softmax of its transforms."""
    both = [(step and step.softmax_kernel) or SoftmaxKernel() for step in (own, cross)]
    largest, tolerances = [kernel.largest or 0 for kernel in both], [kernel.tolerance for kernel in both]
    return replace(layer, largest=(largest[0], largest[1]), tolerances=(tolerances[0], tolerances[1]))


def _heads(block: TransformerBlock) -> int:
    assert block.cross is not None
    return block.cross.learned_heads
