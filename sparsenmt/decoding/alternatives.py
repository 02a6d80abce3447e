"""Other words at a position of a translation, and what would follow them.

The words before the position are those of the model's best output. Of the tokens that may come next and begin a word,
the most probable ones are taken; each output is completed by the search, and outputs with the same word are one. Where
the output has no spaces between words, its tokens are words.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.text import text_windows
from sparsenmt.data.vocabulary import EOS, SPACE, UNK
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, make_source
from sparsenmt.decoding.scores import never
from sparsenmt.decoding.translate import WINDOW, TranslatedLine, allowed_tokens, translate_lines
from sparsenmt.recipe.schema import Decoding

_TRIED = 2  # tokens for each alternative: some begin the same word
_HINT = "Split the line."


@dataclass(frozen=True)
class Alternative:
    """A word at the position.

    Args:
        probability: of its first token, after the words before.
        translation: with the word, completed.
    """

    word: str
    probability: float
    translation: TranslatedLine


@dataclass(frozen=True)
class LineAlternatives:
    """The alternatives in a line, the most probable first; none if the translation has not as many words, or the word
    is one of its target prefix.

    Args:
        translation: the best one.
        position: of the word, from 1.
        prefix: the words before the position.
        reached: False if the translation has fewer words before the position.
    """

    translation: TranslatedLine
    position: int
    prefix: str
    found: tuple[Alternative, ...] = ()
    reached: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the line, numbered from 1, with its translation and the alternatives."""
        others = [
            {
                "word": each.word,
                "probability": each.probability,
                "text": each.translation.text,
                **each.translation.hypotheses[0].scores,
            }
            for each in self.found
        ]
        source = self.translation.source
        line = {"line": source.number + 1, "source": source.text, "text": self.translation.text}
        return {**line, "position": self.position, "prefix": self.prefix, "alternatives": others}


def find_alternatives(
    bundle: Bundle,
    lines: Iterable[InputLine],
    options: Decoding,
    *,
    position: int,
    count: int,
    advance: Callable[[int], object] | None = None,
    window: int = WINDOW,
) -> Iterator[LineAlternatives]:
    """Find alternatives in the translation of every line, in order. Long lines are cut, not divided.

    Args:
        position: of a word of the translation, from 1.
        count: alternatives in a line, at most.
        advance, window: as for `translate_lines`.

    Raises:
        UserError: as `translate_lines`.
    """
    options = options.undivided
    for batch in text_windows(lines, window, lambda line: len(line.text)):
        found = list(translate_lines(bundle, batch, options, window=len(batch)))
        spaced = [not is_unspaced([each.text]) for each in found]
        prefixes = [_words_before(each, position, own) for each, own in zip(found, spaced, strict=True)]
        most = bundle.max_target_length
        places = [i for i, each in enumerate(found) if _is_free(each.source, prefixes[i], most)]
        sources, own = [found[i].source for i in places], [prefixes[i] or [] for i in places]
        tried = _next_tokens(bundle, sources, own, [spaced[i] for i in places], options, _TRIED * count)
        begun = [
            (i, [*prefix, token], p) for i, prefix, row in zip(places, own, tried, strict=True) for token, p in row
        ]
        again = [replace(batch[i], prefix=tuple(tokens)) for i, tokens, _ in begun]
        completed = translate_lines(bundle, again, options, window=max(len(again), 1))
        words: list[dict[str, Alternative]] = [{} for _ in batch]
        for (i, _, probability), each in zip(begun, completed, strict=True):
            word = _word_at(each, position, spaced[i])
            words[i].setdefault(word, Alternative(word, probability, each))
        for each, prefix, others in zip(found, prefixes, words, strict=True):
            kept = tuple(others.values())[:count]
            yield LineAlternatives(each, position, _text(each, 0, len(prefix or [])), kept, prefix is not None)
        if advance:
            advance(len(batch))


