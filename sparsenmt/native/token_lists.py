"""Lists of tokens, one for each sentence of a search.

Shapes: B sentences, V vocabulary, N tokens of all lists, M tokens of the lists of these sentences.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsenmt.native.address import address
from sparsenmt.native.packing import fields

MOST_FORBIDDEN = 8
"""The most tokens that may be forbidden; kForbidden in vocabulary.h."""


class TokenListsStruct(ctypes.Structure):
    """The C struct of `TokenLists`: the addresses of its tensors."""

    _fields_ = fields(ctypes.c_void_p, "tokens", "first", "count")


@dataclass(frozen=True)
class TokenLists:
    """The tokens that may come out of each sentence, rising, so that the special tokens come first.

    Args:
        tokens: (N) int32, list after list; lists of sentences that were removed may remain in it.
        first: (B) int64, where the list of a sentence begins.
        count: (B) int64, its length.
        size: V; all tokens are below it.
    """

    tokens: Tensor
    first: Tensor
    count: Tensor
    size: int

    @staticmethod
    def of(allowed: Tensor) -> TokenLists:
        """Make the lists of a mask (B, V) bool."""
        sentences, tokens = allowed.nonzero(as_tuple=True)
        count = sentences.bincount(minlength=len(allowed))
        return TokenLists(tokens.int(), count.cumsum(0) - count, count, allowed.shape[1])

    def __len__(self) -> int:
        """B."""
        return len(self.count)

    def structure(self) -> TokenListsStruct:
        """The C struct; valid as long as this object."""
        return TokenListsStruct(
            address(self.tokens, torch.int32, len(self.tokens)),
            address(self.first, torch.int64, len(self)),
            address(self.count, torch.int64, len(self)),
        )

    def select(self, sentences: Tensor) -> TokenLists:
        """Keep only these sentences (B' numbers), in this order; the tokens of the others remain in memory."""
        return replace(self, first=self.first[sentences], count=self.count[sentences])

    def merge(self, others: Sequence[TokenLists]) -> TokenLists:
        """Concatenate the sentences of several lists, without the tokens of sentences that were removed."""
        parts = [part._own() for part in (self, *others)]
        count = torch.cat([part.count for part in parts])
        return TokenLists(torch.cat([part.tokens for part in parts]), count.cumsum(0) - count, count, self.size)

    def _own(self) -> TokenLists:
        """The same lists, copied one after the other: N = M."""
        first = self.count.cumsum(0) - self.count
        places = torch.arange(int(self.count.sum()), device=self.tokens.device)
        own = self.tokens[places + (self.first - first).repeat_interleave(self.count)]
        return replace(self, tokens=own, first=first)

    def sentences(self) -> Tensor:
        """(M) int64: the sentence of each token of `flat`."""
        return torch.arange(len(self), device=self.count.device).repeat_interleave(self.count)

    def flat(self) -> Tensor:
        """(M) int64: the tokens, sentence by sentence."""
        return self._own().tokens.long()
