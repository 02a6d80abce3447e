"""Several engines as one: an ensemble, whose next-token probabilities are the average of its members'.

``log``: the weighted mean of log-probabilities, normalised again (a geometric mean, as Marian's and Sockeye's without a
shortlist of their own); ``linear``: the log of the weighted mean of probabilities, as fairseq's. With a shortlist the
average is taken over the whole vocabulary, and then restricted. Members share the target vocabulary; each reads its own
source tokens, has its own memory and cache, and its own compaction.

The states of an ensemble are those of its members side by side, so that every search takes it for one engine.
Shapes: B sentences, N rows, T tokens, D the sum of the members' dimensions, V vocabulary, U tokens of shortlists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from sparsenmt.engine.contract import Engine, Searches
from sparsenmt.engine.search_cache import Product, SearchCache
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Encoded, Source
from sparsenmt.native.token_lists import TokenLists

Average = Literal["log", "linear"]


@dataclass(frozen=True)
class EnsembleSource(Source):
    """The source of the first member, with those of the others: the same sentences in their tokens."""

    others: tuple[Source, ...] = ()


@dataclass(frozen=True)
class EnsembleMemory(Memory):
    """The memory of the first member, with those of the others."""

    others: tuple[Memory, ...] = ()

    @staticmethod
    def of(memories: Sequence[Memory]) -> EnsembleMemory:
        """Make it of the members' memories, in order."""
        own = {each.name: getattr(memories[0], each.name) for each in fields(Memory)}
        return EnsembleMemory(**own, others=tuple(memories[1:]))

    def select(self, sentences: Tensor) -> EnsembleMemory:
        """Keep only these sentences, in this order. sentences: (B',)."""
        return EnsembleMemory.of([each.select(sentences) for each in self.parts])

    @property
    def parts(self) -> list[Memory]:
        """The members' memories, in order."""
        own = {each.name: getattr(self, each.name) for each in fields(Memory)}
        return [Memory(**own), *self.others]


class EnsembleCache(SearchCache):
    """The caches of all members; the first one's memory counts as that of the search."""

    def __init__(self, parts: Sequence[SearchCache], lists: TokenLists | None) -> None:
        super().__init__(parts[0].kept, parts[0].exits, lists, at_once=parts[0].at_once)
        self.parts = list(parts)

    def reorder(self, hypotheses: Tensor) -> None:
        for part in self.parts:
            part.reorder(hypotheses)

    def keep_sentences(self, sentences: Tensor) -> None:
        super().keep_sentences(sentences)
        for part in self.parts[1:]:
            part.keep_sentences(sentences)

    def at_depth(self, depth: int) -> SearchCache:
        return EnsembleCache([part.at_depth(depth) for part in self.parts], None)

    def allow_truncation(self, count: int) -> None:
        for part in self.parts:
            part.allow_truncation(count)

    def truncate(self, count: int) -> None:
        for part in self.parts:
            part.truncate(count)

    def truncate_rows(self, counts: Sequence[int]) -> None:
        for part in self.parts:
            part.truncate_rows(counts)

    @property
    def can_merge(self) -> bool:
        return all(part.can_merge for part in self.parts)

    def merge(self, others: Sequence[SearchCache]) -> SearchCache:
        theirs = [other.parts for other in others if isinstance(other, EnsembleCache)]
        parts = [part.merge([each[i] for each in theirs]) for i, part in enumerate(self.parts)]
        return EnsembleCache(parts, self.merged_lists(others))


@dataclass(frozen=True)
class Member:
    """A member of an ensemble.

    Args:
        weight: its share of the average; those of all members sum to 1.
        dimension: D of its states.
        encoder_exits, decoder_exits: the one depth of each side that runs; None: the deepest trained one.
    """

    engine: Engine
    weight: float
    dimension: int
    encoder_exits: Sequence[int] | None = None
    decoder_exits: Sequence[int] | None = None


class EnsembleEngine(TorchEngine):
    """The engine of an ensemble; implements `contract.Engine`. Exits that it is given are those of the first member."""

    def __init__(self, members: Sequence[Member], average: Average) -> None:  # no model of its own
        self.members, self.average = tuple(members), average
        self._output: Product = self._combined

    @property
    def searches(self) -> Searches:
        return Searches()

    def encode(self, source: Source, *, exits: Sequence[int] | None = None, compact: bool = False) -> Encoded:
        """Encode with all members, each compacted: batches of an ensemble are not grouped anew by kept length."""
        others = source.others if isinstance(source, EnsembleSource) else (source,) * (len(self.members) - 1)
        found = [
            each.engine.encode(own, exits=self._exits(i, exits, each.encoder_exits), compact=True)
            for i, (each, own) in enumerate(zip(self.members, (source, *others), strict=True))
        ]
        (depth,) = found[0].memories
        return Encoded({depth: EnsembleMemory.of([each.memory for each in found])}, found[0].decided)

    def new_cache(
        self,
        memory: Memory,
        *,
        exits: Sequence[int] | None = None,
        allowed: Tensor | None = None,
        segment_memory: int | None = None,
        at_once: bool = False,
    ) -> SearchCache:
        assert isinstance(memory, EnsembleMemory)
        given: dict[str, Any] = {"segment_memory": segment_memory, "at_once": at_once}
        parts = [
            each.engine.new_cache(own, exits=self._exits(i, exits, each.decoder_exits), **given)
            for i, (each, own) in enumerate(zip(self.members, memory.parts, strict=True))
        ]
        return EnsembleCache(parts, None if allowed is None else TokenLists.of(allowed))

    def step(self, tokens: Tensor, cache: SearchCache) -> Tensor:
        assert isinstance(cache, EnsembleCache)
        return torch.cat([m.engine.step(tokens, part) for m, part in zip(self.members, cache.parts, strict=True)], -1)

    def release(self) -> None:
        for each in self.members:
            each.engine.release()

    @staticmethod
    def _exits(number: int, given: Sequence[int] | None, own: Sequence[int] | None) -> Sequence[int] | None:
        return given if number == 0 and given is not None else own

    def _combined(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> (..., V): the average of log-probabilities, or the log of that of probabilities."""
        terms, sizes = [], [each.dimension for each in self.members]
        for each, states in zip(self.members, hidden.split(sizes, -1), strict=True):
            logits = each.engine.project(states)
            values = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
            terms.append(values * each.weight if self.average == "log" else values + math.log(each.weight))
        return torch.stack(terms).sum(0) if self.average == "log" else torch.stack(terms).logsumexp(0)

    def _product_of(self, tokens: Tensor) -> Product:
        return lambda states: self._combined(states)[..., tokens]
