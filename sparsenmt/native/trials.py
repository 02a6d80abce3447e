"""The table of classes in which kernels of decoding are measured against PyTorch's operators (`choice.Choice`).

A class is a kernel and sizes, each of which stands for a range. The problems have the layouts that the callers have,
and PyTorch solves them as the callers would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native import encoder, onednn, steps
from sparsenmt.native.choice import Trial, usual_length
from sparsenmt.native.steps import numbers
from sparsenmt.native.token_lists import TokenLists

if TYPE_CHECKING:  # that module imports this one
    from sparsenmt.native.kernels import Kernels

FEW_QUERIES = 8  # queries up to which the kernel copies no keys, and plain products are faster than a fused attention
_FEW = ((1, 1), (FEW_QUERIES, 4))
_VOCABULARIES = ((1 << 14, 8000),)
_LARGEST = 20000
_HEADS, _WIDTH, _NEVER = 8, 8, (0, 1)
_HYPOTHESES, _SENTENCES = 4, (1, 16)  # of one sentence, of a batch
_STEPS = 16  # positions of a step, and entries of its memory
_SCORES = 1 << 14  # of attention, about
_ROWS = 128  # of a product
_LARGE_TABLE = 1 << 13  # rows of an output table that stand for more


Sizes = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """The classes of a kernel.

    Args:
        classes: maps the sizes of a caller's problem to classes; the kernel must be faster in all of them.
        trial: makes the problem of a class.
    """

    classes: Callable[..., list[Sizes]]
    trial: Callable[..., Trial]


def _vocabulary(size: int) -> int:
    return next((stands for most, stands in _VOCABULARIES if size <= most), _LARGEST)


def _attention_classes(size: int, queries: int, keys: int) -> list[Sizes]:
    few = next((stands for most, stands in _FEW if queries <= most), None)
    return [(size, few or usual_length(queries), usual_length(keys))]


def _slots_classes(size: int, keys: int, in_order: bool) -> list[Sizes]:
    return [(size, usual_length(keys), "in order" if in_order else "any order")]


def _vocabulary_classes(size: int) -> list[Sizes]:
    return [(_vocabulary(size),)]


def _product_classes(dtype: torch.dtype, outer: int, inner: int) -> list[Sizes]:
    return [(dtype, outer, inner)]


def _packed_classes(dtype: torch.dtype, size: int, inner: int) -> list[Sizes]:
    return [(dtype, min(size, _LARGE_TABLE), inner)]


def _next_classes(dtype: torch.dtype, size: int, inner: int) -> list[Sizes]:
    return [(dtype, _vocabulary(size), inner, sentences) for sentences in _SENTENCES]


def _listed_classes(dtype: torch.dtype, inner: int) -> list[Sizes]:
    return [(dtype, inner, sentences) for sentences in _SENTENCES]


def _step_classes(dtype: torch.dtype, size: int, wide: int, heads: int) -> list[Sizes]:
    return [(dtype, size, wide, heads, sentences) for sentences in _SENTENCES]


def _encoder_classes(dtype: torch.dtype, size: int, wide: int, heads: int, few: bool) -> list[Sizes]:
    """A batch, or fewer sentences than threads: those have whole sentences."""
    return [(dtype, size, wide, heads, _SENTENCES[0 if few else 1])]


def attend_plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention by plain products."""
    return torch.softmax((q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5).add_(bias), -1) @ v


def _attention(found: Kernels, size: int, queries: int, keys: int) -> Trial:
    """A batch with padding: an encoder's many queries as they are split from one product, or a search's few."""
    rows = max(1, _SCORES // (_HEADS * queries * keys))
    bias = torch.zeros(rows, 1, 1, keys)
    if queries <= FEW_QUERIES:
        q = numbers(rows, queries, _HEADS, size).transpose(1, 2)
        k, v = numbers(rows, _HEADS, keys, size, speed=1.3), numbers(rows, _HEADS, keys, size, speed=0.3)
        return lambda: found.attend(q, k, v, bias=bias.view(rows, keys)), lambda: attend_plain(q, k, v, bias)
    split = numbers(rows, max(queries, keys), 3, _HEADS, size).permute(2, 0, 3, 1, 4)
    q, k, v = split[0, :, :, :queries], split[1, :, :, :keys], split[2, :, :, :keys]

    def fused() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return lambda: found.attend(q, k, v, bias=bias.view(rows, keys)), fused


def _slots(found: Kernels, size: int, keys: int, order: str) -> Trial:
    """Self-attention of a search."""
    rows = min(_SENTENCES[1] * _HYPOTHESES, _SCORES // (_HEADS * keys))
    q = numbers(rows, 1, _HEADS, size).transpose(1, 2)
    k, v = numbers(keys, rows, _HEADS, size, speed=1.3), numbers(keys, rows, _HEADS, size, speed=0.3)
    slots, unbiased = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, keys), torch.zeros(())
    if order == "in order":
        views = k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3)
        return lambda: found.attend(q, k, v, slots=slots), lambda: attend_plain(q, *views, unbiased)
    slots = slots.flip(0)

    def plain() -> Tensor:
        return attend_plain(q, steps.gather(k, slots), steps.gather(v, slots), unbiased)

    return lambda: found.attend(q, k, v, slots=slots), plain


