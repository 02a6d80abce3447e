"""Translation of lines at a depth of their own: in groups of equal depth, returned in the order of the lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from sparsenmt.data.input_line import InputLine
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.translate import WINDOW, Translation, translate_lines
from sparsenmt.depth_selector.selector import Selector
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding
from sparsenmt.store import Bundle


def translate_at_depths(
    bundle: Bundle,
    lines: Sequence[InputLine],
    depths: Sequence[Depth],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[Translation]:
    """Translate every line at its depth. The lines of each depth are translated independently of the others.

    Args:
        depths: one for each line.
        advance: as for `translate_lines`.

    Raises:
        UserError: as `translate_lines`.
    """
    found: dict[int, Translation] = {}
    for depth in sorted(set(depths)):
        members = [i for i, each in enumerate(depths) if each == depth]
        group = translate_lines(
            bundle,
            [lines[i] for i in members],
            options.at(depth),
            advance=advance,
            window=len(members),
        )
        for each in group:
            found[each.source.number] = replace(each, depth=None if each.source.empty else depth)
    return [found[line.number] for line in lines]


class SelectedDepths:
    """Translates lines at the depths that a selector chooses, and counts the depths."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self.counts: Counter[Depth] = Counter()
        """Number of lines at each depth; lines without words are not counted."""

    @property
    def digest(self) -> str:
        """Hash of the selector's weights."""
        return self._selector.digest

    def translate(
        self,
        bundle: Bundle,
        lines: Iterable[InputLine],
        options: Decoding,
        *,
        advance: Callable[[int], object] | None = None,
        window: int = WINDOW,
    ) -> Iterator[Translation]:
        """Translate lines, in order; arguments and errors are those of `translate_lines`."""
        iterator = iter(lines)
        while batch := list(islice(iterator, window)):
            yield from translate_at_depths(bundle, batch, self._depths(bundle, batch), options, advance=advance)

    def _depths(self, bundle: Bundle, lines: Sequence[InputLine]) -> list[Depth]:
        """Return the depth of every line; the full depth for a line without words, which is not translated."""
        sources = read_sources(bundle, lines)
        chosen = self._selector.choose([source.ids for source in sources if not source.empty])
        self.counts.update(chosen)
        rest = iter(chosen)
        return [self._selector.depths[-1] if source.empty else next(rest) for source in sources]
