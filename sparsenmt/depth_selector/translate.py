"""Lines translated each at its own depth: in groups of equal depth, and given back in the lines' order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.decoding.inputs import ModelBundle, read_sources
from sparsenmt.decoding.translate import WINDOW, Translation, translate_lines
from sparsenmt.depth_selector.selector import Selector
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding


def translate_at_depths(
    bundle: ModelBundle,
    lines: Sequence[str],
    depths: Sequence[Depth],
    options: Decoding,
    *,
    numbers: Sequence[int] | None = None,
    tags: Sequence[TaggedSentence] | None = None,
    advance: Callable[[int], object] | None = None,
) -> list[Translation]:
    """Translate every line at its depth. The lines of one depth are translated as if there were no others.

    Args:
        depths: of every line.
        numbers: of every line; no two are the same.
        tags: those given beside the lines.
        advance: as for `translate_lines`.

    Raises:
        UserError: as `translate_lines`.
    """
    own = range(len(lines)) if numbers is None else numbers
    found: dict[int, Translation] = {}
    for depth in sorted(set(depths)):
        members = [i for i, each in enumerate(depths) if each == depth]
        group = translate_lines(
            bundle,
            [lines[i] for i in members],
            options.at(depth),
            advance=advance,
            window=len(members),
            tags=None if tags is None else [tags[i] for i in members],
            numbers=[own[i] for i in members],
        )
        for each in group:
            found[each.source.number] = replace(each, depth=None if each.source.empty else depth)
    return [found[number] for number in own]


class SelectedDepths:
    """Translates lines at the depths that a selector chooses, and counts these."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self.counts: Counter[Depth] = Counter()
        """Of the lines that have words."""

    @property
    def digest(self) -> str:
        """Hash of the selector's weights."""
        return self._selector.digest

    def translate(
        self,
        bundle: ModelBundle,
        lines: Iterable[str],
        options: Decoding,
        *,
        advance: Callable[[int], object] | None = None,
        window: int = WINDOW,
        first: int = 0,
        tags: Iterable[TaggedSentence] | None = None,
        numbers: Iterable[int] | None = None,
    ) -> Iterator[Translation]:
        """Translate lines, in order; arguments and errors are those of `translate_lines`."""
        iterator = iter(lines)
        beside = iter(tags) if tags is not None else None
        numbered = iter(numbers) if numbers is not None else count(first)
        while block := list(islice(iterator, window)):
            given = list(islice(beside, len(block))) if beside is not None else None
            own = list(islice(numbered, len(block)))
            depths = self._depths(bundle, block)
            yield from translate_at_depths(bundle, block, depths, options, numbers=own, tags=given, advance=advance)
        if beside is not None:
            next(beside, None)  # whoever checks them against the lines hears that those are at their end

    def _depths(self, bundle: ModelBundle, lines: Sequence[str]) -> list[Depth]:
        """Of every line; of one without words, which nothing translates, the full depth."""
        sources = read_sources(bundle, lines)
        chosen = self._selector.choose([source.ids for source in sources if not source.empty])
        self.counts.update(chosen)
        rest = iter(chosen)
        return [self._selector.depths[-1] if source.empty else next(rest) for source in sources]
