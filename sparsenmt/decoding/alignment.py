"""Word alignments, read off the cross-attention of a model along finished or given translations.

Each target token is aligned to the source token that it attends to most when it is predicted: in the mean over the
chosen heads, by default all those of the last decoder layer that runs, whose states predict the token. Closed
positions, ``</s>`` and the tokens of languages are left out. Two words are aligned if two of their tokens are, as
Garg et al. (2019, "Jointly Learning to Align and Translate with Transformer Models") merge subword alignments. A target
token that attends to none of these positions stays without a link.

The attention is that of forced decoding after the search, so that the search itself stays as it is in either engine.
Shapes: N targets, T tokens of a target, S source positions, I and J words of the source and the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.tagging.word_alignment import align_words
from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import SPACE
from sparsenmt.data.word_links import WordPlaces, places_of_spans, word_spans
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, make_source
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.recipe.schema import Decoding
from sparsenmt.report import html

EQUAL = 1e-6
"""Differences in attention that are rounding: the first of equal positions is taken."""

_HINT = "Split the line, or use a machine with more memory."


@dataclass(frozen=True)
class AttentionHeads:
    """Heads of cross-attention, whose mean decides.

    Args:
        layers: from 1; empty: the last one that runs.
        heads: from 1, fixed ones first; empty: all.
    """

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, where: str) -> AttentionHeads:
        """Read ``LAYER`` or ``LAYER.HEAD``; UserError about ``where`` if the text is neither."""
        parts = text.split(".")
        if len(parts) > 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in parts):
            hint = "Write LAYER, for the mean of its heads, or LAYER.HEAD, as 5.1; both count from 1."
            raise UserError(f"'{text}' names no head", where=where, hint=hint)
        return cls((int(parts[0]),), tuple(map(int, parts[1:])))

    def check(self, bundle: Bundle, options: Decoding, where: str) -> None:
        """Raise UserError about ``where`` if the model has no such layer or head, or no cross-attention."""
        if bundle.recipe.data.is_language_model:
            hint = "Leave the option out."
            raise UserError("has no meaning for a language model, which has no source", where=where, hint=hint)
        layers, names = options.decoder_layers or bundle.depth[1], bundle.model.head_names("cross")
        for number, most, what in (
            (max(self.layers, default=1), layers, "decoder layer"),
            (max(self.heads, default=1), len(names), "head"),
        ):
            if number > most:
                runs = "" if what == "head" else " or does not run"
                hint = f"Name one from 1 to {most}."
                raise UserError(f"{what} {number} does not exist{runs}: the last one is {most}", where=where, hint=hint)


LAST_LAYER = AttentionHeads()


def guided_heads(bundle: Bundle) -> AttentionHeads:
    """Return the head that the model's training guided towards alignments; `LAST_LAYER` if it guided none."""
    guided = bundle.recipe.training.guided_alignment
    return LAST_LAYER if guided is None else AttentionHeads((guided.layer,), (guided.head,))


