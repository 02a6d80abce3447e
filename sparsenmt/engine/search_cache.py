"""The cache of a search: keys and values, the memory, and the tokens that may come out of each.

With a shortlist, each sentence has its own tokens, so that a translation does not depend on its batch. Where no kernel
reads the rows of a sentence's own tokens, those of all sentences of the batch are gathered once, and a sentence's mask
hides those of the others.
Shapes: B unfinished sentences, J hypotheses each, V vocabulary, U tokens of any shortlist, D dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import ExitRule
from sparsenmt.native.token_lists import TokenLists

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GatheredRows:
    """The output's rows of all tokens that any sentence may have.

    Args:
        product: from states (..., D) to logits (..., U).
        tokens: (U) the numbers of these tokens, rising, special tokens first.
        mask: (B, U) 0, or minus infinity for a token that is not of the sentence's shortlist.
    """

    product: Product
    tokens: Tensor
    mask: Tensor

    @staticmethod
    def of(product_of: Callable[[Tensor], Product], lists: TokenLists, dtype: torch.dtype) -> GatheredRows:
        """Gather the rows of all tokens in lists. ``product_of``: tokens (U) -> the product with their rows."""
        flat = lists.flat()
        tokens, places = flat.unique(return_inverse=True)
        mask = torch.full((len(lists), len(tokens)), -math.inf, dtype=dtype, device=flat.device)
        mask[lists.sentences(), places] = 0.0
        return GatheredRows(product_of(tokens), tokens, mask)

    def places(self, tokens: Tensor) -> Tensor:
        """Tokens of shortlists (...) -> their places in 0..U-1, (...); negative numbers stay."""
        return torch.where(tokens < 0, tokens, torch.searchsorted(self.tokens, tokens.contiguous()))


class SearchCache:
    """The cache of a search.

    Args:
        kept: keys and values, and the memory.
        exits: the decoder depth that runs.
        lists: the tokens of each sentence's shortlist; None: all tokens.
        at_once: outputs are read at once, so that nothing is kept of them.

    Attributes:
        gathered: the output's rows of the tokens of all shortlists, and maybe of others; None until they are needed.
        rule: decides how many layers run for a new position of each row; None: all.
    """

    def __init__(
        self, kept: KVCache, exits: Sequence[int], lists: TokenLists | None = None, *, at_once: bool = False
    ) -> None:
        self.kept, self.exits, self.lists, self.at_once = kept, tuple(exits), lists, at_once
        self.gathered: GatheredRows | None = None
        self.rule: ExitRule | None = None

    @property
    def memory(self) -> Memory:
        """The memory of the sentences that are still searched."""
        return self.kept.memory

    def reorder(self, hypotheses: Tensor) -> None:
        """Keep these rows (of B * J), in this order, for the next step. hypotheses: (B' * J') their numbers."""
        self.kept.reorder(hypotheses)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Keep these sentences (of B), in this order. sentences: (B') their numbers."""
        self.kept.keep_sentences(sentences)
        if self.lists is not None:
            self.lists, rows = self.lists.select(sentences), self.gathered
            if rows is not None:  # fewer of them would not be worth a new gathering
                self.gathered = replace(rows, mask=rows.mask[sentences])

    def at_depth(self, depth: int) -> SearchCache:
        """The same keys and values, for steps that end after ``depth`` decoder layers."""
        return SearchCache(self.kept, (depth,))

    def repeated(self, count: int) -> SearchCache:
        """The same with every sentence ``count`` times, for `Engine.next_tokens` after as many positions at once."""
        found = SearchCache(self.kept, self.exits)
        if self.lists is not None:
            sentences = torch.arange(len(self.lists), device=self.lists.count.device).repeat_interleave(count)
            found.lists, rows = self.lists.select(sentences), self.gathered
            found.gathered = None if rows is None else replace(rows, mask=rows.mask[sentences])
        return found

    def allow_truncation(self, count: int) -> None:
        """Keep ``count`` positions more, as `KVCache.allow_truncation` does."""
        self.kept.allow_truncation(count)

    def truncate(self, count: int) -> None:
        """Remove the last ``count`` positions, as `KVCache.truncate` does."""
        self.kept.truncate(count)

    def truncate_rows(self, counts: Sequence[int]) -> None:
        """Remove the last positions of each sentence, as `KVCache.truncate_rows` does."""
        self.kept.truncate_rows(counts)

    @property
    def can_merge(self) -> bool:
        """True if a merged cache is decoded in one batch without loss of speed; decided when the cache is made."""
        return self.kept.can_merge

    def merge(self, others: Sequence[SearchCache]) -> SearchCache:
        """Merge as `KVCache.merge` does; the others are searches of the same engine, all with shortlists or none."""
        kept = self.kept.merge([other.kept for other in others])
        return SearchCache(kept, self.exits, self.merged_lists(others))

    def merged_lists(self, others: Sequence[SearchCache]) -> TokenLists | None:
        """The lists of all sentences; None: all tokens."""
        more = [other.lists for other in others if other.lists is not None]
        return None if self.lists is None else self.lists.merge(more)
