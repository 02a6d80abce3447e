"""Greedy search with a recurrent decoder and lists of tokens: all steps of a batch in one call.

Shapes: B sentences, V vocabulary, D dimension, H heads, K entries of the memory, E head size, T positions at most.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.native.address import address, check
from sparsenmt.native.packing import RowTable, fields
from sparsenmt.native.steps import LayerCache, LayerCacheStruct, LayerStack, NormStruct, SizesStruct
from sparsenmt.native.token_lists import MOST_FORBIDDEN, TokenLists, TokenListsStruct

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_TOGETHER = 48  # sentences that a thread has at a time, at most: rows of its products


class _Search(ctypes.Structure):
    """The C struct of the arguments and results of `greedy`; steps: T; together: sentences of a thread at a time."""

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
        scale: the number that rows of the table are multiplied by.
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
        rules: the first token that the decoder reads, the one that ends an output, and those that are never generated
            (`MOST_FORBIDDEN` at most), which are in every list, before all others.
        threads: at most; each takes a few sentences at a time.

    Returns:
        tokens (B, T) int32, T the greatest limit; the number of them that are a sentence's (B) int64, its end included,
        0: a logit is NaN, or no token is possible; log-probabilities of the outputs (B) fp32. All else is not set.
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
    stack.functions.layout.check(table)
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
    stack.functions.search(ctypes.addressof(given), threads)
    return tokens, lengths, scores