@dataclass(frozen=True, repr=False)
class Alignment(Sequence[tuple[int, int]]):
    """The aligned words of a sentence pair. Its text is that of Pharaoh files: ``0-0 1-2``.

    Words are what stands between spaces; of a text without spaces between words, its tokens.

    Args:
        source, target: the words.
        pairs: places of a source and a target word, from 0, rising.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def words(self) -> list[tuple[str, str]]:
        """The aligned words themselves."""
        return [(self.source[i], self.target[j]) for i, j in self.pairs]

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[int, int], ...]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | tuple[tuple[int, int], ...]:
        return self.pairs[index]

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        return " ".join(f"{i}-{j}" for i, j in self.pairs)

    def __repr__(self) -> str:
        sizes = f"{len(self.source)} source and {len(self.target)} target words"
        return f"Alignment({sizes}, {len(self)} link{'' if len(self) == 1 else 's'})"

    def _repr_html_(self) -> str:
        links = np.zeros((len(self.target), len(self.source)))
        for i, j in self.pairs:
            links[j, i] = 1.0
        return html.colour_table(links, self.target, self.source, caption="word alignment", numbers=False)


@dataclass(frozen=True)
class WordWeights:
    """Attention between words: of each target word the mean over its tokens, whose weights sum to 1.

    Args:
        weights: (J, I) the sums over the tokens of a source word.
        dropped: (J) what positions get that a filter has closed, which their stand-in holds.
        outside: (J) what ``</s>`` and the tokens of languages get.
    """

    weights: NDArray[np.float64]
    dropped: NDArray[np.float64]
    outside: NDArray[np.float64]


@dataclass(frozen=True)
class AlignedPair:
    """A source and a target with the attention between their tokens.

    Args:
        weights: (T, S) of the tokens of the target, without ``</s>``.
        closed: (S,) True where a filter has closed the position.
        source: the words of the S positions.
        target: the words of the T tokens.
    """

    weights: NDArray[np.float64]
    closed: NDArray[np.bool_]
    source: WordPlaces
    target: WordPlaces

    @cached_property
    def alignment(self) -> Alignment:
        """The aligned words."""
        columns = [s for s, word in enumerate(self.source.places) if word >= 0 and not self.closed[s]]
        links = set()
        for row, word in zip(self.weights[:, columns], self.target.places, strict=True):
            most = row.max(initial=0.0)
            if word >= 0 and most > 0:
                links.add((self.source.places[columns[int(np.argmax(row >= most - EQUAL))]], word))
        return Alignment(self.source.words, self.target.words, tuple(sorted(links)))

    def word_weights(self) -> WordWeights:
        """Return the attention between words; a target word without a token of its own has zeros."""
        sums = self.weights.sum(1, keepdims=True)
        shares = self.weights / np.where(sums > 0, sums, 1.0)
        counts = np.bincount([word for word in self.target.places if word >= 0], minlength=len(self.target.words))
        tokens = np.zeros((len(self.target.words), len(shares)))  # (J, T) the mean over the tokens of a word
        for t, word in enumerate(self.target.places):
            if word >= 0:
                tokens[word, t] = 1.0 / counts[word]
        columns = np.zeros((shares.shape[1], len(self.source.words) + 2))  # (S, I + 2): words, dropped, outside
        for s, word in enumerate(self.source.places):
            columns[s, -2 if self.closed[s] else word if word >= 0 else -1] = 1.0
        merged = tokens @ shares @ columns
        return WordWeights(merged[:, :-2], merged[:, -2], merged[:, -1])


@dataclass(frozen=True)
class ReadTarget:
    """A target along which the decoder reads a source.

    Args:
        tokens: without ``</s>``.
        text: what they stand for; empty where only attention is asked for.
        depth: encoder and decoder layers, where every line has its own.
    """

    source: SourceLine
    tokens: Sequence[int]
    text: str = ""
    depth: tuple[int, int] | None = None


def align_targets(
    bundle: Bundle, targets: Sequence[ReadTarget], options: Decoding, heads: AttentionHeads = LAST_LAYER
) -> list[AlignedPair]:
    """Align the words of sources and targets; without tokens on one of the sides nothing is read, and there is no link.

    Args:
        options: the size of a batch, and the layers that run.

    Raises:
        UserError: a batch does not fit into memory.
    """
    read = [i for i, each in enumerate(targets) if each.tokens and not each.source.empty]
    along = attention_along(bundle, [targets[i] for i in read], options, heads)
    found = {read[i]: (weights, closed) for i, weights, closed in along}
    result = []
    for i, each in enumerate(targets):
        size = len(each.source.ids)
        weights, closed = found.get(i, (np.zeros((len(each.tokens), size)), np.zeros(size, dtype=np.bool_)))
        source = source_places(bundle.tokenizers.source, each.source)
        result.append(AlignedPair(weights, closed, source, target_places(bundle.tokenizers.target, each)))
    return result


def source_places(tokenizer: Tokenizer, line: SourceLine, units: Sequence[Span] | None = None) -> WordPlaces:
    """Return the words of a source, and that of each of its positions; ``</s>`` and frames have none.

    Args:
        units: the places of the words; None: as `places_of_spans` finds them.
    """
    found = places_of_spans(line.text, tokenizer.spans(line.text)[: line.kept], units)
    before, after = len(line.frame.prefix), 1 + len(line.frame.suffix)
    return WordPlaces(found.words, (*[-1] * before, *found.places, *[-1] * after))


def target_places(tokenizer: Tokenizer, target: ReadTarget, units: Sequence[Span] | None = None) -> WordPlaces:
    """Return the words of a target, and that of each of its tokens.

    The tokens of a search need not be those into which its text would be divided: they are then compared with its
    words, or are the words of a text without spaces. Arguments are those of `source_places`.
    """
    own = list(target.tokens)
    if tokenizer.encode(target.text)[: len(own)] == own:
        return places_of_spans(target.text, tokenizer.spans(target.text)[: len(own)], units)
    if units is None and is_unspaced([target.text]):
        return WordPlaces(tuple(name.removeprefix(SPACE) for name in tokenizer.pieces(own)), tuple(range(len(own))))
    words = [target.text[begin:end] for begin, end in (word_spans(target.text) if units is None else units)]
    return WordPlaces(tuple(words), tuple(align_words(tokenizer, own, words).words.tolist()))


def attention_along(
    bundle: Bundle, targets: Sequence[ReadTarget], options: Decoding, heads: AttentionHeads = LAST_LAYER
) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.bool_]]]:
    """Read the sources along the targets, in batches.

    Yields:
        the index of a target, the cross-attention (T, S) along it, the mean over the heads, and (S,) the positions that
        filters have closed.

    Raises:
        UserError: a batch does not fit into memory.
    """
    depths = [each.depth for each in targets]
    for depth in dict.fromkeys(depths):
        members = [i for i, own in enumerate(depths) if own == depth]
        run = options if depth is None else options.at(depth)
        lengths = [max(len(targets[i].source.ids), len(targets[i].tokens)) for i in members]
        for batch in length_batches(lengths, options.batch_tokens):
            chosen = [targets[members[i]] for i in batch]
            lines = [each.source for each in chosen]
            with describe_out_of_memory(lines, "read along", batch_tokens=options.batch_tokens, single_hint=_HINT):
                weights, closed = _read_along(bundle, chosen, run, heads)
            for i, each, own, gone in zip(batch, chosen, weights.numpy(), closed.numpy(), strict=True):
                size = len(each.source.ids)
                yield members[i], own[: len(each.tokens), :size].copy(), gone[:size].copy()


@torch.inference_mode()
def _read_along(
    bundle: Bundle, targets: Sequence[ReadTarget], options: Decoding, heads: AttentionHeads
) -> tuple[Tensor, Tensor]:
    """(N, T, S) cross-attention, the mean over the heads, and (N, S) bool: positions that filters have closed."""
    source = make_source(bundle, [each.source for each in targets])
    memory = bundle.model.encode(source, exits=options.encoder_exits).memory  # an ensemble's own memory is joined
    frame = bundle.frames.target
    inputs, _ = pad([frame.before(each.tokens) for each in targets])
    kept: dict[int, Tensor] = {}

    def keep(seen: AttentionSeen) -> None:
        if seen.site != "cross":
            return
        if not heads.layers:
            kept.clear()
        if not heads.layers or seen.step + 1 in heads.layers:
            shares = seen.shares  # each head counts as much as the others
            own = shares[:, [head - 1 for head in heads.heads]] if heads.heads else shares
            kept[seen.step] = own.double().mean(1)

    with bundle.model.listen(keep):
        bundle.model.decode(inputs.to(bundle.device), memory, exits=options.decoder_exits)
    weights = torch.stack(list(kept.values())).mean(0)[:, len(frame.prefix) :]
    closed = torch.zeros_like(source.valid) if memory.gates is None else source.valid & (memory.gates == 0)
    return weights.cpu(), closed.cpu()