def _logits(size: int) -> tuple[Tensor, Tensor]:
    return numbers(_SENTENCES[1] * _HYPOTHESES, size) * 8, -numbers(_SENTENCES[1], _HYPOTHESES).abs()


def _log_sums(found: Kernels, size: int) -> Trial:
    logits, _ = _logits(size)
    return lambda: found.log_sums(logits), lambda: logits.logsumexp(-1, keepdim=True)


def _best(found: Kernels, size: int) -> Trial:
    logits, _ = _logits(size)
    return lambda: found.best(logits, _WIDTH), lambda: logits.topk(_WIDTH, -1)


def _plain_candidates(logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    normalizer = logits.logsumexp(-1, keepdim=True)
    logits[:, _NEVER] = -math.inf
    values, tokens = logits.topk(_WIDTH, -1)
    best = ((values - normalizer) + scores.view(-1, 1)).view(len(scores), -1).topk(_WIDTH, -1)
    return best.values, tokens.view(len(scores), -1).gather(1, best.indices)


def _candidates(found: Kernels, size: int) -> Trial:
    logits, scores = _logits(size)
    own = logits.clone()  # each side writes to its logits
    return lambda: found.candidates(logits, scores, _NEVER, _WIDTH), lambda: _plain_candidates(own, scores)


def _product(found: Kernels, dtype: torch.dtype, outer: int, inner: int) -> Trial:
    """A batch's product with a matrix, which PyTorch multiplies in fp32."""
    x, weight = numbers(_ROWS, inner), numbers(outer, inner, speed=1.3)
    packed = found.layout.pack(weight, None, dtype)
    return lambda: found.product(x, packed), lambda: F.linear(x, weight)


def _packed_product(found: Kernels, dtype: torch.dtype, outer: int, inner: int) -> Trial:
    """The same, where PyTorch packs the matrix, too, if it can (a private operator)."""
    ours, plain = _product(found, dtype, outer, inner)
    x, weight = numbers(_ROWS, inner), numbers(outer, inner, speed=1.3)
    if not onednn.works(torch.float32):
        return ours, plain
    packed = onednn.reorder(weight, _ROWS)
    return ours, lambda: onednn.multiply(x, packed, None)


def _next(found: Kernels, dtype: torch.dtype, size: int, inner: int, sentences: int) -> Trial:
    """The best continuations from states: in a rounded dtype, the product is compiled on both sides."""
    x, weight = numbers(sentences * _HYPOTHESES, inner), numbers(size, inner, speed=1.3)
    packed, scores = found.layout.pack(weight, None, dtype), -numbers(sentences, _HYPOTHESES).abs()

    def product() -> Tensor:
        return F.linear(x, weight) if dtype == torch.float32 else found.product(x, packed)

    return lambda: found.next(x, packed, scores, _NEVER, _WIDTH), lambda: _plain_candidates(product(), scores)


def _next_listed(found: Kernels, dtype: torch.dtype, inner: int, sentences: int) -> Trial:
    """The best continuations in lists of an eleventh of a vocabulary; without the kernel, a mask hides the others."""
    x, weight = numbers(sentences * _HYPOTHESES, inner), numbers(_VOCABULARIES[0][1], inner, speed=1.3)
    table, packed = found.layout.row_table(weight, None, dtype), found.layout.pack(weight, None, dtype)
    scores, tokens = -numbers(sentences, _HYPOTHESES).abs(), torch.arange(len(weight))
    allowed = (tokens + torch.arange(sentences)[:, None]) % 11 == 0
    allowed[:, :4] = True  # the special tokens
    lists, mask = TokenLists.of(allowed), torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)

    def plain() -> tuple[Tensor, Tensor]:
        logits = F.linear(x, weight) if dtype == torch.float32 else found.product(x, packed)
        return _plain_candidates(logits + mask.repeat_interleave(_HYPOTHESES, 0), scores)

    return lambda: found.next_listed(x, table, lists, scores, _NEVER, _WIDTH), plain