def _words_before(found: TranslatedLine, position: int, spaced: bool) -> list[int] | None:
    """The tokens of the best output before a word; None: it has fewer words."""
    tokens, numbers = found.hypotheses[0].tokens, _word_numbers(found, spaced)
    if (numbers[-1] + 1 if numbers else 0) < position - 1:
        return None
    return [token for token, number in zip(tokens, numbers, strict=True) if number < position - 1]


def _word_numbers(found: TranslatedLine, spaced: bool) -> list[int]:
    """The word, from 0, of each token of the best output; if not ``spaced``, every token but a lone space is one."""
    tokens = found.hypotheses[0].tokens
    if spaced:
        numbers: list[int] = word_ids(tokens, found.tokenizer).tolist()
        return numbers
    written = [name != SPACE for name in found.tokenizer.pieces(tokens)]
    return [total - own for own, total in zip(written, accumulate(written), strict=True)]


def _is_free(source: SourceLine, prefix: Sequence[int] | None, most: int) -> bool:
    """Return True if other tokens may follow these: an output holds ``most``, and begins with its target prefix."""
    return prefix is not None and not source.empty and len(source.prefix) <= len(prefix) < most


def _word_at(found: TranslatedLine, position: int, spaced: bool) -> str:
    numbers = _word_numbers(found, spaced)
    return _text(found, bisect_left(numbers, position - 1), bisect_left(numbers, position))


def _text(found: TranslatedLine, begin: int, end: int) -> str:
    """Return the text of some tokens of the best output, with what is copied in place of unknown ones."""
    best = found.hypotheses[0]
    copied = best.copied[best.tokens[:begin].count(UNK) :]
    return found.tokenizer.decode(best.tokens[begin:end], copied)


@torch.inference_mode()
def _next_tokens(
    bundle: Bundle,
    lines: Sequence[SourceLine],
    prefixes: Sequence[list[int]],
    spaced: Sequence[bool],
    options: Decoding,
    count: int,
) -> list[list[tuple[int, float]]]:
    """The most probable tokens after each prefix that begin a word, with their probabilities.

    Args:
        spaced: False: every token of the output begins one.
    """
    found: list[list[tuple[int, float]]] = [[] for _ in lines]
    engine, frame, target = bundle.engine, bundle.frames.target, bundle.tokenizers.target
    starts = torch.from_numpy(target.word_starts).to(bundle.device)
    lengths = [max(len(line.ids), len(prefix)) for line, prefix in zip(lines, prefixes, strict=True)]
    for chosen in length_batches(lengths, options.batch_tokens):
        own = [lines[i] for i in chosen]
        with describe_out_of_memory(own, "read along", batch_tokens=options.batch_tokens, single_hint=_HINT):
            memory = engine.encode(make_source(bundle, own), exits=options.encoder_exits).memory
            inputs, valid = pad([[*frame.given, *prefixes[i]] for i in chosen])
            cache = engine.new_cache(memory, exits=options.decoder_exits, at_once=True)
            states = engine.step(inputs.to(bundle.device), cache)
            last = states[torch.arange(len(chosen)), valid.sum(1).to(states.device) - 1]  # (B, D)
            logits = engine.project(last).double()  # (B, V)
        allowed = allowed_tokens(bundle, own, options)  # as in searches, before the normalization
        scores = (logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)).softmax(-1)
        scores[:, [*never(options), EOS]] = 0
        if target.keeps_word_boundaries:  # another token would change the word before
            continued = torch.tensor([bool(prefixes[i]) and spaced[i] for i in chosen], device=scores.device)
            scores = scores.masked_fill(continued[:, None] & ~starts, 0)
        values, tokens = scores.topk(min(count, scores.shape[1]), -1)
        for i, row, own_values in zip(chosen, tokens.tolist(), values.tolist(), strict=True):
            found[i] = [(token, value) for token, value in zip(row, own_values, strict=True) if value > 0]
    return found
