"""Random divisions of text into tokens: BPE-dropout (Provilkov et al. 2020) and unigram sampling (Kudo 2018).

The tokens of a sentence, put together, are its normalised text, so that nothing else has to be kept of it. Tokens that
are no text of their own (unknown and special ones, bytes, user symbols) stay as they are. No token of most models
reaches over a space: words are then divided one by one, which is the same distribution, and remembered.

Both distributions are those of SentencePiece, whose own random numbers cannot be repeated for a line: its BPE skips
each merge that it would do with the probability ``dropout``, and does not try it again unless a neighbour changes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

import numpy as np

from sparsenmt.data.tokenizers.piece_tokenizer import PieceTokenizer
from sparsenmt.data.tokenizers.sentencepiece_model import BPE, NORMAL, SentencePieceModel
from sparsenmt.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import SPACE
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import SubwordSampling

Draw = Callable[[], float]
"""The next random number, from 0 to before 1."""
_WORDS = 1 << 17  # that are remembered


def subword_sampler(tokenizer: Tokenizer, options: SubwordSampling, where: str) -> SubwordSampler:
    """Make the sampler of a tokenizer; ``where``: the recipe's key in messages.

    Raises:
        UserError: the tokenizer is no SentencePiece model, or one of the other kind.
    """
    wanted = "BPE" if options.dropout is not None else "unigram"
    found, model = "another kind", None
    if isinstance(tokenizer, SentencePieceTokenizer | PieceTokenizer):
        model = SentencePieceModel.read(tokenizer.model)
        found = "BPE" if model.model_type == BPE else "unigram"
    if model is None or found != wanted:
        raise UserError(
            f"the tokenizer is no SentencePiece model of {wanted}, but of {found}",
            where=where,
            hint="Write `dropout` for BPE, `alpha` for unigram; others cannot be sampled.",
        )
    normal = {
        name: score for name, score, kind in zip(model.names, model.scores, model.kinds, strict=True) if kind == NORMAL
    }
    markers = tokenizer.markers | tokenizer.added.ids if isinstance(tokenizer, PieceTokenizer) else frozenset()
    names = [
        name if name in normal and id_ not in markers else ""
        for id_, name in enumerate(tokenizer.pieces(range(tokenizer.size)))
    ]
    scores = [normal.get(name, 0.0) for name in names]
    if options.dropout is not None:
        return MergeDropout(names, scores, options.dropout)
    assert options.alpha is not None
    if options.nbest is not None:
        return BestDivisions(names, scores, options.alpha, options.nbest)
    return UnigramSampler(names, scores, options.alpha)


class SubwordSampler:
    """Divides the text of tokens anew.

    Args:
        names: (V) the texts of the tokens; "" of those that stay as they are.
        scores: (V) their scores in the model.
    """

    def __init__(self, names: Sequence[str], scores: Sequence[float]) -> None:
        self._names = names
        self._ids = {name: id_ for id_, name in enumerate(names) if name}
        self._scores = {name: score for name, score in zip(names, scores, strict=True) if name}
        self._longest = max(map(len, names), default=0)
        self._by_words = not any(SPACE in name[1:] for name in names)
        self._remembered: Callable[[str], Any] = lru_cache(_WORDS)(self._prepared)

    def sample(self, ids: Sequence[int], draw: Draw) -> list[int]:
        """Draw the tokens of a text that is given as its tokens, without BOS and EOS."""
        found: list[int] = []
        for text, own in self._parts(ids):
            prepared = self._remembered(text) if text else None
            found += own if prepared is None else self._drawn(text, prepared, draw)
        return found

    def _parts(self, ids: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
        """The words with their tokens, and "" with each token that stays; if tokens hold spaces, no words."""
        text, begin = "", 0
        for place, id_ in enumerate(ids):
            name = self._names[id_]
            if text and (not name or (self._by_words and name[0] == SPACE)):
                yield text, ids[begin:place]
                text = ""
            if not text:
                begin = place
            text += name
            if not name:
                yield "", (id_,)
        if text:
            yield text, ids[begin:]

    def _prepared(self, text: str) -> Any:
        """All that does not depend on chance; None: some character is no token, and the text stays."""
        raise NotImplementedError

    def _drawn(self, text: str, prepared: Any, draw: Draw) -> Sequence[int]:
        """Draw the tokens of a text."""
        raise NotImplementedError

    def _lattice(self, text: str) -> list[list[tuple[int, str]]]:
        """The tokens that end after each character, from 0 on, with their beginnings."""
        ends: list[list[tuple[int, str]]] = [[] for _ in range(len(text) + 1)]
        for begin in range(len(text)):
            for end in range(begin + 1, min(begin + self._longest, len(text)) + 1):
                if (name := text[begin:end]) in self._ids:
                    ends[end].append((begin, name))
        return ends


class MergeDropout(SubwordSampler):
    """BPE-dropout: merges are skipped at random.

    Args:
        dropout: the probability that a merge is skipped.
    """

    def __init__(self, names: Sequence[str], scores: Sequence[float], dropout: float) -> None:
        super().__init__(names, scores)
        self._dropout = dropout

    def _prepared(self, text: str) -> list[int] | None:
        """The tokens without dropout."""
        if not all(character in self._ids for character in text):
            return None
        return self._merged(text, lambda: 1.0)

    def _drawn(self, text: str, prepared: list[int], draw: Draw) -> list[int]:
        first = [draw() for _ in range(len(text) - len(prepared))]  # one for each merge
        if min(first, default=1.0) >= self._dropout:
            return prepared
        return self._merged(text, chain(first, iter(draw, None)).__next__)

    def _merged(self, text: str, draw: Draw) -> list[int]:
        """Merge characters, the highest score first and the leftmost of equal ones."""
        symbols = list(text)
        left, right = [*range(-1, len(text) - 1)], [*range(1, len(text)), -1]
        agenda: list[tuple[float, int, int, str]] = []

        def add(a: int, b: int) -> None:
            if a >= 0 and b >= 0 and (score := self._scores.get(name := symbols[a] + symbols[b])) is not None:
                heapq.heappush(agenda, (-score, a, b, name))

        for place in range(1, len(text)):
            add(place - 1, place)
        while agenda:
            _, a, b, name = heapq.heappop(agenda)
            if not symbols[a] or not symbols[b] or len(symbols[a]) + len(symbols[b]) != len(name):
                continue  # one of both was merged meanwhile
            if draw() < self._dropout:
                continue
            symbols[a], symbols[b], right[a] = name, "", right[b]
            if right[b] >= 0:
                left[right[b]] = a
            add(left[a], a)
            add(a, right[a])
        return [self._ids[symbol] for symbol in symbols if symbol]


class UnigramSampler(SubwordSampler):
    """Unigram sampling: a division is drawn with a probability proportional to that of the model to a power.

    Args:
        alpha: the exponent; the smaller, the more alike all divisions are.
    """

    def __init__(self, names: Sequence[str], scores: Sequence[float], alpha: float) -> None:
        super().__init__(names, scores)
        self._alpha = alpha

    def _prepared(self, text: str) -> list[tuple[list[float], list[tuple[int, int]]]] | None:
        """For each end the cumulative probabilities of the tokens there, with their beginnings and ids."""
        ends = self._lattice(text)
        sums: list[float] = [0.0]
        found: list[tuple[list[float], list[tuple[int, int]]]] = []
        for nodes in ends[1:]:
            logs = [sums[begin] + self._alpha * self._scores[name] for begin, name in nodes]
            most = max(logs, default=-math.inf)
            if most == -math.inf:
                sums.append(most)
                found.append(([], []))
                continue
            total = sum(math.exp(each - most) for each in logs)
            sums.append(most + math.log(total))
            shares = accumulate(math.exp(each - sums[-1]) for each in logs)
            found.append((list(shares), [(begin, self._ids[name]) for begin, name in nodes]))
        return None if sums[-1] == -math.inf else found

    def _drawn(self, text: str, prepared: list[tuple[list[float], list[tuple[int, int]]]], draw: Draw) -> list[int]:
        drawn, end = [], len(text)
        while end:
            shares, nodes = prepared[end - 1]
            place = 0 if len(nodes) == 1 else min(bisect(shares, draw() * shares[-1]), len(nodes) - 1)
            end, id_ = nodes[place]
            drawn.append(id_)
        return drawn[::-1]


class BestDivisions(SubwordSampler):
    """Unigram sampling from the best divisions of a sentence.

    Args:
        alpha: see `UnigramSampler`.
        count: of the divisions.
    """

    def __init__(self, names: Sequence[str], scores: Sequence[float], alpha: float, count: int) -> None:
        super().__init__(names, scores)
        self._alpha, self._count = alpha, count

    def sample(self, ids: Sequence[int], draw: Draw) -> list[int]:
        """Implement `SubwordSampler.sample`: the best divisions of the words are combined to those of the sentence."""
        parts = [(self._remembered(text) if text else None) or [(0.0, list(own))] for text, own in self._parts(ids)]
        totals, before = np.zeros(1), []
        for divisions in parts:
            sums = (totals[:, None] + np.array([score for score, _ in divisions])).ravel()
            chosen = np.argsort(-sums, kind="stable")[: self._count]
            before.append(np.divmod(chosen, len(divisions)))
            totals = sums[chosen]
        shares = np.exp(self._alpha * (totals - totals[0])).cumsum()
        place = min(int(np.searchsorted(shares, draw() * shares[-1], side="right")), len(totals) - 1)
        drawn: list[list[int]] = []
        for (rest, own), divisions in zip(reversed(before), reversed(parts), strict=True):
            drawn.append(divisions[own[place]][1])
            place = int(rest[place])
        return [id_ for tokens in reversed(drawn) for id_ in tokens]

    def _prepared(self, text: str) -> list[tuple[float, list[int]]] | None:
        """The best divisions of a text with their scores, best first."""
        best: list[list[tuple[float, list[int]]]] = [[(0.0, [])]]
        for nodes in self._lattice(text)[1:]:
            paths = [
                (score + self._scores[name], [*tokens, self._ids[name]])
                for begin, name in nodes
                for score, tokens in best[begin]
            ]
            best.append(heapq.nlargest(self._count, paths, key=lambda path: path[0]))
        return best[-1] or None
