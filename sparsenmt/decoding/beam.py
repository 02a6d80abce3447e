"""Beam search.

Stopping rule: a sentence is finished when ``beam_size`` of its hypotheses have ended, at its maximum length, or when no
hypothesis can be extended. A hypothesis ends when EOS, in several lines the last one, is among the ``beam_size`` best
continuations of a step; the search continues with the best others. Hypotheses that are still open at the maximum length
only fill places that no ended one has taken.

Unfinished searches can be merged; their sentences then begin at different columns of the same tensors.

Shapes: B unfinished sentences, K beam size, J open hypotheses: one at first, then K; T columns: tokens so far of the
longest sentence; V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.scores import (
    Hypothesis,
    ending,
    hypothesis_of,
    length_penalty,
    next_rules,
)
from sparsenmt.decoding.single_hypothesis import greedy_results
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results, Strategy
from sparsenmt.engine.contract import Continuations, Engine
from sparsenmt.model.memory import Memory
from sparsenmt.recipe.schema import Decoding

_NO_TOKEN = -1  # in columns before a sentence begins: equal to no token

SHARE = 8
"""A search is suspended when 1 / SHARE of its sentences are unfinished."""


@dataclass
class BeamState:
    """The hypotheses of the unfinished sentences; every tensor has a row for each sentence."""

    numbers: Tensor  # (B) of the sentences in the results
    limits: Tensor  # (B) maximum lengths, EOS included
    lengths: Tensor  # (B) tokens so far
    tokens: Tensor  # (B, J, T)
    scores: Tensor  # (B, J) log-probabilities, best first; minus infinity: closed
    ended_count: Tensor  # (B)
    ended_ranks: Tensor  # (B, K) scores after the length penalty, best first; minus infinity: none
    ended_log_probabilities: Tensor  # (B, K)
    ended_lengths: Tensor  # (B, K)
    ended_tokens: Tensor  # (B, K, at most T)

    @staticmethod
    def initial(numbers: Tensor, limits: Tensor, beam_size: int, dtype: torch.dtype) -> BeamState:
        """One empty hypothesis for each sentence."""
        sentences, device = len(limits), limits.device
        return BeamState(
            numbers=numbers,
            limits=limits,
            lengths=torch.zeros(sentences, dtype=torch.long, device=device),
            tokens=torch.empty(sentences, 1, 0, dtype=torch.long, device=device),
            scores=torch.zeros(sentences, 1, dtype=dtype, device=device),
            ended_count=torch.zeros(sentences, dtype=torch.long, device=device),
            ended_ranks=torch.full((sentences, beam_size), -math.inf, dtype=dtype, device=device),
            ended_log_probabilities=torch.zeros(sentences, beam_size, dtype=dtype, device=device),
            ended_lengths=torch.zeros(sentences, beam_size, dtype=torch.long, device=device),
            ended_tokens=torch.zeros(sentences, beam_size, 0, dtype=torch.long, device=device),
        )

    def select(self, sentences: Tensor) -> BeamState:
        """Keep only these sentences, in this order."""
        return BeamState(*(tensor[sentences] for tensor in self._tensors()))

    @staticmethod
    def concatenate(states: Sequence[BeamState]) -> BeamState:
        """Concatenate the sentences of several states, aligned at their last tokens."""
        columns = int(torch.cat([state.lengths for state in states]).max())
        parts = zip(*(state._aligned(columns)._tensors() for state in states), strict=True)
        return BeamState(*(torch.cat(part) for part in parts))

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def _aligned(self, columns: int) -> BeamState:
        """The same with ``columns`` columns, padded on the left, or without the columns of finished sentences."""
        present = self.tokens.shape[2]

        def align(tokens: Tensor) -> Tensor:
            whole = F.pad(tokens, (0, present - tokens.shape[2]))
            return F.pad(whole, (columns - present, 0), value=_NO_TOKEN)  # a negative number removes columns

        return replace(self, tokens=align(self.tokens), ended_tokens=align(self.ended_tokens))


class Beam:
    """The search over a batch. Finished sentences are removed from the state and the cache."""

    @torch.inference_mode()
    def __init__(self, engine: Engine, batch: EncodedBatch, options: Decoding) -> None:
        memory, device = batch.memory, batch.memory.states.device
        dtype = torch.float64 if memory.states.dtype == torch.float64 else torch.float32
        numbers = torch.tensor(batch.numbers, device=device)
        self.engine = engine
        self.options = options
        self._batch, self._first, self._prefix = batch, batch.first_tokens, batch.prefix
        self.cache = engine.new_cache(memory, exits=options.decoder_exits, allowed=batch.allowed)
        self.state = BeamState.initial(numbers, batch.limits, options.beam_size, dtype)
        self._rows = torch.arange(len(numbers), device=device)  # of the unfinished sentences in the batch

    def __len__(self) -> int:
        """Unfinished sentences."""
        return len(self.state.numbers)

    @property
    def sentence_numbers(self) -> list[int]:
        """Numbers of the unfinished sentences."""
        numbers: list[int] = self.state.numbers.tolist()
        return numbers

    @property
    def size(self) -> tuple[int, int]:
        """Entries of the memory and tokens so far of each sentence, padding included."""
        return self.cache.memory.valid.shape[1], self.state.tokens.shape[2]

    @torch.inference_mode()
    def run(self, left: int = 0) -> Results:
        """Search until at most ``left`` sentences are unfinished.

        Returns:
            up to ``beam_size`` hypotheses, best first, of each sentence that was finished.
        """
        found: Results = self._greedy_results()
        while len(self) > left:
            tokens = self.state.tokens
            begun = tokens.shape[2] > 0
            last = tokens[:, :, -1].reshape(-1, 1) if begun else self._first
            rows, any_done = self.advance(*self.candidates(self.engine.step(last, self.cache)[:, -1]))
            if any_done:
                done = self.done()
                found.update(self.results(done))
                self.remove(done, rows)
            else:
                self.cache.reorder(rows)
        return found

    def _greedy_results(self) -> Results:
        """Results of all sentences where the search is greedy, has not begun, and is possible in one call."""
        if self.options.beam_size > 1 or self.state.tokens.shape[2] or not len(self):
            return {}
        found = greedy_results(self.engine, self.cache, self._batch, self.options)
        if found is None:
            return {}
        self.state = self.state.select(self.state.numbers[:0])
        return found

    @property
    def can_merge(self) -> bool:
        """True if the cache can be merged and no rule depends on the number of the step any more."""
        required = 0 if self._batch.required is None else self._batch.required.shape[1]
        first = max(self.options.min_length, self.options.no_repeat_ngram, required, 1)
        return self.state.tokens.shape[2] >= first and self.cache.can_merge

    @torch.inference_mode()
    def merge(self, others: Sequence[Beam]) -> Beam:
        """Merge with searches of the same engine and options; with none, free the memory of finished sentences."""
        merged = copy(self)
        merged._batch = replace(self._batch, required=None)  # those tokens are there
        merged._rows = torch.cat([self._rows, *(other._rows for other in others)])
        merged.cache = self.cache.merge([other.cache for other in others])
        merged.state = BeamState.concatenate([self.state, *(other.state for other in others)])
        return merged

    def candidates(self, states: Tensor) -> Continuations:
        """states (B * J, D) -> the 2K best continuations: log-probabilities, parents in 0..J-1, tokens; (B, 2K)."""
        state = self.state
        required = self._batch.required_at(state.tokens.shape[2], self._rows)
        rules = next_rules(state.tokens.view(states.shape[0], -1), self.options, required=required)
        return self.engine.next_tokens(states, state.scores, self.cache, rules, 2 * self.options.beam_size)

    def advance(self, best: Tensor, parents: Tensor, tokens: Tensor) -> tuple[Tensor, bool]:
        """Take a step, which reads one value from the device.

        Returns:
            the cache's rows (B * K), out of B * J, of the hypotheses that continue, in order; and True if a sentence
            is finished.
        """
        state, k = self.state, self.options.beam_size
        sentences, opened = state.scores.shape
        stops = self._ending(parents, tokens)
        ends = stops[:, :k] & (best[:, :k] > -math.inf)  # only a hypothesis among the K best ends
        # The K best that do not end, in order. There are as many, as each parent ends in one way only.
        order = stops.int().argsort(dim=1, stable=True)[:, :k]
        state.lengths = state.lengths + 1
        state.ended_count = state.ended_count + ends.sum(1)
        state.scores = best.gather(1, order).masked_fill(stops.gather(1, order), -math.inf)
        full = state.limits <= state.lengths
        any_ends, any_full, any_done = torch.stack([ends.any(), full.any(), self.done().any()]).tolist()
        if any_ends:
            ranks = (best[:, :k] / self._penalties()).masked_fill(~ends, -math.inf)
            chosen = torch.cat([state.ended_ranks, ranks], 1).topk(k, -1).indices
            self._collect(chosen, self._extended(parents[:, :k], tokens[:, :k]), best[:, :k], ranks)
        parents = parents.gather(1, order)
        state.tokens = self._extended(parents, tokens.gather(1, order))
        if any_full:
            # Both are sorted: first the ended hypotheses, then the open ones, then the empty places.
            ranks = (state.scores / self._penalties()).masked_fill(~full[:, None], -math.inf)
            none = torch.cat([state.ended_ranks, ranks], 1) == -math.inf
            self._collect(none.int().argsort(dim=1, stable=True)[:, :k], state.tokens, state.scores, ranks)
        rows = torch.arange(sentences, device=best.device)[:, None] * opened + parents
        return rows.view(-1), any_done

    def _ending(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """(B, 2K) bool: the continuations that end their hypothesis."""
        if self.options.max_lines == 1:
            return tokens == EOS
        return ending(tokens.flatten(), self._history(parents).flatten(0, 1), self.options).view_as(tokens)

    def _penalties(self) -> Tensor:
        """(B, 1) length penalties of hypotheses of the present length."""
        lengths = self._prefix + self.state.lengths.double()
        return length_penalty(lengths, self.options).to(self.state.scores.dtype)[:, None]

    def _extended(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Hypotheses (B, K) with one more token, (B, K, T + 1)."""
        return torch.cat([self._history(parents), tokens[:, :, None]], 2)

    def _history(self, parents: Tensor) -> Tensor:
        """The tokens so far of parents (B, K), (B, K, T)."""
        return self.state.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.state.tokens.shape[2]))

    def _collect(self, order: Tensor, tokens: Tensor, log_probabilities: Tensor, ranks: Tensor) -> None:
        """Keep those at ``order`` (B, K) of the ended hypotheses and K others, each (B, K, ...)."""
        state, columns = self.state, tokens.shape[2]

        def merge(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new], 1).gather(1, order)

        state.ended_ranks = merge(state.ended_ranks, ranks)
        state.ended_log_probabilities = merge(state.ended_log_probabilities, log_probabilities)
        state.ended_lengths = merge(state.ended_lengths, state.lengths[:, None].expand_as(order))
        older = F.pad(state.ended_tokens, (0, columns - state.ended_tokens.shape[2]))
        both = torch.cat([older, tokens], 1)
        state.ended_tokens = both.gather(1, order[:, :, None].expand(-1, -1, columns))

    def done(self) -> Tensor:
        """(B) bool: sentences that are finished."""
        state = self.state
        stuck = ~(state.scores[:, 0] > -math.inf)  # scores are sorted; NaN counts as stuck
        return stuck | (state.ended_count >= self.options.beam_size) | (state.limits <= state.lengths)

    def results(self, which: Tensor) -> Results:
        """Results of the sentences in ``which`` (B) bool."""
        state, chosen = self.state, which.nonzero().squeeze(1)
        columns = (
            state.numbers,
            state.tokens.shape[2] - state.lengths,
            state.ended_ranks.masked_fill(state.scores[:, :1].isnan(), -math.inf),
            state.ended_log_probabilities,
            state.ended_lengths,
            state.ended_tokens,
        )
        lists = [column[chosen].tolist() for column in columns]
        return {
            number: [self._hypothesis(start, *each) for rank, *each in zip(*rest, strict=True) if rank > -math.inf]
            for number, start, *rest in zip(*lists, strict=True)
        }

    def _hypothesis(self, start: int, log_probability: float, length: int, columns: list[int]) -> Hypothesis:
        return hypothesis_of(columns[start : start + length], log_probability, self.options, self._prefix)

    def remove(self, done: Tensor, rows: Tensor) -> None:
        """Reorder the cache to ``rows`` without those of the sentences in ``done`` (B) bool, which are removed."""
        chosen = (~done).nonzero().squeeze(1)
        self.cache.reorder(rows.view(-1, self.options.beam_size)[chosen].view(-1))
        self.cache.keep_sentences(chosen)
        self.state, self._rows = self.state.select(chosen), self._rows[chosen]