def _step(
    found: Kernels, dtype: torch.dtype, size: int, wide: int, heads: int, sentences: int, *, recurrent: bool = False
) -> Trial:
    """A layer of a decoder: in a rounded dtype, products are compiled on both sides."""
    shapes = steps.matrix_shapes(size, wide, recurrent)
    weights = {name: numbers(*shape, speed=1.3) / size for name, shape in shapes.items()}
    packed = {name: found.layout.pack(weight, None, dtype) for name, weight in weights.items()}
    norm = steps.NormWeights(torch.ones(size), torch.zeros(size))
    layer = steps.PackedLayer(tuple(packed.values()), (norm, norm, norm), recurrent=recurrent)
    stack = steps.LayerStack(found.step, [layer], heads=heads, last=norm, pre_norm=True, epsilon=1e-5)
    rows, head = sentences * _HYPOTHESES, size // heads
    own, memory = numbers(_STEPS, rows, heads, head), numbers(sentences, heads, _STEPS, head)
    written = (None, None) if recurrent else (own, own.clone())
    states = [torch.zeros(rows, size) if recurrent else None for _ in range(2)]  # each side overwrites its own
    remembered = (memory, memory.clone(), None, torch.zeros(sentences, _STEPS))
    cache, theirs = (steps.LayerCache(written[0], written[1], *remembered, state) for state in states)
    slots, starts = torch.arange(rows, dtype=torch.int32).flip(0)[:, None].repeat(1, _STEPS), torch.zeros(sentences)
    slots[:, -1] = torch.arange(rows)
    x, cores = numbers(rows, size), torch.get_num_threads()

    def product(name: str, rows: Tensor) -> Tensor:
        return F.linear(rows, weights[name]) if dtype == torch.float32 else found.product(rows, packed[name])

    def plain() -> Tensor:
        return steps.plain_layer(x, product, theirs, slots, starts, heads, True, (0, 0))

    return lambda: stack.run(x.clone(), [cache], slots, cores), plain


def _encoder(found: Kernels, dtype: torch.dtype, size: int, wide: int, heads: int, sentences: int) -> Trial:
    """A layer of an encoder: in a rounded dtype, products are compiled on both sides."""
    weights = {name: numbers(*shape, speed=1.3) / size for name, shape in encoder.matrix_shapes(size, wide).items()}
    packed = {name: found.layout.pack(weight, None, dtype) for name, weight in weights.items()}
    norm = steps.NormWeights(torch.ones(size), torch.zeros(size))
    layer = encoder.PackedEncoderLayer(tuple(packed.values()), (norm, norm))
    stack = encoder.EncoderStack(found.encoder, [layer], heads=heads, pre_norm=True, epsilon=1e-5)
    x, lengths = numbers(sentences, _STEPS, size), torch.full((sentences,), _STEPS)
    hidden, cores = torch.zeros(sentences, 1, 1, _STEPS), torch.get_num_threads()

    def product(name: str, rows: Tensor) -> Tensor:
        return F.linear(rows, weights[name]) if dtype == torch.float32 else found.product(rows, packed[name])

    def plain() -> Tensor:
        return encoder.plain_layer(x, product, hidden, heads, True)

    return lambda: stack.run(x, lengths, 1, min(cores, sentences)), plain


TRIALS: dict[str, Kind] = {
    "attention": Kind(_attention_classes, _attention),
    "attention to slots": Kind(_slots_classes, _slots),
    "log sums": Kind(_vocabulary_classes, _log_sums),
    "best tokens": Kind(_vocabulary_classes, _best),
    "candidates": Kind(_vocabulary_classes, _candidates),
    "product": Kind(_product_classes, _product),
    "packed product": Kind(_packed_classes, _packed_product),
    "next tokens": Kind(_next_classes, _next),
    "next listed tokens": Kind(_listed_classes, _next_listed),
    "encoder": Kind(_encoder_classes, _encoder),
    "decoder step": Kind(_step_classes, _step),
    "recurrent decoder step": Kind(_step_classes, partial(_step, recurrent=True)),
}
