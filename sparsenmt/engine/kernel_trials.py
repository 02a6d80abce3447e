"""The problems in which compiled kernels are measured against PyTorch's operators, for the table of choices.

The problems have the layouts that the callers have, and PyTorch solves them as the callers would. `every_class` has
the classes of the table (`native.choice`): one whose callers differ in more than its sizes has several problems.
Shapes: as in native/kernels.py and native/gradients.py.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.engine.entmax_kernel import FORMULAS, SimplexKernel, simplex_kernel
from sparsenmt.model.dropout import LEVELS, Draws, plain_drop
from sparsenmt.native import encoder, onednn, steps
from sparsenmt.native.agreement import numbers
from sparsenmt.native.choice import class_name
from sparsenmt.native.gradients import GradientKernels, HiddenKeys, dropout_problem, gradient_kernels, plain_attention
from sparsenmt.native.kernels import FEW_QUERIES, Kernels, kernels
from sparsenmt.native.layer_checks import PlainLayer, gather, plain_attend, plain_norm
from sparsenmt.native.packing import PackedMatrix
from sparsenmt.native.token_lists import TokenLists
from sparsenmt.sparsity.simplex import newton

Trial = tuple[Callable[[], object], Callable[[], object]]
"""Two functions that solve one problem: by the kernel, and by PyTorch."""

_HEADS, _WIDTH, _NEVER = 8, 8, (0, 1)
_HYPOTHESES, _SENTENCES = 4, (1, 16)  # J of a sentence; B of a line alone and of a batch
_STEPS = 16  # positions of a step, and entries of its memory
_SCORES = 1 << 14  # of attention, about: (rows, H, Q, K) together
_ROWS = 128  # of a product
_LISTED = 8000  # tokens of a vocabulary with lists
_TRAINED_HEADS, _TRAINED_SCORES, _TRAINED_ROWS, _TRAINED_NUMBERS, _SIMPLEX_SCORES = 4, 1 << 17, 64, 1 << 18, 1 << 15
_LEAST_TURNS, _MOST_TURNS = 7, 400  # with fewer, other programs decide


def measure(ours: Callable[[], object], theirs: Callable[[], object], seconds: float) -> float:
    """The seconds of the first over those of the second: the fastest of several turns, as disturbances only add."""
    ours(), theirs()
    best, began = [math.inf, math.inf], time.perf_counter()
    for turn in range(1, _MOST_TURNS + 1):
        for side, run in enumerate((ours, theirs)):
            start = time.perf_counter()
            run()
            best[side] = min(best[side], time.perf_counter() - start)
        if turn >= _LEAST_TURNS and time.perf_counter() - began > seconds:
            break
    return best[0] / best[1]


def _attention(found: Kernels, size: int, queries: int, keys: int) -> Trial:
    """A batch with padding: an encoder's many queries as they are split from one product, or a search's few."""
    rows = max(1, _SCORES // (_HEADS * queries * keys))
    bias = torch.zeros(rows, 1, 1, keys)
    if queries <= FEW_QUERIES:
        q = numbers(rows, queries, _HEADS, size).transpose(1, 2)
        k, v = numbers(rows, _HEADS, keys, size, speed=1.3), numbers(rows, _HEADS, keys, size, speed=0.3)
        theirs = partial(plain_attend, q, k, v, bias)
    else:
        split = numbers(rows, max(queries, keys), 3, _HEADS, size).permute(2, 0, 3, 1, 4)
        q, k, v = split[0, :, :, :queries], split[1, :, :, :keys], split[2, :, :, :keys]
        theirs = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=bias)
    return partial(found.attend, q, k, v, bias=bias.view(rows, keys)), theirs


def _slots(found: Kernels, size: int, keys: int, *, in_order: bool) -> Trial:
    """Self-attention of a search; ``in_order``: row n is in slot n, so that PyTorch need not gather."""
    rows = min(_SENTENCES[1] * _HYPOTHESES, _SCORES // (_HEADS * keys))
    q = numbers(rows, 1, _HEADS, size).transpose(1, 2)
    k, v = numbers(keys, rows, _HEADS, size, speed=1.3), numbers(keys, rows, _HEADS, size, speed=0.3)
    slots = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, keys)
    if in_order:
        theirs = partial(plain_attend, q, k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3), 0.0)
        return partial(found.attend, q, k, v, slots=slots), theirs
    slots = slots.flip(0)
    ours = partial(found.attend, q, k, v, slots=slots)
    return ours, lambda: plain_attend(q, gather(k, slots), gather(v, slots), 0.0)


def _logits(size: int) -> tuple[Tensor, Tensor]:
    """Logits (B * J, V) and scores (B, J) of a batch, V = ``size``."""
    return numbers(_SENTENCES[1] * _HYPOTHESES, size) * 8, -numbers(_SENTENCES[1], _HYPOTHESES).abs()


def _log_sums(found: Kernels, size: int) -> Trial:
    logits, _ = _logits(size)
    return lambda: found.log_sums(logits), lambda: logits.logsumexp(-1, keepdim=True)


def _best(found: Kernels, size: int) -> Trial:
    logits, _ = _logits(size)
    return lambda: found.best(logits, _WIDTH), lambda: logits.topk(_WIDTH, -1)


def _plain_candidates(logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best continuations: logits (B * J, V), overwritten, and scores (B, J) -> totals and tokens (B, width)."""
    normalizer = logits.logsumexp(-1, keepdim=True)
    logits[:, _NEVER] = -math.inf
    values, tokens = logits.topk(_WIDTH, -1)
    best = ((values - normalizer) + scores.view(-1, 1)).view(len(scores), -1).topk(_WIDTH, -1)
    return best.values, tokens.view(len(scores), -1).gather(1, best.indices)


