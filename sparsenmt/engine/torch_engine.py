"""The engine of PyTorch's operators: every method, on every device.

Shapes: B sentences, J hypotheses a sentence that are still open, N rows, T tokens, U tokens that may come out, V
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.engine.contract import Continuations, GreedyOutputs, GreedyRules, NextRules, Searches, require
from sparsenmt.engine.entmax_kernel import use_kernel
from sparsenmt.engine.search_cache import GatheredRows, Product, SearchCache
from sparsenmt.model.first_batch import check_first_batch
from sparsenmt.model.kv_cache import BufferPool, KVCache
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Encoded, Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.native.kernels import MOST_IN_ORDER, Kernels
from sparsenmt.native.token_lists import TokenLists

_BLOCK = 2**19  # logits whose exponentials a CPU computes at a time: they fit the cache of a core
_ROWS = 384  # whose logits are computed at a time: those of 8,000 tokens fit the last-level cache


class TorchEngine:
    """An engine of PyTorch's operators; implements `contract.Engine`.

    Args:
        model: as it was trained, or with packed blocks; it is used, not copied.
        output: from states (..., D) to logits (..., V), with the output table packed; None: `Transformer.project`.
    """

    kernels: Kernels | None = None  # that find the next tokens; None: PyTorch's operators do

    def __init__(self, model: Transformer, output: Product | None = None) -> None:
        self.model = model
        self._output: Product = model.project if output is None else output
        self._buffers = BufferPool()
        use_kernel(model)
        check_first_batch(model)

    @property
    def searches(self) -> Searches:
        return Searches()

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        return self.model.encode(source, exits=exits, compact=compact)

    def new_cache(
        self,
        memory: Memory,
        *,
        exits: Sequence[int] | None = None,
        allowed: Tensor | None = None,
        segment_memory: int | None = None,
        at_once: bool = False,
    ) -> SearchCache:
        depth = tuple(exits) if exits is not None else self.model.plan.decoder_exits[-1:]
        if at_once:
            return SearchCache(KVCache(memory, stepwise=False), depth, at_once=True)
        kept = self.model.new_cache(memory, exits=depth, segment_memory=segment_memory, buffers=self._buffers)
        return SearchCache(self._searched(kept), depth, None if allowed is None else TokenLists.of(allowed))

    def _searched(self, kept: KVCache) -> KVCache:
        """Return the cache that a search uses, of a new one."""
        return kept

    def step(self, tokens: Tensor, cache: SearchCache) -> Tensor:
        kept = None if cache.at_once else cache.kept
        found = self.model.decode(tokens, cache.memory, cache=kept, exits=cache.exits, rule=cache.rule)
        return found[cache.exits[0]]

    def next_tokens(
        self, states: Tensor, scores: Tensor, cache: SearchCache, rules: NextRules, width: int
    ) -> Continuations:
        gathered = self._gathered(cache, states)
        if gathered is not None:  # tokens by their places among the logits
            required = None if rules.required is None else gathered.places(rules.required)
            rules = replace(rules, tokens=gathered.places(rules.tokens), required=required)
        if rules.pick is not None:
            found = self._picked(self._logits(states, gathered), scores, rules, rules.pick)
        else:
            found = self._best(states, scores, gathered, rules, width)
        return found if gathered is None else (*found[:2], gathered.tokens[found[2]])

    def search(self, cache: SearchCache, limits: Tensor, rules: GreedyRules) -> GreedyOutputs:
        count, longest = len(limits), int(limits.max())
        never = torch.tensor(rules.never, dtype=torch.long, device=limits.device)
        rows, last = torch.arange(count, device=limits.device), limits.new_full((count, 1), rules.begin)
        tokens, lengths = limits.new_zeros(count, longest), torch.zeros_like(limits)
        scores = torch.zeros(count, 1, device=limits.device, dtype=_wide(cache.memory.states))
        found = scores.new_zeros(count)
        for t in range(longest):
            states = self.step(last, cache)[:, -1]
            next_rules = NextRules(last[:, :0], lambda logits, _: logits.index_fill_(1, never, -torch.inf), rules.never)
            scores, _, last = self.next_tokens(states, scores, cache, next_rules, 1)
            tokens[rows, t], found[rows] = last[:, 0], scores[:, 0]
            sound = scores[:, 0].isfinite()
            lengths[rows] = torch.where(sound, t + 1, 0)
            going = (sound & (last[:, 0] != rules.end) & (t + 1 < limits[rows])).nonzero().squeeze(1)
            if len(going) < len(rows):
                if not len(going):
                    break
                rows, last, scores = rows[going], last[going], scores[going]
                cache.reorder(going)
                cache.keep_sentences(going)
        return GreedyOutputs(tokens, lengths, found)

    def project(self, hidden: Tensor) -> Tensor:
        return self._output(hidden)

    def release(self) -> None:
        self._buffers = BufferPool()  # a cache that still exists returns its buffers to the old one

    def _product_of(self, tokens: Tensor) -> Product:
        """Make the product with rows ``tokens`` (U) of the output table; packing them would cost more than it gains."""
        return partial(F.linear, weight=self._table_rows(tokens), bias=self._bias_of(tokens))

    def _table_rows(self, tokens: Tensor) -> Tensor:
        """tokens (U) -> (U, D): rows of the output table."""
        return self.model.embeddings.rows(self.model.table_keys[2], tokens).detach()

    def _bias_of(self, tokens: Tensor) -> Tensor | None:
        """tokens (U) -> (U): their biases; None: the model has none."""
        bias = self.model.output_bias
        return None if bias is None else bias.detach()[tokens]

    def _gathered(self, cache: SearchCache, states: Tensor) -> GatheredRows | None:
        """The output's rows of the tokens in shortlists, which the cache keeps; None: there are no shortlists."""
        if cache.gathered is None and cache.lists is not None:
            cache.gathered = GatheredRows.of(self._product_of, cache.lists, _wide(states))
        return cache.gathered

    def _logits(self, states: Tensor, gathered: GatheredRows | None, sentences: slice = slice(None)) -> Tensor:
        """states (B * J, D) of these sentences -> logits (B * J, U or V), minus infinity outside of a shortlist."""
        logits = (self._output if gathered is None else gathered.product)(states)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if gathered is not None:
            mask = gathered.mask[sentences]
            logits.view(len(mask), -1, logits.shape[1]).add_(mask[:, None])
        return logits

    def _picked(
        self, logits: Tensor, scores: Tensor, rules: NextRules, pick: Callable[[Tensor], Tensor]
    ) -> Continuations:
        """`next_tokens` with ``pick``: scores (B, 1); NaN for all sentences if any normalizer is not finite."""
        normalizer = log_normalizer(logits, self.kernels)
        sound = normalizer.isfinite().all()
        if logits.device.type != "cpu":  # reading would wait for the device: some token is picked
            logits = logits.masked_fill(~sound, 0.0)
        elif not bool(sound):
            none = scores.new_zeros(scores.shape, dtype=torch.long)
            return torch.full_like(scores, torch.nan), none, none
        picked = pick(_forbid(rules, rules.tokens, rules.required, logits))[:, None]
        totals = (scores + (logits.gather(1, picked) - normalizer)).masked_fill(~sound, torch.nan)
        return totals, torch.zeros_like(picked), picked

    def _best(
        self, states: Tensor, scores: Tensor, gathered: GatheredRows | None, rules: NextRules, width: int
    ) -> Continuations:
        """`next_tokens` without ``pick``, a few sentences at a time; tokens of ``rules`` are numbered as the logits."""
        sentences, opened = scores.shape
        parts = -(-states.shape[0] // _ROWS) if states.device.type == "cpu" else 1
        each, found = -(-sentences // parts), []
        for first in range(0, sentences, each):
            rows, chosen = slice(first * opened, (first + each) * opened), slice(first, first + each)
            required = None if rules.required is None else rules.required[chosen]
            forbid = partial(_forbid, rules, rules.tokens[rows], required)
            logits = self._logits(states[rows], gathered, chosen)
            found.append(candidates(logits, scores[chosen], forbid, rules.never, width, self.kernels))
        best, parents, continuations = (torch.cat(part) for part in zip(*found, strict=True))
        return best, parents, continuations


def _forbid(rules: NextRules, tokens: Tensor, required: Tensor | None, logits: Tensor) -> Tensor:
    """Forbid tokens, in place, as `NextRules` says of some rows: tokens (N, T), required (B), logits (N, U)."""
    if required is None:
        return rules.forbid(logits, tokens)
    wanted = required.repeat_interleave(len(logits) // len(required))
    return require(logits, wanted, lambda values: rules.forbid(values, tokens))


def _wide(states: Tensor) -> torch.dtype:
    """The dtype of logits and scores, at least fp32, for states of this dtype."""
    return torch.float64 if states.dtype == torch.float64 else torch.float32


# From logits to the best continuations, by a compiled kernel where it is faster


def log_normalizer(logits: Tensor, kernels: Kernels | None = None) -> Tensor:
    """(N, V) -> (N, 1): log of the sum of exponentials, without materialising a softmax."""
    if (found := _suited(kernels, logits, "log sums")) is not None:
        return found.log_sums(logits)
    if logits.device.type != "cpu":
        return logits.logsumexp(-1, keepdim=True)
    rows = max(_BLOCK // logits.shape[1], 1)
    return torch.cat([block.logsumexp(-1, keepdim=True) for block in logits.split(rows)])


def best_tokens(logits: Tensor, width: int, kernels: Kernels | None = None) -> tuple[Tensor, Tensor]:
    """(N, V) -> logits and tokens (N, width), best first."""
    found = _suited(kernels, logits, "best tokens") if width <= MOST_IN_ORDER else None
    if found is not None:
        return found.best(logits, width)
    values, tokens = logits.topk(width, -1)
    return values, tokens


def candidates(
    logits: Tensor,
    scores: Tensor,
    forbid: Callable[[Tensor], Tensor],
    never: Sequence[int] | None,
    width: int,
    kernels: Kernels | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of every sentence, as `contract.Continuations` says.

    Args:
        logits: (B * J, V); they are overwritten.
        scores: (B, J) log-probabilities so far.
        forbid: logits -> the logits, minus infinity at forbidden tokens, in place; called when the normalizer is
            known, so that log-probabilities are the model's.
        never: all that it forbids, where that is the same for all hypotheses; None: it is not.
        width: continuations of each sentence.
    """
    (sentences, opened), vocabulary = scores.shape, logits.shape[1]
    if never is not None and scores.dtype == logits.dtype:
        fits = max(width, len(never) + 1) <= min(vocabulary, MOST_IN_ORDER)
        if fits and (found := _suited(kernels, logits, "candidates")) is not None:
            return found.candidates(logits, scores.contiguous(), never, width)
    normalizer = log_normalizer(logits, kernels)
    each = min(width, vocabulary)
    values, best_of_rows = best_tokens(forbid(logits), each, kernels)
    totals = (values - normalizer).view(sentences, opened, each) + scores[:, :, None]
    closed = scores == -math.inf
    unsound = (normalizer.view_as(scores).isnan() & ~closed).any(1)
    totals = totals.masked_fill(closed[:, :, None], -math.inf).masked_fill(unsound[:, None, None], math.nan)
    best, where = totals.view(sentences, -1).topk(min(width, opened * each), -1)
    parents, continuations = where // each, best_of_rows.view(sentences, -1).gather(1, where)
    missing = width - best.shape[1]  # if the vocabulary is smaller than the width
    if missing > 0:
        best = F.pad(best, (0, missing), value=-math.inf)
        parents, continuations = F.pad(parents, (0, missing)), F.pad(continuations, (0, missing))
    return best, parents, continuations


def _suited(kernels: Kernels | None, logits: Tensor, kind: str) -> Kernels | None:
    """The kernels, if there are any, they read such logits, and their ``kind`` is faster; otherwise None."""
    suits = kernels is not None and logits.dtype == torch.float32 and logits.stride(-1) == 1
    return kernels if suits and kernels is not None and kernels.faster(kind, logits.shape[-1]) else None
