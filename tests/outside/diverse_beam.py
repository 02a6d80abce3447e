"""Diverse beam search: groups of hypotheses, each of which avoids the tokens that the groups before have just taken.

Vijayakumar et al. 2018, "Diverse Beam Search for Improved Description of Complex Scenes", Algorithm 1, with the Hamming
diversity: a token is worth STRENGTH less for every hypothesis of an earlier group that takes it at the same step.
Shapes: B unfinished sentences, G groups of W hypotheses, J = G * W (1 at first), T tokens so far, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sparsenmt import register_strategy
from sparsenmt.decoding.scores import Hypothesis, ending, forbid, hypothesis_of
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results, Strategy
from sparsenmt.engine.contract import Engine, require
from sparsenmt.errors import UserError

STRENGTH = 0.5


@register_strategy("diverse_beam")
class DiverseBeam(Strategy):
    """Two groups, each with half of the hypotheses."""

    penalizes_length = True
    keeps_prefixes = True
    groups = 2

    @property
    def width(self) -> int:
        return self.options.beam_size

    @property
    def label(self) -> str:
        return f"{self.name} {self.width}"

    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        if self.width % self.groups:
            raise UserError(
                f"{self.width} hypotheses cannot be divided into {self.groups} groups",
                where="decoding.beam_size",
                hint=f"Name a multiple of {self.groups}.",
            )
        for batch in batches:
            with naming(batch.numbers):
                yield Groups(self, engine, batch).run()


class Groups:
    """The search over a batch."""

    def __init__(self, strategy: DiverseBeam, engine: Engine, batch: EncodedBatch) -> None:
        self.options, self.groups, self.each = strategy.options, strategy.groups, strategy.width // strategy.groups
        self.engine, self.batch = engine, batch
        self.cache = engine.new_cache(batch.memory, exits=self.options.decoder_exits, allowed=batch.allowed)
        count, device = len(batch.limits), batch.limits.device
        self.rows = torch.arange(count, device=device)  # (B) unfinished sentences of the batch
        self.tokens = torch.empty(count, 1, 0, dtype=torch.long, device=device)  # (B, J, T)
        self.scores = torch.zeros(count, 1, device=device, dtype=torch.float64)  # (B, J) log-probabilities
        self.ended: list[list[list[Hypothesis]]] = [[[] for _ in range(self.groups)] for _ in range(count)]
        self.unsound: set[int] = set()

    @torch.inference_mode()
    def run(self) -> Results:
        last = self.batch.first_tokens
        while len(self.rows):
            parents = self.step(self.log_probabilities(last))
            going = self.finish()
            base = torch.arange(len(parents), device=parents.device)[:, None] * self.opened
            self.cache.reorder((base + parents)[going].flatten())
            if len(going) < len(self.rows):
                self.cache.keep_sentences(going)
                self.rows, self.tokens, self.scores = self.rows[going], self.tokens[going], self.scores[going]
            last = self.tokens[:, :, -1].reshape(-1, 1)
        return {number: self.best(row) for row, number in enumerate(self.batch.numbers)}

    def log_probabilities(self, last: Tensor) -> Tensor:
        """last (B * J, P) tokens -> (B, J, V), minus infinity at tokens that may not come next."""
        logits = self.engine.project(self.engine.step(last, self.cache)[:, -1]).double()
        self.opened = self.tokens.shape[1]
        if self.batch.allowed is not None:
            allowed = self.batch.allowed[self.rows].repeat_interleave(self.opened, 0)
            logits = logits.masked_fill(~allowed, -math.inf)
        found, tokens = logits.log_softmax(-1), self.tokens.flatten(0, 1)
        required = self.batch.required_at(tokens.shape[1], self.rows.repeat_interleave(self.opened))
        if required is None:
            found = forbid(found, tokens, self.options)
        else:
            found = require(found, required, lambda values: forbid(values, tokens, self.options))
        return found.unflatten(0, (-1, self.opened))

    def step(self, found: Tensor) -> Tensor:
        """Extend the groups in turn; returns (B, G * W) the hypotheses that they continue."""
        taken = torch.zeros_like(found[:, 0])  # (B, V) hypotheses of earlier groups by their new token
        chosen = []
        for group in range(self.groups):
            own = slice(group * self.each, (group + 1) * self.each) if self.opened > 1 else slice(0, 1)
            totals = found[:, own] + self.scores[:, own, None]  # (B, W, V)
            width = min(2 * self.each, totals[0].numel())
            order = (totals - STRENGTH * taken[:, None]).flatten(1).topk(width, -1).indices
            best, parents, tokens = totals.flatten(1).gather(1, order), order // found.shape[2], order % found.shape[2]
            parents = parents + (own.start or 0)
            history = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.shape[2]))
            self.unsound |= set(self.rows[best.isnan().any(1)].tolist())
            going = self.collect(group, best, history, tokens)
            best = best.masked_fill(~going, -math.inf)
            first = best.topk(self.each, -1)  # in order of their probability
            kept = [x.gather(1, first.indices) for x in (parents, tokens)]
            taken = taken.scatter_add(1, kept[1], (first.values > -math.inf).to(taken.dtype))
            chosen.append((first.values, *kept))
        self.scores, parents, tokens = (torch.cat(part, 1) for part in zip(*chosen, strict=True))
        history = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.shape[2]))
        self.tokens = torch.cat([history, tokens[:, :, None]], 2)
        return parents

    def collect(self, group: int, best: Tensor, history: Tensor, tokens: Tensor) -> Tensor:
        """Keep what ends among the W best continuations; returns (B, 2W) bool: those that may continue."""
        ends = ending(tokens.flatten(), history.flatten(0, 1), self.options).view_as(tokens)
        rank = torch.arange(tokens.shape[1], device=tokens.device) < self.each
        for i, j in (ends & rank & (best > -math.inf)).nonzero().tolist():
            done = self.ended[int(self.rows[i])][group]
            if len(done) < self.each:
                done.append(self.hypothesis([*history[i, j].tolist(), int(tokens[i, j])], float(best[i, j])))
        full = [len(self.ended[row][group]) >= self.each for row in self.rows.tolist()]
        return ~ends & ~torch.tensor(full, device=ends.device)[:, None]

    def finish(self) -> Tensor:
        """Find the sentences that go on, as indices; keep the open hypotheses of those at their limits."""
        open_ = self.scores > -math.inf
        limited = self.batch.limits[self.rows] <= self.tokens.shape[2]
        for i in limited.nonzero().squeeze(1).tolist():
            for j in open_[i].nonzero().squeeze(1).tolist():
                done = self.ended[int(self.rows[i])][j // self.each]
                if len(done) < self.each:
                    done.append(self.hypothesis(self.tokens[i, j].tolist(), float(self.scores[i, j])))
        sound = torch.tensor([row not in self.unsound for row in self.rows.tolist()], device=self.rows.device)
        return (open_.any(1) & ~limited & sound).nonzero().squeeze(1)

    def hypothesis(self, tokens: list[int], score: float) -> Hypothesis:
        return hypothesis_of(tokens, score, self.options, self.batch.prefix)

    def best(self, row: int) -> list[Hypothesis]:
        """All hypotheses of a sentence, best first; none if its scores are not finite."""
        found = [] if row in self.unsound else [each for group in self.ended[row] for each in group]
        return sorted(found, key=lambda each: -each.score)