def _candidates(found: Kernels, size: int) -> Trial:
    logits, scores = _logits(size)
    own = logits.clone()  # each side writes to its logits
    return lambda: found.candidates(logits, scores, _NEVER, _WIDTH), lambda: _plain_candidates(own, scores)


def _matrix(found: Kernels, weight: Tensor, dtype: torch.dtype) -> tuple[PackedMatrix, Callable[[Tensor], Tensor]]:
    """A packed weight (out, in), and PyTorch's product with it; in a rounded dtype there is the compiled one alone."""
    packed = found.layout.pack(weight, None, dtype)
    return packed, partial(F.linear, weight=weight) if dtype == torch.float32 else partial(found.product, weight=packed)


def _product(found: Kernels, dtype: torch.dtype, outer: int, inner: int) -> Trial:
    """A batch's product with a matrix, which PyTorch multiplies in fp32."""
    x, weight = numbers(_ROWS, inner), numbers(outer, inner, speed=1.3)
    packed = found.layout.pack(weight, None, dtype)
    return lambda: found.product(x, packed), lambda: F.linear(x, weight)


def _packed_product(found: Kernels, dtype: torch.dtype, outer: int, inner: int) -> Trial:
    """The same, where PyTorch multiplies with a reordered matrix, too, if it can."""
    ours, plain = _product(found, dtype, outer, inner)
    if not onednn.works(torch.float32):
        return ours, plain
    x, packed = numbers(_ROWS, inner), onednn.reorder(numbers(outer, inner, speed=1.3), _ROWS)
    return ours, lambda: onednn.multiply(x, packed, None)


def _next(found: Kernels, dtype: torch.dtype, size: int, inner: int, sentences: int) -> Trial:
    """The best continuations from states."""
    x, scores = numbers(sentences * _HYPOTHESES, inner), -numbers(sentences, _HYPOTHESES).abs()
    packed, product = _matrix(found, numbers(size, inner, speed=1.3), dtype)
    return lambda: found.next(x, packed, scores, _NEVER, _WIDTH), lambda: _plain_candidates(product(x), scores)


def _next_listed(found: Kernels, dtype: torch.dtype, inner: int, sentences: int) -> Trial:
    """The best continuations in lists of an eleventh of a vocabulary; without the kernel, a mask hides the others."""
    x, weight = numbers(sentences * _HYPOTHESES, inner), numbers(_LISTED, inner, speed=1.3)
    table, (_, product) = found.layout.row_table(weight, None, dtype), _matrix(found, weight, dtype)
    scores, tokens = -numbers(sentences, _HYPOTHESES).abs(), torch.arange(len(weight))
    allowed = (tokens + torch.arange(sentences)[:, None]) % 11 == 0
    allowed[:, :4] = True  # the special tokens
    lists, mask = TokenLists.of(allowed), torch.zeros(allowed.shape).masked_fill_(~allowed, -math.inf)

    def plain() -> tuple[Tensor, Tensor]:
        return _plain_candidates(product(x) + mask.repeat_interleave(_HYPOTHESES, 0), scores)

    return lambda: found.next_listed(x, table, lists, scores, _NEVER, _WIDTH), plain


