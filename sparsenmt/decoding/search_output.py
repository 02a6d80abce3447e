"""The output of a search: logits of the tokens that may come next, of the whole vocabulary or of a shortlist.

With a shortlist, each sentence has its own tokens, so that a translation does not depend on its batch. Where a kernel
covers the step, each state is multiplied with the rows of its own sentence's tokens. Otherwise the rows of all
sentences of the batch are gathered once, and a sentence's mask hides those of the others.
Shapes: B unfinished sentences, J hypotheses each, V vocabulary, U tokens of any sentence (all V without a shortlist).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.model.protocol import DecoderCache, OutputProduct, TranslationModel
from sparsenmt.native.greedy import GreedyOutputs, TokenRules
from sparsenmt.native.token_lists import TokenLists


@dataclass(frozen=True)
class _GatheredRows:
    """The output's rows of all tokens that any sentence may have.

    Args:
        product: from states to the logits of U tokens.
        tokens: (U) the numbers of these tokens, rising, special tokens first.
        mask: (B, U) 0, or minus infinity for a token that is not of the sentence's shortlist.
    """

    product: OutputProduct
    tokens: Tensor
    mask: Tensor

    @staticmethod
    def of(model: TranslationModel, lists: TokenLists, dtype: torch.dtype) -> _GatheredRows:
        """Gather the rows of these lists' tokens."""
        flat = lists.flat()
        tokens, places = flat.unique(return_inverse=True)
        mask = torch.full((len(lists), len(tokens)), -math.inf, dtype=dtype, device=flat.device)
        mask[lists.sentences(), places] = 0.0
        return _GatheredRows(model.output_of(tokens), tokens, mask)


class SearchOutput:
    """The output for the unfinished sentences.

    Args:
        lists: the tokens of each sentence's shortlist; None: all tokens.
        dtype: of logits.
        gathered: the output's rows of at least these tokens; None: they are gathered when they are needed.
    """

    def __init__(
        self,
        model: TranslationModel,
        lists: TokenLists | None,
        dtype: torch.dtype,
        gathered: _GatheredRows | None = None,
    ) -> None:
        self._model, self._lists, self._dtype, self._gathered = model, lists, dtype, gathered

    @staticmethod
    def of(model: TranslationModel, allowed: Tensor | None, dtype: torch.dtype) -> SearchOutput:
        """Make the output of new searches.

        allowed: (B, V) bool; None: there is no shortlist.
        """
        return SearchOutput(model, None if allowed is None else TokenLists.of(allowed), dtype)

    def select(self, sentences: Tensor) -> SearchOutput:
        """Keep only these sentences, in this order."""
        if self._lists is None:
            return self
        rows = self._gathered
        if rows is not None:  # fewer of them would not be worth a new gathering
            rows = _GatheredRows(rows.product, rows.tokens, rows.mask[sentences])
        return SearchOutput(self._model, self._lists.select(sentences), self._dtype, rows)

    def merge(self, others: Sequence[SearchOutput]) -> SearchOutput:
        """Concatenate the sentences of several outputs of one model."""
        if self._lists is None:
            return self
        lists = [other._lists for other in others if other._lists is not None]
        return SearchOutput(self._model, self._lists.merge(lists), self._dtype)

    def __len__(self) -> int:
        """Sentences that have a shortlist."""
        return 0 if self._lists is None else len(self._lists)

    @property
    def _rows(self) -> _GatheredRows | None:
        if self._gathered is None and self._lists is not None:
            self._gathered = _GatheredRows.of(self._model, self._lists, self._dtype)
        return self._gathered

    def project(self, states: Tensor, sentences: slice = slice(None)) -> Tensor:
        """states (B * J, D) of these sentences -> logits (B * J, U), minus infinity outside of a shortlist."""
        rows = self._rows
        logits = (self._model if rows is None else rows.product).project(states)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if rows is not None:
            mask = rows.mask[sentences]
            logits.view(len(mask), -1, logits.shape[1]).add_(mask[:, None])
        return logits

    def continuations(
        self, states: Tensor, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`TranslationModel.continuations`, of each sentence's tokens."""
        if self._lists is None:
            return self._model.continuations(states, scores, never, width)
        found = self._model.listed_continuations(states, self._lists, scores, never, width)
        if found is not None:
            return found
        rows = self._rows
        assert rows is not None
        found = rows.product.continuations(states, scores, never, width, rows.mask)
        return None if found is None else (*found[:2], rows.tokens[found[2]])

    def greedy(
        self, cache: DecoderCache, limits: Tensor, rules: TokenRules, exits: Sequence[int] | None
    ) -> GreedyOutputs | None:
        """`TranslationModel.greedy_outputs`; None also where there is no shortlist."""
        if self._lists is None:
            return None
        return self._model.greedy_outputs(cache, self._lists, limits, rules, exits=exits)

    def token_ids(self, found: Tensor) -> Tensor:
        """Return the tokens of the vocabulary for numbers in 0..U-1 of `project`."""
        rows = self._rows
        return found if rows is None else rows.tokens[found]

    def places(self, tokens: Tensor) -> Tensor:
        """The inverse of `token_ids`; negative numbers stay."""
        rows = self._rows
        if rows is None:
            return tokens
        return torch.where(tokens < 0, tokens, torch.searchsorted(rows.tokens, tokens.contiguous()))
