"""The loop of strategies that extend one hypothesis a sentence, token by token.

Shapes: B sentences that are not finished, V vocabulary, T tokens so far.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.scores import ending, forbid, hypothesis_of, log_normalizer, never
from sparsenmt.decoding.search_output import SearchOutput
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results, Strategy
from sparsenmt.model.protocol import DecoderCache, TranslationModel
from sparsenmt.native.greedy import TokenRules
from sparsenmt.recipe.schema import Decoding

Pick = Callable[[Tensor, Tensor, int], Tensor]
"""(logits (B, V), rows (B) of the sentences in the batch, step) -> tokens (B)."""


class SingleHypothesisSearch(Strategy):
    """One hypothesis a sentence; subclasses pick the next token."""

    greedy: ClassVar[bool] = False
    """True if it is the most probable one."""

    @abstractmethod
    def picker(self, batch: EncodedBatch) -> Pick:
        """Make the function that picks the next tokens of a batch."""

    def search(
        self, model: TranslationModel, batches: Iterable[EncodedBatch], naming: ErrorContext
    ) -> Iterator[Results]:
        for batch in batches:
            with naming(batch.numbers):
                results = extend_hypotheses(model, batch, self.options, self.picker(batch), greedy=self.greedy)
            yield results


def greedy_results(cache: DecoderCache, output: SearchOutput, batch: EncodedBatch, options: Decoding) -> Results | None:
    """Translate a batch greedily in one call; None: the search needs single steps.

    cache: a new one.
    """
    first = batch.first_tokens
    restricted = options.min_length or options.no_repeat_ngram or options.max_lines != 1
    if first.shape[1] > 1 or batch.prompts is not None or restricted:
        return None
    rules = TokenRules(batch.given[-1], EOS, never(options))
    found = output.greedy(cache, batch.limits, rules, options.decoder_exits)
    if found is None:
        return None
    lengths, scores = found.lengths.tolist(), found.scores.tolist()
    tokens = found.tokens[:, : max(lengths)].tolist()
    return {
        number: [hypothesis_of(own[:length], score, options, batch.prefix)] if length else []
        for number, own, length, score in zip(batch.numbers, tokens, lengths, scores, strict=True)
    }


@torch.inference_mode()
def extend_hypotheses(
    model: TranslationModel, batch: EncodedBatch, options: Decoding, pick: Pick, *, greedy: bool = False
) -> Results:
    """Translate a batch. Finished sentences are removed from it.

    greedy: ``pick`` takes the most probable token, so that all steps may be taken in one call.
    """
    memory, limits = batch.memory, batch.limits
    count, device = memory.valid.shape[0], memory.states.device
    cache = model.new_cache(memory, exits=options.decoder_exits)
    rows = torch.arange(count, device=device)
    tokens = torch.empty(count, 0, dtype=torch.long, device=device)
    wide = torch.float64 if memory.states.dtype == torch.float64 else torch.float32
    totals = torch.zeros(count, dtype=wide, device=device)
    last, output = batch.first_tokens, SearchOutput.of(model, batch.allowed, wide)
    if greedy and (whole := greedy_results(cache, output, batch, options)) is not None:
        return whole
    found: Results = {}
    while len(rows):
        (states,) = model.decode(last, cache.memory, cache=cache, exits=options.decoder_exits).values()
        logits = output.project(states[:, -1])
        normalizer = log_normalizer(logits)
        if not bool(normalizer.isfinite().all()):
            return {number: [] for number in batch.numbers}
        logits = forbid(logits, output.places(tokens), options)
        picked = pick(logits, rows, tokens.shape[1])
        totals = totals + (logits.gather(1, picked[:, None]) - normalizer).squeeze(1)
        picked = output.token_ids(picked)
        done = ending(picked, tokens, options)
        tokens = torch.cat([tokens, picked[:, None]], 1)
        done |= limits <= tokens.shape[1]
        last = picked[:, None]
        if bool(done.any()):
            finished = done.nonzero().squeeze(1)
            for row, own, total in zip(
                rows[finished].tolist(), tokens[finished].tolist(), totals[finished].tolist(), strict=True
            ):
                found[batch.numbers[row]] = [hypothesis_of(own, total, options, batch.prefix)]
            going = (~done).nonzero().squeeze(1)
            rows, tokens, totals, last, limits = (x[going] for x in (rows, tokens, totals, last, limits))
            output = output.select(going)
            cache.reorder(going)
            cache.keep_sentences(going)
    return found
