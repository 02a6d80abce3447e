"""Self-speculative search: the first decoder layers draft tokens, and all layers check them at once.

The output is that of greedy search at full depth: a drafted token stays only if it is the one that all layers take, and
the first that is not is replaced by theirs ("Draft & Verify", Zhang et al. 2023; "LayerSkip", Elhoushi et al. 2024;
after "Fast Inference from Transformers via Speculative Decoding", Leviathan et al. 2023). Any exit may draft, as those
of a tied-multi model are trained to. Both depths read one cache, from which what was drafted, and what is refused, is
removed again: after each round it holds the keys and values of all layers at the tokens of the output, and no others.

Shapes: B sentences that are not finished, K drafted tokens, T tokens so far of the longest sentence, D dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.decoding.scores import hypothesis_of, is_ended, next_rules
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results, Strategy
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.search_cache import SearchCache
from sparsenmt.errors import UserError
from sparsenmt.model.sockets import Recurrence
from sparsenmt.process.progress import notify
from sparsenmt.recipe.schema import Decoding

_NO_TOKEN = -1  # in columns before a sentence begins: equal to no token


@dataclass
class _Output:
    """The output of one sentence so far."""

    number: int
    limit: int
    tokens: list[int]
    score: float = 0.0
    done: bool = False

    def extend(self, drafted: Sequence[int], checked: Sequence[int], scores: Sequence[float], options: Decoding) -> int:
        """Append the tokens that all layers take, up to the first that was not drafted; returns their number.

        Args:
            drafted: K tokens.
            checked: K + 1 tokens that all layers take: after what was there, and after each of those that were drafted.
            scores: their log-probabilities.
        """
        for taken, (token, score) in enumerate(zip(checked, scores, strict=True), start=1):
            self.tokens.append(token)
            self.score += score
            self.done = len(self.tokens) >= self.limit or is_ended(self.tokens, options)
            if self.done or taken > len(drafted) or token != drafted[taken - 1]:
                return taken
        raise AssertionError("the last token is never a drafted one")


class SpeculativeRun:
    """The search over one batch. Finished sentences are removed from it.

    Attributes:
        drafted, accepted: numbers of drafted tokens, and of those that all layers took.
        rounds: passes of all layers after the first tokens.
    """

    @torch.inference_mode()
    def __init__(self, engine: Engine, batch: EncodedBatch, options: Decoding) -> None:
        self._engine, self._batch, self._options = engine, batch, options
        self._cache = engine.new_cache(batch.memory, exits=options.decoder_exits, allowed=batch.allowed)
        self._cache.allow_truncation(options.draft_tokens + 1)
        limits: list[int] = batch.limits.tolist()
        self._open = [_Output(number, limit, []) for number, limit in zip(batch.numbers, limits, strict=True)]
        self._found: Results = {}
        self.drafted = self.accepted = self.rounds = 0

    @torch.inference_mode()
    def run(self) -> Results:
        """Search to the end; empty lists for all sentences if a score is NaN."""
        begun = False
        while self._open:
            room = min(each.limit - len(each.tokens) for each in self._open) - 1
            # Until the minimum length is reached, rules depend on the number of the step, which then is that of all.
            long_enough = len(self._open[0].tokens) >= self._options.min_length
            drafts = min(self._options.draft_tokens, room) if begun and long_enough else 0
            outputs = self._outputs()
            drafted = self._draft(outputs, drafts)
            last = outputs[:, -1:] if begun else self._batch.first_tokens
            found, own_scores = self._check(torch.cat([last, drafted], 1), outputs, drafted)
            tokens, scores = torch.cat([drafted, found], 1).tolist(), own_scores.tolist()
            if any(score != score for row in scores for score in row):
                return {number: [] for number in self._batch.numbers}
            taken = [
                each.extend(row[:drafts], row[drafts:], own, self._options)
                for each, row, own in zip(self._open, tokens, scores, strict=True)
            ]
            self.rounds, self.drafted = self.rounds + begun, self.drafted + drafts * len(taken)
            self.accepted += sum(count - 1 for count in taken)
            self._remove_finished([drafts + 1 - count for count in taken])
            begun = True
        return self._found

    def _outputs(self) -> Tensor:
        """(B, T), padded on the left."""
        longest = max(len(each.tokens) for each in self._open)
        rows = [[_NO_TOKEN] * (longest - len(each.tokens)) + each.tokens for each in self._open]
        return torch.tensor(rows, dtype=torch.long, device=self._batch.limits.device)

    def _draft(self, outputs: Tensor, count: int) -> Tensor:
        """Draft tokens (B, K) after outputs (B, T) by the first layers; the cache is as before."""
        begin, cache = outputs.shape[1], self._cache.at_depth(self._options.draft_layers)
        for _ in range(count):
            states = self._engine.step(outputs[:, -1:], cache)
            _, found = self._best(states, outputs, self._cache)
            outputs = torch.cat([outputs, found], 1)
        if count:
            self._cache.truncate(count)
        return outputs[:, begin:]

    def _check(self, tokens: Tensor, outputs: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the K + 1 tokens that all layers take, and their scores.

        Args:
            tokens: (B, K + 1) what they read: the last token of ``outputs`` (B, T), and those of ``drafted`` (B, K).
        """
        count = drafted.shape[1] + 1
        states = self._engine.step(tokens, self._cache)[:, -count:]
        if count == 1:
            scores, found = self._best(states, outputs, self._cache)
            return found, scores
        whole = torch.cat([outputs, drafted], 1)
        length = whole.shape[1]
        before = torch.full((len(whole), count, length), _NO_TOKEN, device=whole.device)
        for place in range(count):  # what stands before each position, aligned at its end
            before[:, place, count - 1 - place :] = whole[:, : length - (count - 1 - place)]
        scores, found = self._best(states.flatten(0, 1), before.flatten(0, 1), self._cache.repeated(count))
        return found.view(-1, count), scores.view(-1, count)

    def _best(self, states: Tensor, outputs: Tensor, cache: SearchCache) -> tuple[Tensor, Tensor]:
        """states (N, D) or (N, 1, D) after outputs (N, T) -> log-probabilities and tokens (N, 1), the most probable."""
        flat = states.flatten(0, -2)
        wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
        zeros = torch.zeros(len(flat), 1, dtype=wide, device=flat.device)
        scores, _, tokens = self._engine.next_tokens(flat, zeros, cache, next_rules(outputs, self._options), 1)
        return scores, tokens

    def _remove_finished(self, refused: list[int]) -> None:
        """Remove finished sentences, and of the others as many positions as were ``refused``."""
        going = [row for row, each in enumerate(self._open) if not each.done]
        for each in self._open:
            if each.done:
                made = hypothesis_of(each.tokens, each.score, self._options, self._batch.prefix)
                self._found[each.number] = [made]
        if len(going) < len(self._open):
            self._open = [self._open[row] for row in going]
            chosen = torch.tensor(going, dtype=torch.long, device=self._batch.limits.device)
            self._cache.reorder(chosen)
            self._cache.keep_sentences(chosen)
        if going and any(refused):
            self._cache.truncate_rows([refused[row] for row in going])


