"""An encoder in one call of a compiled kernel.

The kernel covers the usual encoder: fp32 states on a CPU, learned heads whose weights are a softmax over the whole
sentence, padding on the right, no listener. All else goes layer by layer through `stacks.Encoder`, which computes the
same.

Shapes: B sentences, S source positions, D dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.compiled_step import adds_to_scores, heads_are_compiled, norm_weights
from sparsenmt.model.layers import TransformerBlock
from sparsenmt.model.linear import LAST_LEVEL_CACHE_SIZE, CompiledProduct, compiled_dtypes
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Keys, SoftmaxKernel
from sparsenmt.native.encoder import EncoderStack, PackedEncoderLayer
from sparsenmt.native.kernels import kernels, kernels_for, threads


class CompiledEncoder:
    """The layers of a packed encoder in one call.

    Args:
        sockets: of every step.
    """

    def __init__(self, stack: EncoderStack, sockets: Sequence[AttentionStep]) -> None:
        self._stack, self._sockets = stack, sockets

    @staticmethod
    def is_chosen(blocks: Sequence[TransformerBlock], sockets: Sequence[AttentionStep], dtype: torch.dtype) -> bool:
        """Return True if the kernel covers these blocks, with products in ``dtype``, and is faster than the layers."""
        if not blocks:
            return False
        inner = blocks[0].feed_forward.inner.weight
        found = kernels_for(inner)
        simple = all(step.softmax_kernel == SoftmaxKernel() for step in sockets)
        if found is None or dtype not in compiled_dtypes(inner) or not simple or not all(map(_covered, blocks)):
            return False
        wide, size = inner.shape
        if (4 * size + 2 * wide) * size * dtype.itemsize > LAST_LEVEL_CACHE_SIZE:  # a thread reads a layer for few rows
            return False
        return found.faster("encoder", dtype, size, wide, blocks[0].own.learned_heads)

    @staticmethod
    def of(
        plan: Sequence[int], blocks: Sequence[TransformerBlock], sockets: Sequence[AttentionStep]
    ) -> CompiledEncoder:
        """Make the encoder of blocks that are packed for the kernel, as `is_chosen` says.

        plan: number of the block that every step executes.
        """
        found, known, first = kernels(), [_layer(block) for block in blocks], blocks[0]
        assert found is not None and isinstance(first.self_norm, nn.LayerNorm)
        stack = EncoderStack(
            found.encoder,
            [known[number] for number in plan],
            heads=first.own.learned_heads,
            pre_norm=first.norm == "pre",
            epsilon=first.self_norm.eps,
        )
        return CompiledEncoder(stack, sockets)

    def run(self, memory: Memory, depth: int) -> Tensor | None:
        """Return the states (B, S, D) after the first ``depth`` steps from embedded sources; None: go layer by layer.

        Padding gets zeros.
        """
        states, valid = memory.states, memory.valid
        plain = states.dtype == torch.float32 and not torch.is_grad_enabled() and valid.numel() > 0
        if not plain or memory.counts is not None or any(step.observed or step.disabled for step in self._sockets):
            return None
        keys = Keys(valid, memory.positions, memory.positions, None, None, memory.features)
        lengths = valid.sum(1)
        padded_left = bool((valid != (torch.arange(valid.shape[1]) < lengths[:, None])).any())
        if padded_left or any(adds_to_scores(step, keys) for step in self._sockets[:depth]):
            return None
        cores = min(threads(valid.numel() * self._stack.weights), valid.shape[0])
        found = kernels()
        if cores < torch.get_num_threads() and (
            found is None or not found.faster("encoder of few", *self._stack.sizes)
        ):
            return None  # most threads would have no sentence
        return self._stack.run(states.contiguous(), lengths, depth, cores)


def _covered(block: TransformerBlock) -> bool:
    """Return True if the kernel computes such blocks."""
    plain = block.recurrence is None and block.cross is None and block.feed_forward.activation == "relu"
    return plain and heads_are_compiled(block.own)


def _layer(block: TransformerBlock) -> PackedEncoderLayer:
    """The weights of a packed block as the kernel takes them."""
    own, feed_forward = block.own, block.feed_forward
    products = (own.packed_qkv, own.o.packed, feed_forward.packed_inner, feed_forward.outer.packed)
    matrices = [product.packed for product in products if isinstance(product, CompiledProduct)]
    assert len(matrices) == len(products)
    norms = norm_weights(block.self_norm), norm_weights(block.feed_forward_norm)
    return PackedEncoderLayer(tuple(matrices), norms)