def _layer(
    found: Kernels, dtype: torch.dtype, shapes: Mapping[str, tuple[int, int]], heads: int
) -> tuple[tuple[PackedMatrix, ...], PlainLayer]:
    """The matrices of a compiled layer, and the layer by PyTorch, with products as those of `_matrix`."""
    made = {name: _matrix(found, numbers(*shape, speed=1.3) / shape[1], dtype) for name, shape in shapes.items()}
    return tuple(packed for packed, _ in made.values()), PlainLayer(lambda name, x: made[name][1](x), heads, True)


def _step(
    found: Kernels, dtype: torch.dtype, size: int, wide: int, heads: int, sentences: int, *, recurrent: bool = False
) -> Trial:
    """A step of one layer of a decoder."""
    matrices, theirs = _layer(found, dtype, steps.matrix_shapes(size, wide, recurrent=recurrent), heads)
    norm = plain_norm(size)
    layer = steps.PackedLayer(matrices, (norm, norm, norm), recurrent=recurrent)
    stack = steps.LayerStack(found.layers, [layer], heads=heads, last=norm, pre_norm=True, epsilon=1e-5)
    rows, head = sentences * _HYPOTHESES, size // heads
    own, memory = numbers(_STEPS, rows, heads, head), numbers(sentences, heads, _STEPS, head)
    written = (None, None) if recurrent else (own, own.clone())
    states = [torch.zeros(rows, size) if recurrent else None for _ in range(2)]  # each side overwrites its own
    remembered = (memory, memory.clone(), None, torch.zeros(sentences, _STEPS))
    caches = [steps.LayerCache(written[0], written[1], *remembered, state) for state in states]
    slots, starts = torch.arange(rows, dtype=torch.int32).flip(0)[:, None].repeat(1, _STEPS), torch.zeros(sentences)
    slots[:, -1] = torch.arange(rows)
    x, cores = numbers(rows, size), torch.get_num_threads()
    return lambda: stack.run(x.clone(), caches[:1], slots, cores), lambda: theirs.step(x, caches[1], slots, starts)


def _encoder(found: Kernels, dtype: torch.dtype, size: int, wide: int, heads: int, sentences: int) -> Trial:
    """One layer of an encoder."""
    matrices, theirs = _layer(found, dtype, steps.matrix_shapes(size, wide, cross=False), heads)
    norm = plain_norm(size)
    layer = encoder.PackedEncoderLayer(matrices, (norm, norm))
    stack = encoder.EncoderStack(found.layers, [layer], heads=heads, pre_norm=True, epsilon=1e-5)
    x, lengths = numbers(sentences, _STEPS, size), torch.full((sentences,), _STEPS)
    hidden, cores = torch.zeros(sentences, 1, 1, _STEPS), torch.get_num_threads()
    return lambda: stack.run(x, lengths, 1, min(cores, sentences)), lambda: theirs.encode(x, hidden)


def _dropout(found: GradientKernels, dtype: torch.dtype) -> Trial:
    x, key, added = dropout_problem(_TRAINED_NUMBERS, dtype)
    dropped, count = LEVELS // 10, x.numel()
    return lambda: found.drop(x, key, dropped, added), lambda: plain_drop(x, Draws(key, count), dropped, added)


def _loss(found: GradientKernels, dtype: torch.dtype, size: int) -> Trial:
    """The softmax of logits less the share of their targets, and the two numbers a row that a loss needs of them."""
    logits, target = numbers(_TRAINED_ROWS, size).to(dtype), torch.arange(_TRAINED_ROWS) % size

    def plain() -> Tensor:
        p = torch.softmax(logits, -1, dtype=torch.float32)
        logits.amax(-1), p.amax(-1)
        return p.scatter_add_(1, target[:, None], p.new_full((_TRAINED_ROWS, 1), -0.9)).to(dtype)

    return lambda: found.loss(logits, target, 0.0), plain


def _attention_inputs(dtype: torch.dtype, batch: int, length: int, size: int) -> tuple[Tensor, ...]:
    """Queries, keys, values and the gradient of the output: (B, H, K, E), each a view of contiguous (B, K, H, E)."""
    speeds = (0.7, 0.3, 1.3, 2)
    return tuple(numbers(batch, length, _TRAINED_HEADS, size, speed=s).to(dtype).transpose(1, 2) for s in speeds)


