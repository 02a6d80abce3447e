"""An encoder whose layers are one call of a compiled kernel.

The kernel covers the usual encoder: fp32 states on a CPU, learned heads whose weights are a softmax over the whole
sentence, padding on the right, no listener. All else goes layer by layer through `stacks.Encoder`, which computes the
same.
Shapes: B sentences, S source positions, D dimension.
"""

from __future__ import annotations

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
from sparsenmt.engine.products import LAST_LEVEL_CACHE_SIZE
from sparsenmt.model.layers import TransformerBlock
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Keys, SoftmaxKernel
from sparsenmt.model.stacks import Encoder
from sparsenmt.native.encoder import EncoderStack, PackedEncoderLayer
from sparsenmt.native.kernels import Kernels, threads


class NativeEncoder(Encoder):
    """A packed encoder in one call; it replaces ``plain``, whose blocks it packs in their places."""

    def __init__(self, plain: Encoder, how: Packing, found: Kernels) -> None:
        nn.Module.__init__(self)
        take_over(self, plain)
        self._sockets = [self.steps.at(t, "self") for t in range(len(self.plan))]
        how.blocks(self.layers, compiled=True)
        blocks = blocks_of(self)
        known, first = [_layer(block) for block in blocks], blocks[0]
        assert isinstance(first.self_norm, nn.LayerNorm)
        self._stack = EncoderStack(
            found.layers,
            [known[number] for number in self.plan],
            heads=first.own.learned_heads,
            pre_norm=first.norm == "pre",
            epsilon=first.self_norm.eps,
        )
        self._weights = known[0].weights
        self._few = found.faster("encoder of few", *self._stack.sizes)  # with fewer sentences than threads

    @staticmethod
    def knows(plain: Encoder, how: Packing, found: Kernels) -> bool:
        """Return True if the kernel computes blocks like these, packed as ``how`` says, faster than layer by layer."""
        blocks = blocks_of(plain)
        if not blocks:
            return False
        inner, dtype = blocks[0].feed_forward.inner.weight, how.dtype or torch.float32
        simple = all(plain.steps.at(t, "self").softmax_kernel == SoftmaxKernel() for t in range(len(plain.plan)))
        if dtype not in found.layout.dtypes or not simple or not all(map(_covered, blocks)):
            return False
        wide, size = inner.shape
        if (4 * size + 2 * wide) * size * dtype.itemsize > LAST_LEVEL_CACHE_SIZE:  # a thread reads a layer for few rows
            return False
        return found.faster("encoder", dtype, size, wide, blocks[0].own.learned_heads)

    def run(self, memory: Memory, steps: range) -> Memory:
        """Execute some steps with no filter between them, in one call if they are the first ones."""
        states = self._in_one_call(memory, len(steps)) if steps.start == 0 and steps else None
        return self.one_by_one(memory, steps) if states is None else replace(memory, states=states, gated=False)

    def _in_one_call(self, memory: Memory, depth: int) -> Tensor | None:
        """The states (B, S, D) after the first ``depth`` steps, zeros at padding; None: not by the kernel."""
        states, valid = memory.states, memory.valid
        plain = states.dtype == torch.float32 and not torch.is_grad_enabled() and valid.numel() > 0
        if not plain or memory.counts is not None or any(step.observed or step.disabled for step in self._sockets):
            return None
        keys = Keys(valid, memory.positions, memory.positions, None, None, memory.features)
        lengths = valid.sum(1)
        padded_left = bool((valid != (torch.arange(valid.shape[1]) < lengths[:, None])).any())
        if padded_left or any(adds_to_scores(step, keys) for step in self._sockets[:depth]):
            return None
        cores = min(threads(valid.numel() * self._weights), valid.shape[0])
        if cores < torch.get_num_threads() and not self._few:
            return None  # most threads would have no sentence
        return self._stack.run(states.contiguous(), lengths, depth, cores)


def _covered(block: TransformerBlock) -> bool:
    """Return True if the kernel computes a block like this: its heads, network and normalisations."""
    plain = block.recurrence is None and block.cross is None and layers_are_compiled(block)
    return plain and heads_are_compiled(block.own)


def _layer(block: TransformerBlock) -> PackedEncoderLayer:
    """The weights of a packed block as the kernel takes them; they are shared."""
    norms = norm_weights(block.self_norm), norm_weights(block.feed_forward_norm)
    return PackedEncoderLayer(matrices_of(block), norms)
