"""Continuation of lines by a language model: an output is the line, the prompt, and what follows it.

A prompt comes out as it was given. The model reads its tokens, which keep its spaces where the tokenizer can: that of
SentencePiece removes spaces at the beginning and the end of a line and joins runs of them, but has a token that is a
space, so that one at the end is kept, and the continuation begins a word. What is lost all the same is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import text_windows
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, unknown_texts
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, not_finite, read_sources
from sparsenmt.decoding.scores import Hypothesis, maximum_length
from sparsenmt.decoding.strategies import EncodedBatch, check_complete, strategy_of
from sparsenmt.decoding.translate import WINDOW, TranslatedLine, one_line
from sparsenmt.model.protocol import Source
from sparsenmt.recipe.schema import Decoding

_UNLIMITED = 2**30
_HINT = "Lower --max-length-factor or --max-length-offset."


@dataclass(frozen=True)
class Continuation(TranslatedLine):
    """The continuations of a prompt, which is the source; their texts begin with it, and may have several lines.

    Args:
        prompt: the tokens that are read.
    """

    prompt: tuple[int, ...] = ()

    @property
    def read(self) -> str:
        """The prompt as its tokens say it."""
        return self.tokenizer.decode(self.prompt, unknown_texts(self.tokenizer, self.source.text))

    def _decode(self, hypothesis: Hypothesis) -> str:
        first, *others = split_lines(hypothesis.tokens)
        return "\n".join(map(one_line, (self._first_line(first), *map(self.tokenizer.decode, others))))

    def _first_line(self, tokens: Sequence[int]) -> str:
        before, whole = self.tokenizer.decode(self.prompt), self.tokenizer.decode([*self.prompt, *tokens])
        if not whole.startswith(before):  # the prompt was cut inside a character
            return whole
        text, more = self.source.text, whole[len(before) :]
        if self.source.cut:
            return text[: self.tokenizer.spans(text)[len(self.prompt) - 1][1]] + more
        return text + (more.removeprefix(" ") if text.endswith(" ") and not before.endswith(" ") else more)


def continue_lines(
    bundle: Bundle,
    lines: Iterable[InputLine],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
    window: int = WINDOW,
) -> Iterator[Continuation]:
    """Continue lines, in order; an empty line gets the beginning of a text. Arguments as for `translate_lines`.

    Prompts with the same number of tokens share batches, so that none needs padding.

    Raises:
        UserError: a batch does not fit into memory, or the model's scores are not finite.
    """
    for batch in text_windows(lines, window, lambda line: len(line.text)):
        prompts = _read_prompts(bundle, batch)
        results: dict[int, Continuation] = {}
        for chosen in _batches(prompts, options):
            results.update(_continue_batch(bundle, chosen, options))
            if advance:
                advance(len(chosen))
        yield from (results[prompt.number] for prompt in prompts)


def _read_prompts(bundle: Bundle, lines: Sequence[InputLine]) -> list[SourceLine]:
    """Tokenize prompts. A space at the end that the tokenizer drops becomes its token, if it has one."""
    tokenizer, prompts = bundle.tokenizers.target, read_sources(bundle, lines, prompts=True)

    def with_space(prompt: SourceLine) -> SourceLine:
        tokens = prompt.ids[:-1]
        if not prompt.text.endswith(" ") or len(tokens) >= bundle.max_source_length:
            return prompt
        read, space = tokenizer.decode(tokens), _space_token(tokenizer)
        if space is None or read.endswith(" ") or tokenizer.decode([*tokens, space]) != f"{read} ":
            return prompt  # the token may be a word, or none that is decoded
        return replace(prompt, ids=[*tokens, space, EOS])

    return list(map(with_space, prompts))


_space_tokens: WeakKeyDictionary[Tokenizer, int | None] = WeakKeyDictionary()


def _space_token(tokenizer: Tokenizer) -> int | None:
    """Return the token that is a space alone; None if there is none. The vocabulary is listed once: this takes time."""
    if tokenizer not in _space_tokens:
        names = tokenizer.pieces(range(tokenizer.size))
        _space_tokens[tokenizer] = names.index(SPACE) if SPACE in names else None
    return _space_tokens[tokenizer]


def split_lines(tokens: Sequence[int]) -> Iterator[list[int]]:
    """Yield the tokens before each EOS, and those after the last."""
    line: list[int] = []
    for token in tokens:
        if token == EOS:
            yield line
            line = []
        else:
            line.append(token)
    yield line


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


def _continue_batch(bundle: Bundle, chosen: Sequence[SourceLine], options: Decoding) -> dict[int, Continuation]:
    tokens = [prompt.ids[:-1] for prompt in chosen]  # without </s>
    count = len(tokens[0])
    members = [each.recipe.model for each in (bundle, *bundle.others)]
    positions = min(_UNLIMITED if own.positions == "none" else own.max_positions - count for own in members)
    limit = maximum_length(count, options, positions)
    numbers = list(range(len(chosen)))
    batch = EncodedBatch(
        memory=bundle.engine.encode(Source.none(len(chosen), bundle.device)).memory,
        limits=torch.full((len(chosen),), limit, device=bundle.device),
        numbers=numbers,
        line_numbers=[prompt.number for prompt in chosen],
        prompts=torch.tensor(tokens, dtype=torch.long, device=bundle.device).view(len(chosen), count),
        decoder_exits=bundle.model.plan.decoder_exits,
    )
    strategy, target = strategy_of(options), bundle.tokenizers.target

    def guard(_: list[int]) -> AbstractContextManager[None]:
        shape = f"up to {limit:,} more tokens, beam {strategy.width:,}"
        return describe_out_of_memory(chosen, shape, batch_tokens=options.batch_tokens, single_hint=_HINT)

    results = {}
    for found in strategy.search(bundle.engine, [batch], guard):
        check_complete(options, found, numbers)
        for number, hypotheses in found.items():
            prompt = chosen[number]
            if not hypotheses:
                raise not_finite(prompt, bundle)
            results[prompt.number] = Continuation(prompt, hypotheses, target, prompt=tuple(tokens[number]))
    check_complete(options, (prompt.number for prompt in chosen), results)
    return results