def _with_gradients(
    found: GradientKernels, inputs: tuple[Tensor, ...], hidden: HiddenKeys, attend: Callable[..., Tensor]
) -> Trial:
    """Attention and its gradients; ``attend`` computes it by PyTorch from queries, keys and values."""
    *inner, given = inputs

    def kernel() -> object:
        q, k, v = inner
        found.attend(q, k, v, hidden)
        return found.attend_back(q, k, v, hidden, given)

    def plain() -> object:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [x.clone().requires_grad_() for x in inner]
            return torch.autograd.grad(attend(*leaves), leaves, given.clone())

    return kernel, plain


def _trained_attention(found: GradientKernels, dtype: torch.dtype, size: int, length: int) -> Trial:
    """Sentences of one length, without padding."""
    batch = max(1, _TRAINED_SCORES // (_TRAINED_HEADS * length * length))
    hidden = HiddenKeys(torch.zeros(batch, length))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if dtype == torch.bfloat16:
            return plain_attention(q, k, v, hidden)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(batch, 1, 1, length))

    return _with_gradients(found, _attention_inputs(dtype, batch, length, size), hidden, attend)


def _window_attention(found: GradientKernels, dtype: torch.dtype, size: int, reach: int) -> Trial:
    """A window of ``reach`` keys beside the query's own; PyTorch copies the keys of each block of queries."""
    left, block = reach // 2, 32
    length = max(4 * block, _TRAINED_SCORES // (_TRAINED_HEADS * reach) // block * block)
    hidden = HiddenKeys(torch.zeros(1, length), reach=(left, reach - left))
    at, keys = torch.arange(block)[:, None], torch.arange(block + reach)
    mask = torch.zeros(block, block + reach).masked_fill_((keys < at) | (keys > at + reach), -torch.inf).to(dtype)

    def bands(x: Tensor) -> Tensor:
        wide = F.pad(x, (0, 0, left, reach - left))
        return wide.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).flatten(0, 1).contiguous()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks = q.unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1)
        out = F.scaled_dot_product_attention(blocks, bands(k), bands(v), attn_mask=mask.clone())
        return out.transpose(1, 2).reshape(1, length, _TRAINED_HEADS, size).transpose(1, 2)

    return _with_gradients(found, _attention_inputs(dtype, 1, length, size), hidden, attend)


