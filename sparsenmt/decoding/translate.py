"""Lines in, translations out, in the same order: sorted batches inside, one output for every input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import torch

from sparsenmt.data.batching import length_batches
from sparsenmt.data.input_line import InputLine, numbered_lines
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, make_source, naming_shape, not_numbers, read_sources
from sparsenmt.decoding.scores import Hypothesis, maximum_length
from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
from sparsenmt.model.memory import Memory
from sparsenmt.recipe.schema import Decoding

WINDOW = 4096
"""Lines that are sorted together: memory and the wait for the first output are bounded, batches are well filled."""

_ALONE = "Lower --beam-size, or the longest output: --max-length-factor, --max-length-offset; or split the line."


@dataclass(frozen=True)
class Translation:
    """The output for one line, best hypothesis first; an empty line has one empty hypothesis."""

    source: SourceLine
    hypotheses: list[Hypothesis]
    tokenizer: Tokenizer = field(repr=False, compare=False)
    closed: int | None = None
    """Source positions, `</s>` included, whose gate is 0; None where no filter decided."""
    depth: tuple[int, int] | None = None
    """Encoder and decoder layers, where every line has its own."""

    def best_texts(self, count: int) -> list[str]:
        """Those of the best hypotheses. Text is made when it is asked for: mostly nobody asks for all."""
        return [one_line(self.tokenizer.decode(each.tokens)) for each in self.hypotheses[:count]]

    @cached_property
    def text(self) -> str:
        (best,) = self.best_texts(1)
        return best


@dataclass(frozen=True)
class SearchResult:
    """What a search gives for one sentence."""

    hypotheses: list[Hypothesis]
    closed: int | None


def translate_lines(
    bundle: ModelBundle,
    lines: Iterable[InputLine],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
    window: int = WINDOW,
    compact: bool = True,
) -> Iterator[Translation]:
    """Translate lines, in order.

    Args:
        lines: no two have the same number. A run that resumes after whole windows puts every line into the batch that
            it would have been in without the break.
        advance: told the number of sentences that each batch finished.
        window: lines read ahead.
        compact: False leaves zeros in place of what filters drop: the same translations, slower.

    Raises:
        UserError: a batch needs more memory than there is, or the model's scores are not numbers; tags are needed and
            cannot be had.
    """
    iterator = iter(lines)
    while block := list(islice(iterator, window)):
        yield from _translate_block(bundle, read_sources(bundle, block), options, advance, compact)


def translate_texts(
    bundle: ModelBundle, texts: Iterable[str], options: Decoding, *, advance: Callable[[int], object] | None = None
) -> list[str]:
    """Translate plain texts, in order; arguments and errors as for `translate_lines`."""
    return [each.text for each in translate_lines(bundle, numbered_lines(texts), options, advance=advance)]


def _translate_block(
    bundle: ModelBundle,
    sources: Sequence[SourceLine],
    options: Decoding,
    advance: Callable[[int], object] | None,
    compact: bool,
) -> Iterator[Translation]:
    results: dict[int, SearchResult] = {
        s.number: SearchResult([Hypothesis([], 0.0, 0.0, True)], None) for s in sources if s.empty
    }
    if advance and results:
        advance(len(results))
    real = [source for source in sources if not source.empty]
    strategy = strategy_of(options)
    lengths, limit = [len(s.ids) for s in real], max(options.batch_tokens // strategy.width, 1)

    def lines(chosen: Sequence[int]) -> list[SourceLine]:
        return [real[i] for i in chosen]

    def naming(chosen: Sequence[int]) -> AbstractContextManager[None]:
        return naming_shape(lines(chosen), f"beam {strategy.width:,}", batch_tokens=options.batch_tokens, alone=_ALONE)

    closed: dict[int, int | None] = {}

    def take(found: Results) -> None:
        for i, hypotheses in found.items():
            if not hypotheses:
                raise not_numbers(real[i])
            results[real[i].number] = SearchResult(hypotheses, closed.pop(i))
        if advance and found:
            advance(len(found))

    def batches() -> Iterator[EncodedBatch]:
        for chosen, memory in encode_ahead(
            bundle.model,
            length_batches(lengths, limit),
            lengths,
            limit,
            read=lambda chosen: make_source(bundle, lines(chosen)),
            naming=naming,
            exits=options.encoder_exits,
            compact=compact,
        ):
            closed.update(zip(chosen, _closed(memory, lines(chosen)), strict=True))
            with naming(chosen):
                batch = encoded_batch(bundle, memory, chosen, lines(chosen), options)
            yield batch

    for found in strategy.search(bundle.model, batches(), naming):
        take(found)
    for source in sources:
        result = results[source.number]
        yield Translation(source, result.hypotheses, bundle.tokenizers.target, result.closed)


def one_line(text: str) -> str:
    """A line end inside an output would break the alignment of the lines."""
    return text.replace("\n", " ")


def encoded_batch(
    bundle: ModelBundle, memory: Memory, numbers: list[int], lines: Sequence[SourceLine], options: Decoding
) -> EncodedBatch:
    """The encoded lines with their maximum lengths; ``numbers`` are those of their results."""
    limits = [maximum_length(len(line.ids) - 1, options, bundle.max_positions) for line in lines]
    return EncodedBatch(memory, torch.tensor(limits, device=bundle.device), numbers, [line.number for line in lines])


def _closed(memory: Memory, batch: Sequence[SourceLine]) -> list[int | None]:
    """Of each line's positions, how many a filter has dropped; None where none decided."""
    if memory.gates is None:
        return [None] * len(batch)
    opened = (memory.gates != 0).sum(1).tolist()  # padding has the gate 0 too
    return [len(line.ids) - count for line, count in zip(batch, opened, strict=True)]


def sparsity_rate(translations: Iterable[Translation]) -> float | None:
    """Share of source positions whose test gate is 0; None where no filter decided."""
    decided = [t for t in translations if t.closed is not None]
    return sum(t.closed or 0 for t in decided) / sum(len(t.source.ids) for t in decided) if decided else None
