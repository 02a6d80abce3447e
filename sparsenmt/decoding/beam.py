"""Beam search.

Stopping rule: a sentence is done when ``beam_size`` of its hypotheses have ended, at its maximum length, or when none
can go on. A hypothesis ends when EOS is among the ``beam_size`` best continuations of a step; the beam goes on with the
best others. Hypotheses still open at the maximum length only fill places that no ended one took.

What is left of several searches can be joined: then sentences begin at different columns of the same tensors.

Shapes: B sentences still searched, K beam size, J hypotheses that are open: one at first, then K; T columns: pieces so
far of the sentence that has most; V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.scores import NEVER, Hypothesis, candidates, length_divisor, unrestricted
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.recipe.schema import Decoding

_NO_PIECE = -1  # in columns before a sentence begins: equal to no piece

_ROWS = 384  # whose logits are alive at a time: those of 8,000 pieces stay in a processor's last cache

_OF_SENTENCES = (
    *("limits", "numbers", "lengths", "scores", "tokens"),
    *("ended_count", "ended_ranks", "ended_log_probabilities", "ended_lengths", "ended_tokens"),
)


class Beam:
    """The search over a batch. Sentences that are done leave it, in every tensor and in the cache.

    Args:
        memory: of B sentences, possibly compacted.
        limits: (B) maximum lengths, EOS included.
        numbers: (B) what the sentences are called in the results.
    """

    def __init__(
        self, model: TranslationModel, memory: Memory, limits: Tensor, numbers: Tensor, options: Decoding
    ) -> None:
        sentences, k = memory.valid.shape[0], options.beam_size
        device = memory.states.device
        dtype = torch.float64 if memory.states.dtype == torch.float64 else torch.float32
        self.model = model
        self.options = options
        self.cache = model.new_cache(memory)
        self.limits = limits
        self.numbers = numbers
        self.lengths = torch.zeros(sentences, dtype=torch.long, device=device)  # (B) pieces so far
        self.tokens = torch.empty(sentences, 1, 0, dtype=torch.long, device=device)  # (B, J, T): all start as one
        self.scores = torch.zeros(sentences, 1, dtype=dtype, device=device)  # (B, J)
        self.ended_ranks = torch.full((sentences, k), -math.inf, dtype=dtype, device=device)
        self.ended_log_probabilities = torch.zeros_like(self.ended_ranks)
        self.ended_lengths = torch.zeros(sentences, k, dtype=torch.long, device=device)
        self.ended_tokens = torch.zeros(sentences, k, 0, dtype=torch.long, device=device)  # as long as it need be
        self.ended_count = torch.zeros(sentences, dtype=torch.long, device=device)

    def __len__(self) -> int:
        """Sentences that are still searched."""
        return len(self.numbers)

    @property
    def size(self) -> tuple[int, int]:
        """Of each sentence, padding included: entries of its memory, and pieces so far."""
        return self.cache.memory.valid.shape[1], self.tokens.shape[2]

    @torch.inference_mode()
    def run(self, left: int = 0) -> dict[int, list[Hypothesis]]:
        """Go on until no more than so many sentences are left.

        Returns:
            up to ``beam_size`` hypotheses, best first, of each sentence that was done, by number; none where logits
            were no numbers.
        """
        found: dict[int, list[Hypothesis]] = {}
        while len(self) > left:
            last = self.tokens[:, :, -1].reshape(-1, 1) if self.tokens.shape[2] else self._beginnings()
            hidden = self.model.decode(last, self.cache.memory, cache=self.cache, exits=self.options.decoder_exits)
            (states,) = hidden.values()
            rows = self.advance(*self.candidates(states[:, -1]))
            done = self.done()
            if bool(done.any()):
                found.update(self.results(done))
            self.keep(~done, rows)
        return found

    def _beginnings(self) -> Tensor:
        return torch.full((len(self), 1), BOS, device=self.tokens.device)

    @property
    def joins(self) -> bool:
        """Whether `join` is for it, as it is now."""
        first = max(self.options.min_length, self.options.no_repeat_ngram, 1)  # until then, steps differ by length
        return self.tokens.shape[2] >= first and self.cache.can_merge

    @staticmethod
    @torch.inference_mode()
    def join(beams: Sequence[Beam]) -> Beam:
        """What is left of searches with one model and the same options, as one; of one, without what has been done."""
        joined = copy(beams[0])
        joined.cache = beams[0].cache.merge([beam.cache for beam in beams[1:]])
        columns = int(torch.cat([beam.lengths for beam in beams]).max())
        for name in _OF_SENTENCES:
            parts = []
            for beam in beams:
                part, there = getattr(beam, name), beam.tokens.shape[2]
                if part.dim() == 3:  # pieces; a number below zero takes away columns of sentences that were done
                    part = F.pad(F.pad(part, (0, there - part.shape[2])), (columns - there, 0), value=_NO_PIECE)
                parts.append(part)
            setattr(joined, name, torch.cat(parts))
        return joined

    def candidates(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """states (B * J, D) -> the 2K best continuations: log-probabilities, parents in 0..J-1, pieces; (B, 2K)."""
        (sentences, opened), width = self.scores.shape, 2 * self.options.beam_size
        if unrestricted(self.options):
            at_once = self.model.continuations(states, self.scores, NEVER, width)
            if at_once is not None:
                return at_once
        parts = -(-states.shape[0] // _ROWS) if states.device.type == "cpu" else 1
        each = -(-sentences // parts)
        flat, found = self.tokens.view(states.shape[0], -1), []
        for first in range(0, sentences, each):
            rows = slice(first * opened, (first + each) * opened)
            logits = self.model.project(states[rows])
            wide = logits if logits.dtype == torch.float64 else logits.float()
            scores = self.scores[first : first + each]
            found.append(candidates(wide, flat[rows], scores, width, self.options))
        best, parents, pieces = (torch.cat(part) for part in zip(*found, strict=True))
        return best, parents, pieces

    def advance(self, best: Tensor, parents: Tensor, pieces: Tensor) -> Tensor:
        """Take a step; returns the rows (B * K), out of B * J, of the cache that go on, in order."""
        (sentences, opened), k = self.scores.shape, self.options.beam_size
        self.lengths = self.lengths + 1
        ending = pieces == EOS
        ends = ending.clone()
        ends[:, k:] = False  # only what is among the K best ends
        ends &= best > -math.inf
        if bool(ends.any()):
            ranks = (best[:, :k] / self._divisors()).masked_fill(~ends[:, :k], -math.inf)
            order = torch.cat([self.ended_ranks, ranks], 1).topk(k, -1).indices
            self._collect(order, self._grown(parents[:, :k], pieces[:, :k]), best[:, :k], ranks)
            self.ended_count += ends.sum(1)
        # The K best that do not end, in order: there are that many, as a parent ends in one way only.
        order = ending.int().argsort(dim=1, stable=True)[:, :k]
        self.scores = best.gather(1, order).masked_fill(ending.gather(1, order), -math.inf)
        parents = parents.gather(1, order)
        self.tokens = self._grown(parents, pieces.gather(1, order))
        rows = torch.arange(sentences, device=best.device)[:, None] * opened + parents
        full = self.limits <= self.lengths
        if bool(full.any()):
            # Both are sorted already: first all that ended, then all that are open, then the empty places.
            ranks = (self.scores / self._divisors()).masked_fill(~full[:, None], -math.inf)
            none = torch.cat([self.ended_ranks, ranks], 1) == -math.inf
            order = none.int().argsort(dim=1, stable=True)[:, :k]
            self._collect(order, self.tokens, self.scores, ranks)
        return rows.view(-1)

    def _divisors(self) -> Tensor:
        """(B, 1)."""
        return length_divisor(self.lengths.double(), self.options).to(self.scores.dtype)[:, None]

    def _grown(self, parents: Tensor, pieces: Tensor) -> Tensor:
        """Hypotheses (B, K) with a piece more, (B, K, T + 1)."""
        history = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.shape[2]))
        return torch.cat([history, pieces[:, :, None]], 2)

    def _collect(self, order: Tensor, tokens: Tensor, log_probabilities: Tensor, ranks: Tensor) -> None:
        """Of the collected hypotheses and K others, each (B, K, ...), keep those at ``order`` (B, K); -inf is none."""
        columns = tokens.shape[2]

        def merge(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new], 1).gather(1, order)

        self.ended_ranks = merge(self.ended_ranks, ranks)
        self.ended_log_probabilities = merge(self.ended_log_probabilities, log_probabilities)
        self.ended_lengths = merge(self.ended_lengths, self.lengths[:, None].expand_as(order))
        older = F.pad(self.ended_tokens, (0, columns - self.ended_tokens.shape[2]))
        both = torch.cat([older, tokens], 1)
        self.ended_tokens = both.gather(1, order[:, :, None].expand(-1, -1, columns))

    def done(self) -> Tensor:
        """(B) bool."""
        stuck = ~(self.scores[:, 0] > -math.inf)  # scores are sorted; NaN is stuck, too
        return stuck | (self.ended_count >= self.options.beam_size) | (self.limits <= self.lengths)

    def results(self, which: Tensor) -> dict[int, list[Hypothesis]]:
        """Hypotheses, best first, of the sentences in ``which`` (B) bool, by number; none if logits were no numbers."""
        chosen = which.nonzero().squeeze(1)
        columns = (
            self.numbers,
            self.tokens.shape[2] - self.lengths,
            self.ended_ranks.masked_fill(self.scores[:, :1].isnan(), -math.inf),
            self.ended_log_probabilities,
            self.ended_lengths,
            self.ended_tokens,
        )
        lists = [column[chosen].tolist() for column in columns]
        return {
            number: [self._hypothesis(start, *each) for rank, *each in zip(*rest, strict=True) if rank > -math.inf]
            for number, start, *rest in zip(*lists, strict=True)
        }

    def _hypothesis(self, start: int, log_probability: float, length: int, columns: list[int]) -> Hypothesis:
        tokens = columns[start : start + length]
        ended = tokens[-1] == EOS
        score = log_probability / length_divisor(length, self.options)
        return Hypothesis(tokens[:-1] if ended else tokens, log_probability, score, ended)

    def keep(self, going: Tensor, rows: Tensor) -> None:
        """Leave out the sentences that are not in ``going`` (B) bool, and bring the cache to ``rows``."""
        if bool(going.all()):
            self.cache.reorder(rows)
            return
        chosen = going.nonzero().squeeze(1)
        k = self.options.beam_size
        self.cache.reorder(rows.view(-1, k)[chosen].view(-1))
        self.cache.keep_sentences(chosen)
        for name in _OF_SENTENCES:
            setattr(self, name, getattr(self, name)[chosen])


def beam_search(model: TranslationModel, memory: Memory, limits: Tensor, options: Decoding) -> list[list[Hypothesis]]:
    """Translate a batch.

    Args:
        memory: of B sentences, possibly compacted.
        limits: (B) maximum lengths, EOS included.

    Returns:
        up to ``beam_size`` hypotheses a sentence, best first.
    """
    found = Beam(model, memory, limits, torch.arange(len(limits), device=limits.device), options).run()
    return [found[number] for number in range(len(limits))]
