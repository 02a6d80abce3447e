"""The output of a search: logits of the tokens that may come next, of the whole vocabulary or of a shortlist.

With a shortlist, each sentence has its own tokens, so that a translation does not depend on its batch. The product
reads the rows of all sentences of the batch, gathered once; a sentence's mask hides those of the others.
Shapes: B unfinished sentences, J hypotheses each, V vocabulary, U tokens of any sentence (all V without a shortlist).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsenmt.model.protocol import OutputProduct, TranslationModel


@dataclass(frozen=True)
class SearchOutput:
    """The output for the unfinished sentences.

    Args:
        product: from states to the logits of U tokens.
        tokens: (U) the numbers of these tokens, rising, special tokens first; None: all.
        mask: (B, U) 0, or minus infinity for a token that is not of the sentence's shortlist.
    """

    model: TranslationModel
    product: OutputProduct
    tokens: Tensor | None = None
    mask: Tensor | None = None

    @staticmethod
    def of(model: TranslationModel, allowed: Tensor | None, dtype: torch.dtype) -> SearchOutput:
        """Make the output of new searches.

        allowed: (B, V) bool; None: there is no shortlist.
        """
        if allowed is None:
            return SearchOutput(model, model)
        tokens = allowed.any(0).nonzero().squeeze(1)
        mask = torch.zeros(allowed.shape[0], len(tokens), dtype=dtype, device=allowed.device)
        return SearchOutput(model, model.output_of(tokens), tokens, mask.masked_fill_(~allowed[:, tokens], -math.inf))

    def select(self, sentences: Tensor) -> SearchOutput:
        """Keep only these sentences, in this order."""
        return self if self.mask is None else replace(self, mask=self.mask[sentences])

    def merge(self, others: Sequence[SearchOutput]) -> SearchOutput:
        """Concatenate the sentences of several outputs of one model; gathers the rows that they still need."""
        if self.mask is None:
            return self
        parts = (self, *others)
        size = self.model.output_table.shape[0]
        allowed = [torch.zeros(len(part), size, dtype=torch.bool, device=self.mask.device) for part in parts]
        for found, part in zip(allowed, parts, strict=True):
            assert part.tokens is not None and part.mask is not None
            found[:, part.tokens] = part.mask == 0
        return SearchOutput.of(self.model, torch.cat(allowed), self.mask.dtype)

    def __len__(self) -> int:
        """Sentences that have a mask."""
        return 0 if self.mask is None else len(self.mask)

    def project(self, states: Tensor, sentences: slice = slice(None)) -> Tensor:
        """states (B * J, D) of these sentences -> logits (B * J, U), minus infinity outside of a shortlist."""
        logits = self.product.project(states)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.mask is not None:
            mask = self.mask[sentences]
            logits.view(len(mask), -1, logits.shape[1]).add_(mask[:, None])
        return logits

    def continuations(
        self, states: Tensor, scores: Tensor, never: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """`TranslationModel.continuations`, with tokens in 0..U-1."""
        return self.product.continuations(states, scores, never, width, self.mask)

    def token_ids(self, found: Tensor) -> Tensor:
        """Return the tokens of the vocabulary for numbers in 0..U-1."""
        return found if self.tokens is None else self.tokens[found]

    def places(self, tokens: Tensor) -> Tensor:
        """The inverse of `token_ids`; negative numbers stay."""
        if self.tokens is None:
            return tokens
        return torch.where(tokens < 0, tokens, torch.searchsorted(self.tokens, tokens.contiguous()))