class SpeculativeSearch(Strategy):
    """Greedy search at full depth, with tokens that a shallow exit drafts."""

    name = "speculative"

    def check(self, bundle: Bundle) -> None:
        model = bundle.model
        own = self.options.decoder_layers or model.plan.decoder_exits[-1]
        layers = min([own, *(each.depth[1] for each in bundle.others)])
        if self.options.draft_layers >= layers:
            raise UserError(
                f"{self.options.draft_layers} decoder layers cannot draft for {layers}: drafts need fewer layers",
                where="--draft-layers",
                hint="Lower it, or take --method greedy.",
            )
        members = (bundle, *bundle.others)
        recurrent = any(isinstance(module, Recurrence) for each in members for module in each.model.modules())
        if recurrent or any(each.recipe.model.segment_memory for each in members):
            what = "recurrent layers" if recurrent else "a segment memory"
            raise UserError(
                f"the model has {what}, from which refused tokens cannot be removed",
                where="--method speculative",
                hint="Take --method greedy.",
            )
        if self.options.draft_layers not in model.plan.decoder_exits:
            notify(
                f"warning: the model was not trained to stop after {self.options.draft_layers} decoder layers: few of "
                "the tokens that they draft will be right"
            )

    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        for batch in batches:
            with naming(batch.numbers):
                results = SpeculativeRun(engine, batch, self.options).run()
            yield results
