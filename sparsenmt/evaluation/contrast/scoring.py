"""The scores that a model gives to a suite.

Every distinct source is encoded once, and each of its distinct targets is scored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.decoding.forced_decoding import TargetScore, score_alternatives
from sparsenmt.evaluation.contrast.items import Suite


@dataclass(frozen=True)
class ScoredItem:
    """The scores of an item's targets.

    Args:
        source_cut: source tokens beyond the longest source of the model, or of its recipe.
    """

    correct: TargetScore
    contrastive: tuple[TargetScore, ...]
    source_cut: int = 0

    @property
    def is_cut(self) -> bool:
        """True if the source or a target was too long for the model."""
        return bool(self.source_cut or any(target.cut for target in (self.correct, *self.contrastive)))


class SuiteScorer:
    """The distinct sources and targets of a suite, to be scored by models.

    Args:
        tags: part-of-speech tags of `Suite.sources`, if they are given.
    """

    def __init__(self, suite: Suite, tags: Sequence[TaggedSentence] | None = None) -> None:
        self._items = suite.items
        numbers: dict[tuple[str, TaggedSentence | None], int] = {}
        self._number: list[int] = []
        self._targets: list[dict[str, int]] = []
        for item in suite.items:
            key = (suite.sources[item.sentence], None if tags is None else tags[item.sentence])
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._targets):
                self._targets.append({})
            own = self._targets[number]
            for target in (item.correct, *item.contrastive):
                own.setdefault(target, len(own))
            self._number.append(number)
        self._sources = [InputLine(number, text, own) for (text, own), number in numbers.items()]

    @property
    def sources(self) -> int:
        """Number of distinct sources."""
        return len(self._sources)

    def score(
        self,
        bundle: Bundle,
        *,
        batch_tokens: int,
        advance: Callable[[int], object] | None = None,
        depth: tuple[int, int] | None = None,
    ) -> list[ScoredItem]:
        """Return the scores of every item. Arguments and errors are those of `score_alternatives`."""
        found = score_alternatives(
            bundle,
            self._sources,
            [list(own) for own in self._targets],
            batch_tokens=batch_tokens,
            advance=advance,
            depth=depth,
        )
        scored = []
        for item, number in zip(self._items, self._number, strict=True):
            choices, place = found[number], self._targets[number]
            wrong = tuple(choices.targets[place[text]] for text in item.contrastive)
            scored.append(ScoredItem(choices.targets[place[item.correct]], wrong, choices.source.cut))
        return scored
