"""Greedy search with a recurrent decoder and lists of tokens: all steps of a batch in one call.

Shapes: B sentences, V vocabulary, D dimension, H heads, K entries of the memory, E head size, T positions at most.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsenmt.native.address import address, check
from sparsenmt.native.packing import RowTable, fields, pack, row_table
from sparsenmt.native.steps import (
    LayerCache,
    LayerCacheStruct,
    LayerStack,
    NormStruct,
    NormWeights,
    PackedLayer,
    SizesStruct,
    StepFunctions,
    matrix_shapes,
    numbers,
    plain_layer,
    plain_product,
)
from sparsenmt.native.token_lists import MOST_FORBIDDEN, TokenLists, TokenListsStruct

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_TOGETHER = 48  # sentences of a thread at a time
_TOLERANCE = 1e-4


class _Search(ctypes.Structure):
    """The C struct."""

    _fields_ = (
        *fields(_POINTER, "layers", "caches"),
        ("last", NormStruct),
        ("sizes", SizesStruct),
        ("table", _POINTER),
        ("lists", TokenListsStruct),
        *fields(_POINTER, "embeddings", "encodings", "limits", "never"),
        *fields(_SIZE, "layer_count", "sentences", "steps", "together", "vocabulary", "never_count", "begin", "end"),
        ("scale", ctypes.c_float),
        *fields(_POINTER, "tokens", "lengths", "scores"),
    )


@dataclass(frozen=True)
class Embedding:
    """The embedding of target tokens.

    Args:
        table: (V, D) fp32.
        encodings: (T, D) fp32 of positions 0, 1, ...; None: zeros.
        scale: that vectors of the table are multiplied by.
    """

    table: Tensor
    encodings: Tensor | None
    scale: float


def greedy(
    stack: LayerStack,
    caches: Sequence[LayerCache],
    embedding: Embedding,
    output: tuple[RowTable, TokenLists],
    limits: Tensor,
    rules: tuple[int, int, Sequence[int]],
    threads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Extend the output of every sentence by its most probable token until it ends.

    Args:
        stack: layers that are all recurrent.
        caches: of the layers that run: the memory of B sentences, all of its rows in order; their states are not used.
        output: the output's table (V, D), and the tokens that may come out of each sentence.
        limits: (B) int64, the most tokens of each output, at least 1.
        rules: the first token that the decoder reads, the one that ends an output, and those that are never generated,
            which are in every list, before all others.
        threads: each computes its own sentences.

    Returns:
        the outputs (B, T) int32; how many of these tokens are a sentence's (B) int64, the end included, 0: its scores
        are not finite; log-probabilities (B) fp32.
    """
    (table, lists), memory, sentences = output, caches[0].memory_keys, len(limits)
    begin, end, forbidden = rules
    vocabulary, size, longest = table.outer, table.inner, int(limits.max()) if sentences else 0
    check(sentences > 0 and int(limits.min()) > 0, "a sentence, and limits of at least one token")
    check(len(lists) == sentences == memory.shape[0], "a list, a limit and a row of the memory for each sentence")
    check(lists.size == vocabulary and embedding.table.shape == (vocabulary, size), "lists and vectors of one table")
    check(all(0 <= token < vocabulary for token in (begin, end, *forbidden)), "tokens of the vocabulary")
    check(len(set(forbidden)) == len(forbidden) <= MOST_FORBIDDEN, "a few different tokens that never come")
    check(max(forbidden, default=0) < int(lists.count.min()), "lists that begin with these tokens")
    check(all(each.memory_rows is None for each in caches), "all rows of the memory, in order")
    stack.step.layout.check(table)
    sizes = stack.sizes(sentences, sentences, memory.shape[2])
    structures = (LayerCacheStruct * len(caches))(*(each.memory_structure(sizes) for each in caches))
    encodings = embedding.encodings
    tokens = torch.empty(sentences, longest, dtype=torch.int32)
    lengths, scores = torch.empty(sentences, dtype=torch.long), torch.empty(sentences)
    never = (_SIZE * len(forbidden))(*forbidden)
    given = _Search(
        stack.recurrent_layers(len(caches)),
        ctypes.addressof(structures),
        stack.last,
        sizes,
        ctypes.addressof(table.struct),
        lists.structure(),
        address(embedding.table, torch.float32, vocabulary, size),
        None if encodings is None else address(encodings[:longest], torch.float32, longest, size),
        address(limits, torch.int64, sentences),
        ctypes.addressof(never),
        *(len(caches), sentences, longest, max(1, min(_TOGETHER, sentences // threads)), vocabulary),
        *(len(never), begin, end),
        embedding.scale,
        *(address(each, each.dtype, *each.shape) for each in (tokens, lengths, scores)),
    )
    stack.step.greedy(ctypes.addressof(given), threads)
    return tokens, lengths, scores


def error(step: StepFunctions, threads: int) -> float:
    """The largest deviation from PyTorch, step by step, on a small problem, relative to the tolerance."""
    size, wide, heads, entries, sentences, vocabulary, layers = 64, 96, 2, 5, 7, 40, 2
    shapes = matrix_shapes(size, wide, recurrent=True)
    weights = [
        {name: numbers(*shape, speed=1.1 + 0.2 * i + 0.7 * t) / 8 for i, (name, shape) in enumerate(shapes.items())}
        for t in range(layers)
    ]
    norm = NormWeights(torch.ones(size), torch.zeros(size))
    packed = [
        PackedLayer(tuple(pack(w, None, torch.float32) for w in own.values()), (norm,) * 3, recurrent=True)
        for own in weights
    ]
    stack = LayerStack(step, packed, heads=heads, last=None, pre_norm=False, epsilon=1e-5)
    shape, bias = (sentences, heads, entries, size // heads), numbers(sentences, entries, speed=0.9)
    bias[0, 1] = -math.inf
    caches = [
        LayerCache(None, None, numbers(*shape, speed=0.5 + t), numbers(*shape, speed=1.7 + t), None, bias)
        for t in range(layers)
    ]
    table, scale = numbers(vocabulary, size, speed=1.9), 3.0
    encodings, (begin, end, never) = numbers(9, size, speed=0.31), (1, 2, (0, 1))
    allowed = (torch.arange(vocabulary) < 3) | (torch.arange(vocabulary) % torch.arange(1, 8)[:, None] == 0)
    limits = torch.tensor([9, 9, 1, 2, 9, 9, 5])
    found, lengths, scores = greedy(
        stack,
        caches,
        Embedding(table, encodings, scale),
        (row_table(table, None, torch.float32), TokenLists.of(allowed)),
        limits,
        (begin, end, never),
        threads,
    )
    worst = 0.0
    for b in range(sentences):
        own = [
            replace(each, memory_keys=each.memory_keys[b : b + 1], memory_values=each.memory_values[b : b + 1])
            for each in caches
        ]
        own = [replace(each, memory_bias=bias[b : b + 1], state=torch.zeros(1, size)) for each in own]
        tokens, score = [begin], 0.0
        while len(tokens) <= limits[b] and (len(tokens) == 1 or tokens[-1] != end):
            x = table[tokens[-1:]] * scale + encodings[len(tokens) - 1 : len(tokens)]
            for t, each in enumerate(own):
                x = plain_layer(
                    x, plain_product(weights[t]), each, torch.zeros(1, 1), torch.zeros(1), heads, False, (0, 0)
                )
            logits = (x @ table.T).squeeze(0).masked_fill(~allowed[b], -math.inf)
            likely = logits.log_softmax(-1).index_fill(0, torch.tensor(never), -math.inf)
            tokens.append(int(likely.argmax()))
            score += float(likely.max())
        length = int(lengths[b])
        if found[b, :length].tolist() != tokens[1:]:
            return math.inf
        worst = max(worst, abs(float(scores[b]) - score) / len(tokens))
    return worst / _TOLERANCE