def _entmax(found: SimplexKernel, keys: int, *, way: str, alpha: float | None) -> Trial:
    """Rows of scores without masks, forward or backward (``way``); alpha None: one for each head."""
    shape = 1, _HEADS, max(1, _SIMPLEX_SCORES // (_HEADS * keys)), keys
    scores, alphas = numbers(*shape), torch.full((_HEADS,), alpha or 1.3)
    flat, each = scores.flatten(0, 2), alpha or alphas.repeat_interleave(shape[2])[:, None]
    if way == "forward":
        return lambda: found.forward(scores, None, None, alphas), lambda: newton.weights(flat, each)
    mass, of_alpha = found.forward(scores, None, None, alphas), alpha is None
    return (
        lambda: found.backward(mass, scores, None, alphas, of_alpha=of_alpha),
        lambda: newton.gradients(mass.flatten(0, 2), flat, each, None, of_alpha=of_alpha),
    )


def _reordered(outer: int, inner: int, rows: int, *, transposed: bool, kept: bool) -> Trial:
    """A product of training with a weight (outer, inner) that oneDNN reorders, at every call or once."""
    weight = numbers(outer, inner)
    matrix = weight.t() if transposed else weight
    x = numbers(rows, matrix.shape[1], speed=0.3)
    once = onednn.reorder(matrix, rows)
    return (
        lambda: onednn.multiply(x, once if kept else onednn.reorder(matrix, rows), None),
        lambda: x @ matrix.t(),
    )


_HEAD_SIZES, _LENGTHS, _REACHES = (32, 64, 128), (14, 30, 80, 256), (16, 64, 256, 1024)
_QUERIES = (1, 5, *_LENGTHS)
_DIMENSIONS, _VOCABULARIES = (64, 256, 512, 1024), (8000, 32000)
_MODELS = tuple((each, 4 * each, max(4, each // 64)) for each in _DIMENSIONS)
_WEIGHTS = tuple(shape for d in _DIMENSIONS for shape in ((d, d), (3 * d, d), (4 * d, d), (d, 4 * d)))
_TABLES = tuple(itertools.product(_VOCABULARIES, _DIMENSIONS))

Class = tuple[str, Callable[[], list[Trial]]]
"""The name of a class, and a function that makes its problems: they take much memory together."""


def decoding_classes(found: Kernels) -> Iterator[Class]:
    """The classes of the kernels of decoding."""
    for size, queries, keys in itertools.product(_HEAD_SIZES, _QUERIES, _LENGTHS):
        yield _class(_attention, found, "attention", size, queries, keys)
    for order, size, keys in itertools.product(("order", "any order"), _HEAD_SIZES, _LENGTHS):
        yield _class(partial(_slots, in_order=order == "order"), found, f"attention to slots in {order}", size, keys)
    for size in _VOCABULARIES:
        for kind, trial in (("log sums", _log_sums), ("best tokens", _best), ("candidates", _candidates)):
            yield _class(trial, found, kind, size)
    for inner in _DIMENSIONS:
        yield _class(_packed_product, found, "packed product", torch.float32, 8192, inner)
    for dtype in sorted(found.layout.dtypes, key=str):
        for shape in _WEIGHTS:
            yield _class(_product, found, "product", dtype, *shape)
        for shape in _TABLES:
            yield _class(_next, found, "next tokens", dtype, *shape, batches=_SENTENCES)
        for inner in _DIMENSIONS:
            yield _class(_next_listed, found, "next listed tokens", dtype, inner, batches=_SENTENCES)
        for sizes in _MODELS:
            yield _class(_encoder, found, "encoder", dtype, *sizes, batches=_SENTENCES[1:])
            yield _class(_encoder, found, "encoder of few", dtype, *sizes, batches=_SENTENCES[:1])
            yield _class(_step, found, "decoder step", dtype, *sizes, batches=_SENTENCES)
            recurrent = partial(_step, recurrent=True)
            yield _class(recurrent, found, "recurrent decoder step", dtype, *sizes, batches=_SENTENCES)


def training_classes(found: GradientKernels) -> Iterator[Class]:
    """The classes of the kernels of training."""
    for dtype in (torch.float32, torch.bfloat16):
        yield _class(_dropout, found, "dropout", dtype)
        for size in _VOCABULARIES:
            yield _class(_loss, found, "loss", dtype, size)
        for size, length in itertools.product(_HEAD_SIZES, _LENGTHS):
            yield _class(_trained_attention, found, "trained attention", dtype, size, length)
        for size, reach in itertools.product(_HEAD_SIZES, _REACHES):
            yield _class(_window_attention, found, "window attention", dtype, size, reach)


def entmax_classes(found: SimplexKernel) -> Iterator[Class]:
    """The classes of the kernel of alpha-entmax."""
    for way, alpha, keys in itertools.product(("forward", "backward"), (*FORMULAS, None), _LENGTHS):
        yield _class(partial(_entmax, way=way, alpha=alpha), found, f"entmax {way} {alpha or 'any'}", keys)


def reordered_classes() -> Iterator[Class]:
    """The classes of oneDNN's products with reordered weights: of layers, and of output tables, which are kept."""
    shapes = {" kept": itertools.product(_TABLES, (512,)), "": itertools.product(_WEIGHTS, (512, 2048))}
    for kept, each in shapes.items():
        for (outer, inner), rows in each:
            for way in ("linear", "gradient"):
                trial = partial(_reordered, outer, inner, rows, transposed=way == "gradient", kept=bool(kept))
                yield class_name(f"{way}{kept}", outer, inner, rows), lambda trial=trial: [trial()]  # type: ignore[misc]


def _class(trial: Callable[..., Trial], found: object, kind: str, *sizes: object, batches: Sequence[int] = ()) -> Class:
    """A class of a kernel: one problem of these sizes, or one for each of ``batches``, its last size."""
    every = [(*sizes, each) for each in batches] or [sizes]
    return class_name(kind, *sizes), lambda: [trial(found, *each) for each in every]


def measured_ratio(trials: Callable[[], list[Trial]], seconds: float) -> float:
    """The kernel's time over PyTorch's in the problem of a class where the kernel gains least."""
    with torch.inference_mode():
        return max(measure(*trial, seconds) for trial in trials())


def every_class() -> Iterator[Class]:
    """The classes of all kernels that this process has."""
    if (decoding := kernels()) is not None:
        yield from decoding_classes(decoding)
    if (training := gradient_kernels()) is not None:
        yield from training_classes(training)
    if (simplex := simplex_kernel()) is not None:
        yield from entmax_classes(simplex)
    if onednn.works(torch.float32):
        yield from reordered_classes()
