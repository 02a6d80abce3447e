"""The loop of strategies that extend one hypothesis a sentence, token by token.

Shapes: B sentences that are not finished, V vocabulary, T tokens so far.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.scores import ending, hypothesis_of, never, next_rules
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results, Strategy
from sparsenmt.engine.contract import Engine, GreedyRules
from sparsenmt.engine.search_cache import SearchCache
from sparsenmt.model.protocol import ExitRule
from sparsenmt.recipe.schema import Decoding

Pick = Callable[[Tensor, Tensor, int], Tensor]
"""(logits (B, V), rows (B) of the sentences in the batch, step) -> tokens (B)."""


def most_probable(logits: Tensor, rows: Tensor, step: int) -> Tensor:
    """Pick the most probable tokens."""
    return logits.argmax(-1)


class SingleHypothesisSearch(Strategy):
    """One hypothesis a sentence; subclasses pick the next token."""

    greedy: ClassVar[bool] = False
    """True if it is the most probable one."""
    keeps_prefixes = True

    @abstractmethod
    def picker(self, batch: EncodedBatch) -> Pick:
        """Make the function that picks the next tokens of a batch."""

    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        for batch in batches:
            with naming(batch.numbers):
                results = extend_hypotheses(engine, batch, self.options, self.picker(batch), greedy=self.greedy)
            yield results


def greedy_results(engine: Engine, cache: SearchCache, batch: EncodedBatch, options: Decoding) -> Results | None:
    """Translate a batch greedily in one call; None: the engine would take single steps, or rules need them.

    cache: a new one.
    """
    restricted = options.min_length or options.no_repeat_ngram or options.max_lines != 1
    begins = batch.first_tokens.shape[1] > 1 or batch.prompts is not None or batch.required is not None
    if begins or batch.allowed is None or restricted:
        return None
    if not engine.searches.whole:
        return None
    found = engine.search(cache, batch.limits, GreedyRules(batch.given[-1], EOS, never(options)))
    lengths, scores = found.lengths.tolist(), found.scores.tolist()
    tokens = found.tokens[:, : max(lengths)].tolist()
    return {
        number: [hypothesis_of(own[:length], score, options, batch.prefix)] if length else []
        for number, own, length, score in zip(batch.numbers, tokens, lengths, scores, strict=True)
    }


class CountedExits(ExitRule, Protocol):
    """A rule of exits that tells how many layers it let run."""

    layers: Tensor
    """(B) decoder layers of all steps so far, of the sentences of a batch."""

    def begin_step(self, rows: Tensor) -> None:
        """Prepare for a step of these sentences (numbers in the batch), each of which has one row."""


@torch.inference_mode()
def extend_hypotheses(
    engine: Engine,
    batch: EncodedBatch,
    options: Decoding,
    pick: Pick,
    *,
    greedy: bool = False,
    rule: CountedExits | None = None,
) -> Results:
    """Translate a batch. Finished sentences are removed from it.

    Args:
        greedy: ``pick`` takes the most probable token, so that all steps may be taken in one call.
        rule: decides how many layers run for each token; None: all.
    """
    memory, limits = batch.memory, batch.limits
    count, device = memory.valid.shape[0], memory.states.device
    cache = engine.new_cache(memory, exits=options.decoder_exits, allowed=batch.allowed)
    cache.rule = rule
    rows = torch.arange(count, device=device)
    tokens = torch.empty(count, 0, dtype=torch.long, device=device)
    wide = torch.float64 if memory.states.dtype == torch.float64 else torch.float32
    totals, last = torch.zeros(count, dtype=wide, device=device), batch.first_tokens
    if greedy and (whole := greedy_results(engine, cache, batch, options)) is not None:
        return whole
    found: Results = {}
    while len(rows):
        if rule is not None:
            rule.begin_step(rows)
        states = engine.step(last, cache)[:, -1]
        step = tokens.shape[1]
        rules = next_rules(tokens, options, _at_step(pick, rows, step), batch.required_at(step, rows))
        totals, _, last = engine.next_tokens(states, totals[:, None], cache, rules, 1)
        totals, picked = totals.squeeze(1), last.squeeze(1)
        unsound = totals.isnan()
        done = ending(picked, tokens, options) | unsound
        tokens = torch.cat([tokens, last], 1)
        done |= limits <= tokens.shape[1]
        if bool(done.any()):
            if bool(unsound.any()):
                return {number: [] for number in batch.numbers}
            finished = done.nonzero().squeeze(1)
            for row, own, total in zip(
                rows[finished].tolist(), tokens[finished].tolist(), totals[finished].tolist(), strict=True
            ):
                made = hypothesis_of(own, total, options, batch.prefix)
                if rule is not None:
                    made = replace(made, layers=float(rule.layers[row]) / len(own))
                found[batch.numbers[row]] = [made]
            going = (~done).nonzero().squeeze(1)
            rows, tokens, totals, last, limits = (x[going] for x in (rows, tokens, totals, last, limits))
            cache.reorder(going)
            cache.keep_sentences(going)
    return found


def _at_step(pick: Pick, rows: Tensor, step: int) -> Callable[[Tensor], Tensor]:
    return lambda logits: pick(logits, rows, step)
