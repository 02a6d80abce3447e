"""The parts of blocks as compiled kernels take them."""

from __future__ import annotations

from torch import nn

from sparsenmt.engine.packing import PackedAttention, PackedFeedForward, PackedLinear, PackedRecurrence
from sparsenmt.engine.products import CompiledProduct, Product
from sparsenmt.model.attention import AttentionStep, MultiHeadAttention
from sparsenmt.model.layers import TransformerBlock
from sparsenmt.model.sockets import Keys
from sparsenmt.model.stacks import Decoder, Encoder
from sparsenmt.native.packing import PackedMatrix
from sparsenmt.native.steps import HEAD_SIZES, NormWeights


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
