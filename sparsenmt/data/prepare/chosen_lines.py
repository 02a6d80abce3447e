"""The lines of a corpus that are used: all, the first ones, or a random sample."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from sparsenmt.data.line_parts import LinePart, read_line_parts
from sparsenmt.data.prepare.encoder_pool import NumberedPairs
from sparsenmt.data.prepare.filters import FilterCounts
from sparsenmt.data.prepare.survey import survey_text
from sparsenmt.data.prepare.text_filters import RepeatedPairs
from sparsenmt.data.text import StrPath, read_blocks, read_lines
from sparsenmt.recipe.schema import Corpus


def chosen_lines(corpus: Corpus, total: int) -> Sequence[int]:
    """The numbers of the lines, from 0 and rising, of a corpus of ``total`` lines."""
    count = total if corpus.lines is None else min(corpus.lines, total)
    if corpus.lines_seed is None or count == total:
        return range(count)
    generator = np.random.default_rng([corpus.lines_seed, total])
    found: list[int] = np.sort(generator.choice(total, count, replace=False, shuffle=False)).tolist()
    return found


def read_chosen_lines(corpus: Corpus, path: StrPath) -> Iterator[str]:
    """The chosen lines of a file of a corpus, without the others; UserError as `read_lines`."""
    if corpus.lines is None or corpus.lines_seed is None:
        return islice(read_lines(path), corpus.lines)
    chosen = set(chosen_lines(corpus, survey_text(path).lines))
    return (line for number, line in enumerate(read_lines(path)) if number in chosen)


def read_chosen_parts(path: str, chosen: Sequence[int]) -> Iterator[LinePart]:
    """The chosen lines of a file, long ones in parts."""
    return (part for _, part in read_numbered_parts(path, chosen))


def read_numbered_parts(path: str, chosen: Sequence[int]) -> Iterator[tuple[int, LinePart]]:
    """The chosen lines of a file with their numbers, from 0, long ones in parts."""
    wanted, number = iter(chosen), 0
    line = next(wanted, None)
    for part in read_line_parts(path):
        if line is None:
            return
        if number == line:
            yield number, part
        if part.ends:
            line = next(wanted, None) if number == line else line
            number += 1


def read_chosen_pairs(
    corpus: Corpus, chosen: Sequence[int], counts: FilterCounts, *, duplicates: bool
) -> Iterator[NumberedPairs]:
    """The chosen pairs of a corpus in blocks.

    Args:
        counts: updated with the pairs that are left out here.
        duplicates: leave out pairs that occurred before among those.
    """
    seen = RepeatedPairs() if duplicates else None
    first = done = 0
    for texts in read_blocks([corpus.source, corpus.target]):
        end, begin = first + len(texts[0]), done
        done = bisect_left(chosen, end, begin)
        lines = chosen[begin:done]
        if len(lines) < len(texts[0]):
            texts = tuple([side[line - first] for line in lines] for side in texts)
        if seen is not None:
            lines, texts = _without_repeated(lines, texts, seen, counts)
        if lines:
            yield NumberedPairs(lines, texts)
        first = end
        if done == len(chosen):
            return


def _without_repeated(
    lines: Sequence[int], texts: tuple[list[str], ...], seen: RepeatedPairs, counts: FilterCounts
) -> tuple[Sequence[int], tuple[list[str], ...]]:
    """The lines and texts of pairs that did not occur before; the others are counted."""
    new = [seen.is_new(pair) for pair in zip(*texts, strict=True)]
    for line, is_new, *pair in zip(lines, new, *texts, strict=True):
        if not is_new:
            counts.read += 1
            counts.remove("duplicates", line, pair)
    rows = [row for row, is_new in enumerate(new) if is_new]
    return [lines[row] for row in rows], tuple([side[row] for row in rows] for side in texts)
