"""Translation of lines of text: batches of similar lengths inside, one output for every line, in the same order."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.documents import separator_id
from sparsenmt.data.input_line import InputLine, numbered_lines
from sparsenmt.data.terminology import needed_tokens
from sparsenmt.data.text import text_windows
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import UNK
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.copies import copied_texts
from sparsenmt.decoding.inputs import (
    SourceLine,
    describe_out_of_memory,
    line_indices,
    make_source,
    merge_sources,
    not_finite,
    read_sources,
)
from sparsenmt.decoding.sampling import STRIDE
from sparsenmt.decoding.scores import Hypothesis, maximum_length
from sparsenmt.decoding.side_by_side import run_side_by_side
from sparsenmt.decoding.strategies import EncodedBatch, Results, Strategy, check_complete, check_prefixes, strategy_of
from sparsenmt.decoding.term_search import TermSearch
from sparsenmt.model.memory import Memory
from sparsenmt.process.runtime import trim_heap
from sparsenmt.recipe.schema import Decoding

T = TypeVar("T")

WINDOW = 4096
"""Lines that are sorted by length together: bounds the memory and the time to the first output, fills batches well."""

_TRIM_AFTER = 20.0
"""Seconds after which the next window begins without the buffers of earlier searches, and with a trimmed heap; that
takes 0.02 s. Otherwise searches would write to ever more pages of these buffers (docs/records/experiments.md)."""

_SHORTER = "the longest output: --max-length-factor, --max-length-offset; or split the line."


@dataclass(frozen=True)
class TranslatedLine:
    """The output for one line.

    Args:
        hypotheses: best first; an empty line has one empty hypothesis.
        gates: (S,) of the source positions, `</s>` included; None where no filter decided.
        depth: encoder and decoder layers, where every line has its own.
        parts: the translations of the parts of a line that was too long; empty: it was translated at once.
    """

    source: SourceLine
    hypotheses: list[Hypothesis]
    tokenizer: Tokenizer = field(repr=False, compare=False)
    gates: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    depth: tuple[int, int] | None = None
    parts: tuple[TranslatedLine, ...] = ()

    @property
    def closed(self) -> int | None:
        """The number of source positions, `</s>` included, whose gate is 0; None where no filter decided."""
        return None if self.gates is None else int((self.gates == 0).sum())

    def best_texts(self, count: int) -> list[str]:
        """Return the texts of the best hypotheses; they are detokenized here, as most callers need one only."""
        if self.parts:
            own = zip(*(_as_many(part.best_texts(count), count) for part in self.parts), strict=True)
            rows = list(own)[: len(self.hypotheses)]
            return [("" if is_unspaced(row) else " ").join(text for text in row if text) for row in rows]
        return [self._decode(each) for each in self.hypotheses[:count]]

    def _decode(self, hypothesis: Hypothesis) -> str:
        return one_line(self.tokenizer.decode(hypothesis.tokens, hypothesis.copied))

    @cached_property
    def text(self) -> str:
        """The text of the best hypothesis."""
        (best,) = self.best_texts(1)
        return best


def translate_lines(
    bundle: Bundle,
    lines: Iterable[InputLine],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
    window: int = WINDOW,
    compact: bool = True,
) -> Iterator[TranslatedLine]:
    """Translate lines, in order.

    Args:
        lines: a run that resumes after whole windows forms the same batches as an
            uninterrupted one.
        advance: is told the number of sentences that each batch finished.
        window: lines that are read ahead and sorted by length together.
        compact: False leaves zeros in place of the encoder outputs that filters drop: the same translations, slower.

    Raises:
        UserError: a batch does not fit into memory, the model's scores are not finite, a line is too long for
            `decoding.long`, or tags are needed and there are none.
    """
    long = bundle.long_lines(options)
    trimmed = time.monotonic()
    for batch in text_windows(lines, window, lambda line: len(line.text)):
        if time.monotonic() - trimmed > _TRIM_AFTER:
            bundle.engine.release()
            trim_heap()
            trimmed = time.monotonic()
        yield from _translate_window(bundle, read_sources(bundle, batch, long=long), options, advance, compact)


def translate_texts(
    bundle: Bundle,
    texts: Iterable[str],
    options: Decoding | None = None,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[str]:
    """Translate plain texts, in order.

    Args:
        options: None: the model's own.
        advance: is told the number of sentences that each batch finished.

    Raises:
        TypeError: ``texts`` is a single string, or has an item that is none.
        UserError: a batch does not fit into memory, the model's scores are not finite, or tags are needed and there
            are none.
    """
    lines = numbered_lines(texts)
    own = bundle.recipe.decoding if options is None else options
    return [each.text for each in translate_lines(bundle, lines, own, advance=advance)]


def _translate_window(
    bundle: Bundle,
    sources: Sequence[SourceLine],
    options: Decoding,
    advance: Callable[[int], object] | None,
    compact: bool,
) -> Iterator[TranslatedLine]:
    target, empty = bundle.tokenizers.target, [Hypothesis([], 0.0, 0.0, True)]
    results = {i: TranslatedLine(source, empty, target) for i, source in enumerate(sources) if source.empty}
    finish, strategy = _line_counter(sources, advance), strategy_of(options)
    lengths, limit = [len(s.ids) for s in sources], max(options.batch_tokens // strategy.width, 1)

    def lines(chosen: Iterable[int]) -> list[SourceLine]:
        return [sources[i] for i in chosen]

    def guard(chosen: Sequence[int]) -> AbstractContextManager[None]:
        shape = f"beam {strategy.width:,}"
        hint = f"Lower --beam-size, or {_SHORTER}" if strategy.width > 1 else f"Lower {_SHORTER}"
        return describe_out_of_memory(lines(chosen), shape, batch_tokens=options.batch_tokens, single_hint=hint)

    gates: dict[int, NDArray[np.float64] | None] = {}

    def record(found: Results) -> None:
        check_complete(options, found, gates)
        for i, hypotheses in found.items():
            if not hypotheses:
                raise not_finite(sources[i], bundle)
            results[i] = TranslatedLine(sources[i], hypotheses, target, gates.pop(i))
        finish(found)

    def batches(members: Iterable[list[int]]) -> Iterator[EncodedBatch]:
        for chosen, memory in encode_ahead(
            bundle.engine,
            members,
            lengths,
            limit,
            read=lambda chosen: make_source(bundle, lines(chosen)),
            naming=guard,
            exits=options.encoder_exits,
            compact=compact and bundle.model.compacts and not bundle.others,
        ):
            gates.update(zip(chosen, line_gates(memory, lines(chosen)), strict=True))
            with guard(chosen):
                batch = encoded_batch(bundle, memory, chosen, lines(chosen), options)
            yield batch

    finish(results)
    for chosen, members in _shares(sources, strategy):
        own = [[members[i] for i in batch] for batch in length_batches([lengths[i] for i in members], limit)]

        def search(batch: Iterable[list[int]], chosen: Strategy = chosen) -> Iterator[Results]:
            return chosen.search(bundle.engine, batches(batch), guard)

        for found in run_side_by_side(own, bundle.engine.searches.at_once, search):
            record(found)
        check_complete(options, members, results)
    results |= _with_copies(bundle, results, options)
    for _, parts in groupby(range(len(sources)), line_indices(sources).__getitem__):
        yield merge_parts([results[i] for i in parts])


def _line_counter(
    sources: Sequence[SourceLine], advance: Callable[[int], object] | None
) -> Callable[[Collection[int]], None]:
    """Return the function that tells ``advance`` the lines of which all parts, by their indices, are finished."""
    lines = line_indices(sources)
    unfinished = Counter(lines)

    def finish(found: Collection[int]) -> None:
        own = [lines[i] for i in found]
        unfinished.subtract(own)
        if advance and (count := sum(not unfinished[line] for line in set(own))):
            advance(count)

    return finish


def _shares(sources: Sequence[SourceLine], strategy: Strategy) -> Iterator[tuple[Strategy, list[int]]]:
    """Yield the indices of lines without terms with their search, and those with terms with theirs."""
    for terms, chosen in ((False, strategy), (True, TermSearch(strategy.options))):
        members = [i for i, source in enumerate(sources) if not source.empty and bool(source.terms) == terms]
        if members:
            yield chosen, members


def merge_parts(parts: Sequence[TranslatedLine]) -> TranslatedLine:
    """Return the translation of a line by those of its parts; of a line that was not divided, its own.

    The n-th best output is made of the n-th best of every part, or of its last one; its log-probability and its score
    are the sums of theirs.
    """
    if len(parts) == 1:
        return parts[0]
    count = max(len(part.hypotheses) for part in parts)
    rows = zip(*(_as_many(part.hypotheses, count) for part in parts), strict=True)
    hypotheses = [
        Hypothesis(
            [token for each in row for token in each.tokens],
            math.fsum(each.log_probability for each in row),
            math.fsum(each.score for each in row),
            all(each.ended for each in row),
            tuple(text for each in row for text in each.copied),
            _mean_layers(row),
        )
        for row in rows
    ]
    gates = [part.gates for part in parts if part.gates is not None]
    return TranslatedLine(
        merge_sources([part.source for part in parts]),
        hypotheses,
        parts[0].tokenizer,
        np.concatenate(gates) if gates else None,
        None,
        (*parts,),
    )


def _mean_layers(row: Sequence[Hypothesis]) -> float | None:
    """Return the decoder layers of a token of some outputs, on average; None: the same for all."""
    counts = [(each.layers, len(each.tokens) + each.ended) for each in row if each.layers is not None]
    return sum(layers * count for layers, count in counts) / sum(count for _, count in counts) if counts else None


def _as_many(found: Sequence[T], count: int) -> list[T]:
    """The first items, filled up with the last one."""
    return [found[min(i, len(found) - 1)] for i in range(count)]


def _with_copies(bundle: Bundle, results: Mapping[int, TranslatedLine], options: Decoding) -> dict[int, TranslatedLine]:
    """Return the translations that have unknown tokens, with the source text that replaces them, if it is to."""
    if options.unknown != "copy":
        return {}
    places = [(n, i) for n, t in results.items() for i, each in enumerate(t.hypotheses) if UNK in each.tokens]
    outputs = [(results[n].source, results[n].hypotheses[i]) for n, i in places]
    found = {n: results[n] for n, _ in places}
    for (n, i), copied in zip(places, copied_texts(bundle, outputs, options), strict=True):
        before = found[n].hypotheses
        found[n] = replace(found[n], hypotheses=[*before[:i], replace(before[i], copied=copied), *before[i + 1 :]])
    return found


def one_line(text: str) -> str:
    """Replace line ends by spaces, as they would break the alignment of the lines."""
    return text.replace("\n", " ")


def encoded_batch(
    bundle: Bundle, memory: Memory, numbers: list[int], lines: Sequence[SourceLine], options: Decoding
) -> EncodedBatch:
    """Return encoded lines with their maximum lengths; ``numbers`` are those of their results."""
    most, places = bundle.max_target_length + 1, [line.number + line.part * STRIDE for line in lines]
    needed = [len(line.prefix) + needed_tokens(line.terms) + 1 for line in lines]
    limits = [
        min(max(maximum_length(line.kept, options, most), own), most) for line, own in zip(lines, needed, strict=True)
    ]
    required = None
    if any(line.prefix for line in lines):
        check_prefixes(options, "--target-prefix")
        tokens, valid = pad([line.prefix for line in lines])
        required = tokens.masked_fill(~valid, -1).to(bundle.device)
    return EncodedBatch(
        memory,
        torch.tensor(limits, device=bundle.device),
        numbers,
        places,
        allowed=allowed_tokens(bundle, lines, options),
        given=bundle.frames.target.given,
        decoder_exits=bundle.model.plan.decoder_exits,
        required=required,
        terms=tuple(line.terms for line in lines),
    )


def allowed_tokens(bundle: Bundle, lines: Sequence[SourceLine], options: Decoding) -> Tensor | None:
    """Return (B, W) the tokens that may come out of each line; None: all. Blocks of documents need the separator."""
    shortlist = bundle.shortlist(options)
    if shortlist is None:
        return None
    allowed = shortlist.allowed([line.ids for line in lines])
    if (documents := bundle.recipe.data.documents) is not None:
        allowed[:, separator_id(bundle.tokenizers.target, documents.separator)] = True
    for row, line in enumerate(lines):
        if line.prefix or line.terms:
            allowed[row, [*line.prefix, *(token for term in line.terms for token in term.tokens)]] = True
    return allowed.to(bundle.device)


def line_gates(memory: Memory, batch: Sequence[SourceLine]) -> list[NDArray[np.float64] | None]:
    """Return the gates (S,) of each line's positions; None where no filter decided."""
    if memory.gates is None:
        return [None] * len(batch)
    gates = memory.gates.double().cpu().numpy()  # (B, S)
    return [gates[row, : len(line.ids)] for row, line in enumerate(batch)]


def sparsity_rate(translations: Iterable[TranslatedLine]) -> float | None:
    """Return the share of source positions whose gate in evaluation is 0; None where no filter decided."""
    decided = [t for t in translations if t.closed is not None]
    return sum(t.closed or 0 for t in decided) / sum(len(t.source.ids) for t in decided) if decided else None