def beam_search(engine: Engine, memory: Memory, limits: Tensor, options: Decoding) -> list[list[Hypothesis]]:
    """Translate one batch; arguments as for `EncodedBatch`. Returns up to ``beam_size`` hypotheses a sentence."""
    numbers = list(range(len(limits)))
    found = Beam(engine, EncodedBatch(memory, limits, numbers, numbers), options).run()
    return [found[number] for number in numbers]


class SearchPool:
    """The unfinished searches of a text, which are merged and continued together.

    A few sentences of a batch need many more steps than the others, and a step of few rows takes almost as long as one
    of many, as the weights have to be read in any case. So the search over a batch is suspended when few of its
    sentences are unfinished, and those of several batches are continued as one search.

    The keys and values of suspended searches, of the memory and of tokens so far, padding included, never take more
    memory than those of a whole batch.
    """

    def __init__(self, naming: ErrorContext) -> None:
        self._naming = naming
        self._waiting: list[Beam] = []
        self._capacity = (0, 0)  # the most entries of a memory, and tokens, that a batch had

    @property
    def waiting(self) -> list[int]:
        """Numbers of the sentences of suspended searches."""
        return [number for search in self._waiting for number in search.sentence_numbers]

    def run(self, search: Beam) -> Results:
        """Run a new search; return the results of its finished sentences and of earlier ones."""
        numbers = search.sentence_numbers
        with self._naming(numbers):
            found, rest = _run_until_few(search)
            entries, columns = search.size
            most_entries, most_columns = self._capacity
            self._capacity = max(most_entries, len(numbers) * entries), max(most_columns, len(numbers) * columns)
        return found if rest is None else found | self._wait(rest)

    def finish(self) -> Results:
        """Finish all suspended searches; return their results."""
        if not self._waiting:
            return {}
        with self._naming(self.waiting):
            return self._merged().run()

    def _merged(self) -> Beam:
        (first, *others), self._waiting = self._waiting, []
        return first.merge(others)

    def _wait(self, search: Beam) -> Results:
        """Suspend a search; if the pool has no capacity for it, first continue the others."""
        found: Results = {}
        if self._waiting and not self._fits(search):
            with self._naming(self.waiting):
                found, rest = _run_until_few(self._merged())
            self._waiting = [] if rest is None else [rest]
        if self._waiting and not self._fits(search):
            found |= self.finish()
        self._waiting.append(search)
        return found

    def _fits(self, search: Beam) -> bool:
        """Return True if the suspended searches and this one are no larger than a batch."""
        searches = [*self._waiting, search]
        count, sizes = sum(map(len, searches)), [each.size for each in searches]
        largest = map(max, zip(*sizes, strict=True))
        return all(count * each <= most for each, most in zip(largest, self._capacity, strict=True))


def _run_until_few(search: Beam) -> tuple[Results, Beam | None]:
    """Run a search until few sentences are unfinished; return the results, and the rest if it can be merged."""
    found = search.run(len(search) // SHARE)
    if not search.can_merge:
        return found | search.run(), None
    return found, search.merge([]) if len(search) else None


class BeamSearch(Strategy):
    """Beam search, with unfinished searches merged where that is faster."""

    name = "beam"
    penalizes_length = True
    keeps_prefixes = True

    @property
    def width(self) -> int:
        return self.options.beam_size

    @property
    def label(self) -> str:
        return f"{self.name} {self.width}"

    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        pool = SearchPool(naming)
        for batch in batches:
            with naming(batch.numbers):
                beam = Beam(engine, batch, self.options)
            yield pool.run(beam)
        yield pool.finish()
