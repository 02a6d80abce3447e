"""A model's scores of a suite: every distinct source is encoded once, every distinct target of it scored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.decoding.forced_decoding import TargetScore, score_alternatives
from sparsenmt.decoding.inputs import ModelBundle
from sparsenmt.evaluation.contrast.items import Suite


@dataclass(frozen=True)
class ScoredItem:
    """An item's targets as a model sees them."""

    correct: TargetScore
    contrastive: tuple[TargetScore, ...]
    source_cut: int = 0
    """Pieces of the source that were too many for the model, or for its recipe."""

    @property
    def is_cut(self) -> bool:
        return bool(self.source_cut or any(target.cut for target in (self.correct, *self.contrastive)))


class Questions:
    """What a model is asked for a suite.

    Args:
        tags: of `Suite.sources`, where they are given.
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

    def __len__(self) -> int:
        """Sources to be encoded."""
        return len(self._sources)

    def answer(
        self,
        bundle: ModelBundle,
        *,
        batch_tokens: int,
        advance: Callable[[int], object] | None = None,
        compact: bool = True,
        depth: tuple[int, int] | None = None,
    ) -> list[ScoredItem]:
        """The scores of every item. Arguments and errors are those of `score_alternatives`."""
        found = score_alternatives(
            bundle,
            self._sources,
            [list(own) for own in self._targets],
            batch_tokens=batch_tokens,
            advance=advance,
            compact=compact,
            depth=depth,
        )
        scored = []
        for item, number in zip(self._items, self._number, strict=True):
            choices, place = found[number], self._targets[number]
            wrong = tuple(choices.targets[place[text]] for text in item.contrastive)
            scored.append(ScoredItem(choices.targets[place[item.correct]], wrong, choices.source.cut))
        return scored
