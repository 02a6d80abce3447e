"""Beam search with terms that must, or should, stand in the output: lexically constrained decoding.

Terms that must stand: dynamic beam allocation (Post and Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic
Beam Allocation for Neural Machine Translation"). The candidates of a step are the best continuations of all hypotheses,
the best of each, those by a next token of a term, and behind a term the best that leaves its last word. They are
divided by the number of tokens of terms that they have, and the places of the beam go to these groups in turn, from the
one with the most on; within a group the best come first. A hypothesis may end when all its terms stand. Terms that
should stand have a bonus instead: each of their tokens adds it to the score by which hypotheses are ranked, as long as
the term is complete or may become so.

A term stands as whole words: a letter beside it that continues the word takes it back. Without terms this is the search
of `decoding.beam`, with its rule of stopping.

Shapes: B unfinished sentences, J open hypotheses each (1 at first, then K, the beam size), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.data.terminology import Term, WordEdges
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.beam import BeamSearch
from sparsenmt.decoding.scores import Hypothesis, forbid, length_penalty
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results
from sparsenmt.engine.contract import Engine
from sparsenmt.recipe.schema import Decoding


class TermSearch(BeamSearch):
    """Beam search for sentences with terms, `EncodedBatch.terms`."""

    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        for batch in batches:
            with naming(batch.numbers):
                yield _search_batch(engine, batch, self.options)


def term_progress(term: Term, before: int, tokens: Sequence[int]) -> int:
    """Return the number of tokens of a term that stand at the end of an output; one more: it stands whole behind it.

    Args:
        before: what this was without the last token.
        tokens: of the output.
    """
    size = len(term.tokens)
    if before > size:
        return before
    if before == size and not term.edges.joined(tokens[-2], tokens[-1]):
        return size + 1
    for count in range(min(size, len(tokens)), 0, -1):
        begin = len(tokens) - count
        if tuple(tokens[begin:]) == term.tokens[:count] and not (
            begin and term.edges.joined(tokens[begin - 1], tokens[begin])
        ):
            return count
    return 0


@dataclass(frozen=True)
class _Open:
    """A hypothesis.

    Args:
        row: of its parent, in 0..J-1.
        progress: of each term, as `term_progress`.
    """

    tokens: tuple[int, ...]
    log_probability: float
    row: int
    progress: tuple[int, ...]


class _Sentence:
    """The search over one sentence."""

    def __init__(self, batch: EncodedBatch, row: int, options: Decoding) -> None:
        required = () if batch.required is None else batch.required[row].tolist()
        self.number, self._limit, self._given = batch.numbers[row], int(batch.limits[row]), batch.prefix
        self._terms, self._options = batch.terms[row] if batch.terms else (), options
        self._prefix = [token for token in required if token >= 0]
        self.open = [_Open((), 0.0, 0, (0,) * len(self._terms))]
        self._ended: list[tuple[_Open, Hypothesis]] = []

    def wanted(self, hypothesis: _Open) -> list[int]:
        """The tokens that continue a term, or the one that must come next."""
        step = len(hypothesis.tokens)
        if step < len(self._prefix):
            return [self._prefix[step]]
        pairs = zip(self._terms, hypothesis.progress, strict=True)
        return list(dict.fromkeys(term.tokens[count] for term, count in pairs if count < len(term.tokens)))

    def stands_at_end(self, hypothesis: _Open) -> WordEdges | None:
        """The edges of words, where a term stands at the end of a hypothesis that the next token may take back."""
        if len(hypothesis.tokens) < len(self._prefix):
            return None
        pairs = zip(self._terms, hypothesis.progress, strict=True)
        return next((term.edges for term, count in pairs if count == len(term.tokens)), None)

    def advance(self, best: Sequence[tuple[int, int, float]], wanted: Sequence[tuple[int, int, float]]) -> None:
        """Take a step.

        Args:
            best: the best continuations of each hypothesis: its row, the token, the log-probability.
            wanted: those by the tokens of `wanted`, and the best that leave a term at the end as it stands.
        """
        step, k = len(self.open[0].tokens), self._options.beam_size
        if step < len(self._prefix):
            best = []
        elif not self._soft:
            totals = sorted(best, key=lambda each: -(self.open[each[0]].log_probability + each[2]))
            firsts = {each[0]: each for each in reversed(best)}  # in their order, so that the first one stays
            best = [*totals[: 2 * k], *firsts.values()]
        found = dict.fromkeys((row, token, value) for row, token, value in (*best, *wanted) if value > -math.inf)
        candidates = sorted((self._extended(*each) for each in found), key=lambda each: -self._rank(each))
        complete = [each for each in candidates if self._is_complete(each) or self._soft]
        self._ended += [(each, self._hypothesis(each)) for each in complete[:k] if each.tokens[-1] == EOS]
        self.open = self._allocate([each for each in candidates if each.tokens[-1] != EOS], k)

    @property
    def finished(self) -> bool:
        """True if the beam is full of ended hypotheses, none is open, or the output is as long as it may be."""
        enough = len(self._ended) >= self._options.beam_size
        return enough or not self.open or len(self.open[0].tokens) >= self._limit

    def results(self) -> list[Hypothesis]:
        """The hypotheses, best first: those that ended, then the open ones with the most tokens of terms."""
        ended = sorted((own for _, own in self._ended), key=lambda each: -each.score)
        rest = sorted(self.open, key=lambda each: (-self._count(each), -self._rank(each)))
        return [*ended, *map(self._hypothesis, rest)][: self._options.beam_size]

    @property
    def _soft(self) -> bool:
        return all(term.bonus is not None for term in self._terms) and bool(self._terms)

    def _extended(self, row: int, token: int, value: float) -> _Open:
        parent = self.open[row]
        tokens = (*parent.tokens, token)
        pairs = zip(self._terms, parent.progress, strict=True)
        progress = tuple(term_progress(term, count, tokens) for term, count in pairs)
        return _Open(tokens, parent.log_probability + value, row, progress)

    def _count(self, each: _Open) -> int:
        """Tokens of terms that a hypothesis has."""
        return sum(min(len(term.tokens), own) for term, own in zip(self._terms, each.progress, strict=True))

    def _is_complete(self, each: _Open) -> bool:
        return all(own >= len(term.tokens) for term, own in zip(self._terms, each.progress, strict=True))

    def _rank(self, each: _Open) -> float:
        """The log-probability with the bonuses of terms."""
        pairs = zip(self._terms, each.progress, strict=True)
        return each.log_probability + sum((term.bonus or 0.0) * min(len(term.tokens), own) for term, own in pairs)

    def _allocate(self, candidates: Sequence[_Open], places: int) -> list[_Open]:
        """The candidates that continue, best first: in turn from groups by their tokens of terms, the most first."""
        if self._soft:
            return list(candidates[:places])
        groups: dict[int, list[_Open]] = {}
        for each in candidates:
            groups.setdefault(self._count(each), []).append(each)
        order = [groups[count] for count in sorted(groups, reverse=True)]
        turns = [(turn, group) for turn in range(places) for group in order if turn < len(group)]
        return sorted((group[turn] for turn, group in turns[:places]), key=lambda each: -each.log_probability)

    def _hypothesis(self, each: _Open) -> Hypothesis:
        ended = each.tokens[-1] == EOS
        score = self._rank(each) / length_penalty(float(self._given + len(each.tokens)), self._options)
        return Hypothesis(list(each.tokens[:-1] if ended else each.tokens), each.log_probability, score, ended)


@torch.inference_mode()
def _search_batch(engine: Engine, batch: EncodedBatch, options: Decoding) -> Results:
    """Search a batch; the hypotheses of each sentence."""
    cache = engine.new_cache(batch.memory, exits=options.decoder_exits, allowed=batch.allowed)
    sentences = [_Sentence(batch, row, options) for row in range(len(batch.numbers))]
    rows = torch.arange(len(sentences), device=batch.limits.device)  # (B) of the unfinished sentences in the batch
    last, results, opened = batch.first_tokens, Results(), 1
    while sentences:
        found = _log_probabilities(engine.step(last, cache)[:, -1], engine, batch, rows, opened)
        unsound = found.isnan().view(len(sentences), -1).any(1).tolist()
        _take_step(sentences, found, options, opened)
        for sentence, broken in zip(sentences, unsound, strict=True):
            if broken or sentence.finished:
                results[sentence.number] = [] if broken else sentence.results()
        going = [i for i, each in enumerate(sentences) if each.number not in results]
        kept = [[i * opened + each.row for each in _filled(sentences[i], options.beam_size)] for i in going]
        cache.reorder(torch.tensor(kept, dtype=torch.long, device=found.device).flatten())
        if len(going) < len(sentences):
            chosen = torch.tensor(going, dtype=torch.long, device=found.device)
            cache.keep_sentences(chosen)
            rows, sentences = rows[chosen], [sentences[i] for i in going]
        opened = options.beam_size
        newest = [[each.tokens[-1] for each in _filled(one, opened)] for one in sentences]
        last = torch.tensor(newest, dtype=torch.long, device=found.device).view(-1, 1)
    return results


def _log_probabilities(states: Tensor, engine: Engine, batch: EncodedBatch, rows: Tensor, opened: int) -> Tensor:
    """states (B * J, D) -> (B * J, V), minus infinity outside of shortlists."""
    logits = engine.project(states)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if batch.allowed is not None:
        logits = logits.masked_fill(~batch.allowed[rows].repeat_interleave(opened, 0), -math.inf)
    return logits.log_softmax(-1)


def _filled(sentence: _Sentence, count: int) -> list[_Open]:
    """The open hypotheses of a sentence, and the first again in the places that are free."""
    return [*sentence.open, *[sentence.open[0]] * (count - len(sentence.open))]


def _take_step(sentences: Sequence[_Sentence], found: Tensor, options: Decoding, opened: int) -> None:
    """Take a step in every sentence. found: (B * J, V) log-probabilities; they are overwritten."""
    places = [
        (i * opened + row, token)
        for i, sentence in enumerate(sentences)
        for row, each in enumerate(sentence.open)
        for token in sentence.wanted(each)
    ]
    picked = iter(found[[row for row, _ in places], [token for _, token in places]].tolist())  # whatever is forbidden
    history = [each.tokens for sentence in sentences for each in _filled(sentence, opened)]
    found = forbid(found, torch.tensor(history, dtype=torch.long, device=found.device), options)
    values, tokens = (each.tolist() for each in found.topk(min(2 * options.beam_size, found.shape[1]), -1))
    leaving = _best_leaving(sentences, found, opened)
    for i, sentence in enumerate(sentences):
        best = [
            (row, token, value)
            for row in range(len(sentence.open))
            for token, value in zip(tokens[i * opened + row], values[i * opened + row], strict=True)
        ]
        wanted = [
            (row, token, next(picked)) for row, each in enumerate(sentence.open) for token in sentence.wanted(each)
        ]
        sentence.advance(best, wanted + leaving[i])


def _best_leaving(sentences: Sequence[_Sentence], found: Tensor, opened: int) -> list[list[tuple[int, int, float]]]:
    """The best continuations, as in `_Sentence.advance`, that do not continue the word of a term at the end."""
    ends = [
        (i, row, edges)
        for i, sentence in enumerate(sentences)
        for row, each in enumerate(sentence.open)
        if (edges := sentence.stands_at_end(each)) is not None
    ]
    result: list[list[tuple[int, int, float]]] = [[] for _ in sentences]
    if ends:
        continues = torch.from_numpy(ends[0][2].continues).to(found.device)
        own = found[[i * opened + row for i, row, _ in ends]].masked_fill(continues, -math.inf)
        for (i, row, _), value, token in zip(ends, *(each.tolist() for each in own.max(-1)), strict=True):
            result[i].append((row, token, value))
    return result
