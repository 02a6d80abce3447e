"""Lines translated each at its own depth: in groups of equal depth, and given back in the lines' order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from sparsenmt.data.input_line import InputLine
from sparsenmt.decoding.inputs import ModelBundle, read_sources
from sparsenmt.decoding.translate import WINDOW, Translation, translate_lines
from sparsenmt.depth_selector.selector import Selector
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding


def translate_at_depths(
    bundle: ModelBundle,
    lines: Sequence[InputLine],
    depths: Sequence[Depth],
    options: Decoding,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[Translation]:
    """Translate every line at its depth. The lines of one depth are translated as if there were no others.

    Args:
        depths: of every line.
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
        lines: Iterable[InputLine],
        options: Decoding,
        *,
        advance: Callable[[int], object] | None = None,
        window: int = WINDOW,
    ) -> Iterator[Translation]:
        """Translate lines, in order; arguments and errors are those of `translate_lines`."""
        iterator = iter(lines)
        while block := list(islice(iterator, window)):
            yield from translate_at_depths(bundle, block, self._depths(bundle, block), options, advance=advance)

    def _depths(self, bundle: ModelBundle, lines: Sequence[InputLine]) -> list[Depth]:
        """Of every line; of one without words, which nothing translates, the full depth."""
        sources = read_sources(bundle, lines)
        chosen = self._selector.choose([source.ids for source in sources if not source.empty])
        self.counts.update(chosen)
        rest = iter(chosen)
        return [self._selector.depths[-1] if source.empty else next(rest) for source in sources]
