"""Continuation of lines by a language model: an output is the line, the prompt, and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch

from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import text_windows
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, not_finite, read_sources
from sparsenmt.decoding.scores import maximum_length
from sparsenmt.decoding.strategies import EncodedBatch, strategy_of
from sparsenmt.decoding.translate import WINDOW, Translation
from sparsenmt.recipe.schema import Decoding
from sparsenmt.store import Bundle

_UNLIMITED = 2**30
_HINT = "Lower --max-length-factor or --max-length-offset."


def continue_lines(
    bundle: Bundle,
    lines: Iterable[InputLine],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
    window: int = WINDOW,
) -> Iterator[Translation]:
    """Continue lines, in order; an empty line gets the beginning of a text. Arguments as for `translate_lines`.

    Prompts with the same number of tokens share batches, so that none needs padding.

    Raises:
        UserError: a batch does not fit into memory, or the model's scores are not finite.
    """
    for batch in text_windows(lines, window, lambda line: len(line.text)):
        prompts = read_sources(bundle, batch)
        results: dict[int, Translation] = {}
        for chosen in _batches(prompts, options):
            results.update(_continue_batch(bundle, chosen, options))
            if advance:
                advance(len(chosen))
        yield from (results[prompt.number] for prompt in prompts)


def _batches(prompts: Sequence[SourceLine], options: Decoding) -> Iterator[list[SourceLine]]:
    """Prompts of equal numbers of tokens, at most `batch_tokens` with their continuations, all hypotheses counted."""
    by_length: dict[int, list[SourceLine]] = {}
    for prompt in prompts:
        by_length.setdefault(len(prompt.ids), []).append(prompt)
    width = strategy_of(options).width
    for length, members in sorted(by_length.items(), reverse=True):
        each = length + maximum_length(length - 1, options, _UNLIMITED)
        rows = max(options.batch_tokens // (each * width), 1)
        yield from (members[first : first + rows] for first in range(0, len(members), rows))


def _continue_batch(bundle: Bundle, chosen: Sequence[SourceLine], options: Decoding) -> dict[int, Translation]:
    tokens = [prompt.ids[:-1] for prompt in chosen]  # without </s>
    count, recipe = len(tokens[0]), bundle.recipe.model
    positions = _UNLIMITED if recipe.positions == "none" else recipe.max_positions - count
    limit = maximum_length(count, options, positions)
    numbers = list(range(len(chosen)))
    batch = EncodedBatch(
        memory=bundle.model.no_source(len(chosen)),
        limits=torch.full((len(chosen),), limit, device=bundle.device),
        numbers=numbers,
        line_numbers=[prompt.number for prompt in chosen],
        prompts=torch.tensor(tokens, dtype=torch.long, device=bundle.device).view(len(chosen), count),
    )
    strategy, target = strategy_of(options), bundle.tokenizers.target

    def guard(_: list[int]) -> AbstractContextManager[None]:
        shape = f"up to {limit:,} more tokens, beam {strategy.width:,}"
        return describe_out_of_memory(chosen, shape, batch_tokens=options.batch_tokens, single_hint=_HINT)

    results = {}
    for found in strategy.search(bundle.model, [batch], guard):
        for number, hypotheses in found.items():
            prompt = chosen[number]
            if not hypotheses:
                raise not_finite(prompt)
            results[prompt.number] = Translation(prompt, hypotheses, target, prompt=tuple(tokens[number]))
    return results
