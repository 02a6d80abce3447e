"""Text with inline tags of XML or HTML, and parts that a translation keeps as they are; both are moved by alignment.

A line is divided into its text, which is translated, and elements: parts of the text, nested in one another. In the
translation every element covers one part, again nested, and comes exactly once, whatever the alignment says; without
the tags, the line is the translation, kept parts aside. Places are chosen by the links between units, which are words
and single other signs, or characters where text has no spaces:

- A unit of the translation speaks for an element if more of its links lead into the element than out of it, and against
  it if fewer do. An element covers the run of units with the largest sum of these votes (the shortest, then the first),
  within its parent and apart from its siblings; short elements choose first.
- At the first or last unit of its parent, it also covers what stands unlinked before or after.
- Without a vote for it, it stands empty, after the unit that is linked to what comes before it.
- A kept part is first looked for in the translation as it is, and then linked to it. If it is missing, it replaces the
  run that speaks for it, with what is attached to it, or is inserted.

Placement by alignment follows Hanneman and Dinu (2020, "How Should Markup Tags Be Translated?"); there an element may
be split, here the better supported part has the tags.
Units of a text are numbered from 0; places in a text are those of characters.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.word_links import Link
from sparsenmt.data.word_spaces import is_letter, is_unspaced, is_word_part
from sparsenmt.errors import UserError, printable

_TAG = re.compile(
    r"""<!--|<(?P<close>/?)(?P<name>[A-Za-z_][\w.:-]*)"""
    r"""(?P<rest>(?:\s(?:[^<>"'/]|/(?!>)|"[^"]*"|'[^']*')*)?)(?P<empty>/?)>"""
)
_COMMENT_END = "-->"
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});", re.ASCII)
_VOID = frozenset(
    {
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track"),
        "wbr",
    }
)
_HINT = "Close every tag in its line, in order; write &lt; for a < that begins no tag."
_DEEPEST = 100  # open tags: elements are placed by recursion


@dataclass(frozen=True)
class Element:
    """A part of a text.

    Args:
        begin, end: its place.
        opening, closing: the tags as they were written; an empty element has the first alone.
        kept: True: the part is kept as it is.
        children: the elements inside.
    """

    begin: int
    end: int
    opening: str = ""
    closing: str = ""
    kept: bool = False
    children: tuple[Element, ...] = ()


@dataclass(frozen=True)
class MarkedText:
    """A text without its tags.

    Args:
        line: as it was read.
        escaped: True: ``&``, ``<`` and ``>`` of the text are written as entities.
    """

    line: str
    text: str
    elements: tuple[Element, ...] = ()
    escaped: bool = False

    def without_start(self, length: int) -> MarkedText:
        """Return the same without the first characters of the text, which are no part of what is translated."""

        def moved(elements: Iterable[Element]) -> tuple[Element, ...]:
            places = ((each, max(each.begin - length, 0), max(each.end - length, 0)) for each in elements)
            return tuple(
                replace(each, begin=begin, end=end, children=moved(each.children))
                for each, begin, end in places
                if end or not each.kept  # otherwise nothing is left of the part
            )

        return replace(self, text=self.text[length:], elements=moved(self.elements))


@dataclass
class _OpenTag:
    """An element whose end has not come."""

    name: str
    opening: str
    begin: int
    children: list[Element] = field(default_factory=list)


def read_markup(line: str, where: str) -> MarkedText:
    """Divide a line with tags into its text and its elements.

    Comments are empty elements, and so are tags of HTML that are never closed, such as ``<br>``, in a line without
    such a closing tag, as XML may have. A ``<`` or ``&`` that begins no tag or entity is text.

    Args:
        where: the line in messages.

    Raises:
        UserError: a tag is not closed, or closes none, or too many are open.
    """
    text, stack, last, tags = "", [_OpenTag("", "", 0)], 0, list(_tags(line))
    closed = {match["name"] for match, _ in tags if match["close"]}
    for match, end in tags:
        text += _unescaped(line[last : match.start()])
        last, tag, name = end, line[match.start() : end], match["name"]
        if name is None or match["empty"] or (name.lower() in _VOID and name not in closed):
            stack[-1].children.append(Element(len(text), len(text), tag))
        elif not match["close"]:
            stack.append(_OpenTag(name, tag, len(text)))
            if len(stack) > _DEEPEST + 1:
                what = f"more than {_DEEPEST} tags are open at {printable(tag)}"
                raise UserError(what, where=where, hint="Leave out tags around others.")
        elif stack[-1].name != name:
            wanted = f", where <{printable(stack[-1].name)}> is open" if len(stack) > 1 else ", and none is open"
            raise UserError(
                f"the tags are not balanced: {printable(tag)} closes <{name}>{wanted}", where=where, hint=_HINT
            )
        else:
            own = stack.pop()
            found = Element(own.begin, len(text), own.opening, tag, children=tuple(own.children))
            stack[-1].children.append(found)
    if len(stack) > 1:
        raise UserError(
            f"the tags are not balanced: {printable(stack[-1].opening)} is not closed", where=where, hint=_HINT
        )
    return MarkedText(line, text + _unescaped(line[last:]), tuple(stack[0].children), escaped=True)


def _tags(line: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield the tags and comments of a line, in order, with their ends: a comment is matched up to ``<!--``."""
    place, last = 0, line.rfind(_COMMENT_END)
    while match := _TAG.search(line, place):
        place = match.end()
        if match["name"] is None and place <= last:
            place = line.index(_COMMENT_END, place) + len(_COMMENT_END)
        elif match["name"] is None:
            continue  # no comment: nothing ends it
        yield match, place


def _unescaped(text: str) -> str:
    """Replace entities by what they stand for, and what is no part of a line by spaces."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]).replace("\n", " ").replace("\r", " "), text)


def keep_parts(marked: MarkedText, patterns: Sequence[re.Pattern[str]]) -> MarkedText:
    """Return the text with elements for the parts that match a pattern; an earlier pattern goes first.

    A tag inside such a part is moved to its beginning or end.
    """
    parts: list[Span] = []  # rising, and apart
    for pattern in patterns:
        for match in pattern.finditer(marked.text):
            begin, end = match.span()
            place = bisect_left(parts, (begin, end))
            before, after = parts[place - 1 : place], parts[place : place + 1]
            if begin < end and all(last <= begin for _, last in before) and all(end <= first for first, _ in after):
                parts.insert(place, (begin, end))
    moved = [_outside(each, parts) for each in marked.elements]
    return replace(marked, elements=_with_parts(moved, parts)) if parts else marked


def _outside(element: Element, parts: Sequence[Span]) -> Element:
    """Return an element whose ends lie in none of the parts."""

    def part_at(place: int) -> Span | None:
        number = bisect_left(parts, (place, place))
        return next((part for part in parts[max(number - 1, 0) : number] if place < part[1]), None)

    first, last = part_at(element.begin), part_at(element.end)
    begin = element.begin if first is None else first[0]
    end = element.end if last is None else last[0] if element.begin == element.end else last[1]
    children = tuple(_outside(each, parts) for each in element.children)
    return replace(element, begin=begin, end=end, children=children)


def _with_parts(elements: Sequence[Element], parts: Sequence[Span]) -> tuple[Element, ...]:
    """Return elements with kept parts, each in the innermost one that holds it; the first of several."""
    left, found = list(parts), list[Element]()
    for each in elements:
        first = bisect_left(left, each.begin, key=lambda part: part[0])
        last = bisect_right(left, each.end, key=lambda part: part[1])
        if each.closing and first < last:
            each = replace(each, children=_with_parts(each.children, left[first:last]))
            del left[first:last]
        found.append(each)
    own = (Element(begin, end, kept=True) for begin, end in left)
    return tuple(sorted((*own, *found), key=lambda each: each.begin))


def units_of(text: str) -> list[Span]:
    """Return the places of the units of a text: words and single other signs; characters where it has no spaces."""
    alone, found = is_unspaced([text]), list[Span]()
    for place, sign in enumerate(text):
        if sign.isspace():
            continue
        joins = not alone and found and found[-1][1] == place and is_word_part(text[place - 1])
        if joins and is_word_part(sign):
            found[-1] = found[-1][0], place + 1
        else:
            found.append((place, place + 1))
    return found


def transfer(marked: MarkedText, text: str, links: Collection[Link], units: Sequence[Span] | None = None) -> str:
    """Return a translation with the elements of its source.

    Args:
        text: the translation of ``marked.text``.
        links: between the units of both, source first.
        units: those of the source, if they are known.
    """
    moving = _Transfer(marked, text, links, units_of(marked.text) if units is None else units)
    places = moving.children(marked.elements, (0, len(text)), (0, len(marked.text)))
    return "".join(moving.written(places, 0, len(text)))


@dataclass(frozen=True)
class _Placed:
    """An element with its place in the translation, and those inside."""

    element: Element
    begin: int
    end: int
    children: tuple[_Placed, ...] = ()


class _Transfer:
    def __init__(self, marked: MarkedText, text: str, links: Collection[Link], units: Sequence[Span]) -> None:
        self._marked, self._text, self._source = marked, text, units
        self._target = units_of(text)
        self._links: list[list[int]] = [[] for _ in self._target]  # unit of the translation -> linked source units
        for i, j in links:
            self._links[j].append(i)
        free, self._verbatims = [(0, len(text))], dict[Span, Span]()
        for part in _kept_parts(marked.elements):  # a part that the translation has is linked to it and nothing else
            if (same := self._verbatim(part, free)) is not None:
                _take(free, same)
                self._verbatims[part.begin, part.end] = same
                for j in self._units_within(same):
                    self._links[j] = list(self._covered(part))

    def children(self, elements: Sequence[Element], inside: Span, parent: Span) -> tuple[_Placed, ...]:
        """Place elements within a part of the translation, which its parent covers; ``parent``: in the source."""
        found, free, taken = dict[int, _Placed](), [inside], list[Span]()
        sizes = [len(self._covered(each)) for each in elements]
        order = sorted(range(len(elements)), key=lambda n: (not elements[n].kept, not sizes[n], sizes[n], n))
        for n in order:
            own = elements[n]
            begin, end = self._place(own, free, taken, inside, parent)
            _take(free, (begin, end))
            if begin < end:
                insort(taken, (begin, end))
            inner = self.children(own.children, (begin, end), (own.begin, own.end))
            found[n] = _Placed(own, begin, end, inner)
        return tuple(sorted((found[n] for n in range(len(elements))), key=lambda each: (each.begin, each.end)))

    def _covered(self, element: Element) -> range:
        """Return the source units that an element touches; of an empty one an empty range, behind the unit it is in."""
        if element.begin == element.end:
            first = bisect_left(self._source, element.begin, key=lambda unit: unit[0])
            return range(first, first)
        first = bisect_left(self._source, element.begin, key=lambda unit: unit[1] - 1)
        last = bisect_left(self._source, element.end, key=lambda unit: unit[0])
        return range(first, max(first, last))

    def _place(self, element: Element, free: Sequence[Span], taken: Sequence[Span], inside: Span, parent: Span) -> Span:
        """Return the place of an element in one of the gaps between places that are taken; both rise."""
        own = self._verbatims.get((element.begin, element.end)) if element.kept else None
        if own is not None and any(begin <= own[0] and own[1] <= end for begin, end in free):
            return own
        covered = self._covered(element)
        if not covered:
            return self._point(covered, taken, inside)
        votes = [self._vote(j, covered) for j in range(len(self._target))]
        best: tuple[int, int, int, int] = (0, 0, 0, 0)  # sum, less its length, first unit, last unit
        for gap in free:
            best = max(best, _best_run(votes, self._units_within(gap)), key=lambda run: (run[0], run[1]))
        if best[0] <= 0:
            return self._point(covered, taken, inside)
        first, last = best[2], best[3]
        (gap,) = (each for each in free if each[0] <= self._target[first][0] < each[1])
        return self._widened(element, first, last, gap, inside, parent, votes)

    def _vote(self, unit: int, covered: range) -> int:
        into = sum(i in covered for i in self._links[unit])
        out = len(self._links[unit]) - into
        return (into > out) - (into < out)

    def _units_within(self, gap: Span) -> range:
        """Return the units that lie in a part of the translation."""
        first = bisect_left(self._target, gap[0], key=lambda unit: unit[0])
        last = bisect_left(self._target, gap[1] + 1, key=lambda unit: unit[1])
        return range(first, max(first, last))

    def _widened(
        self, element: Element, first: int, last: int, gap: Span, inside: Span, parent: Span, votes: Sequence[int]
    ) -> Span:
        """Return the place of a run, with unlinked units at the ends of the parent, or attached to a kept part."""
        units, covered, around = self._units_within(gap), self._covered(element), self._covered(Element(*parent))
        before, after = first, last
        while before - 1 in units and votes[before - 1] >= 0:
            before -= 1
        while after + 1 in units and votes[after + 1] >= 0:
            after += 1
        if element.kept:
            run = first, last
            while first > before and self._target[first - 1][1] == self._target[first][0]:
                first -= 1
            while last < after and self._target[last][1] == self._target[last + 1][0]:
                last += 1
            while first < run[0] and self._is_other_punctuation(first, element.begin):
                first += 1
            while last > run[1] and self._is_other_punctuation(last, element.end - 1):
                last -= 1
            return self._target[first][0], self._target[last][1]
        if covered.start == around.start and before == units.start and gap[0] == inside[0]:
            first = before
        if covered.stop == around.stop and after == units.stop - 1 and gap[1] == inside[1]:
            last = after
        return self._target[first][0], self._target[last][1]

    def _is_other_punctuation(self, unit: int, place: int) -> bool:
        """Return True if a unit is a punctuation mark, and not the character of the source at a place."""
        sign = self._text[slice(*self._target[unit])]
        return unicodedata.category(sign[0])[0] == "P" and sign != self._marked.text[place]

    def _verbatim(self, element: Element, free: Sequence[Span]) -> Span | None:
        """Return the first place in a gap where a kept part stands as it is, and no longer word does."""
        source, begin, end = self._marked.text, element.begin, element.end
        part = source[begin:end]
        left = begin == 0 or not (is_word_part(source[begin - 1]) and is_word_part(part[0]))
        right = end == len(source) or not (is_word_part(source[end]) and is_word_part(part[-1]))
        for gap in free:
            place = self._text.find(part, *gap)
            while place >= 0:
                after = place + len(part)
                before = place == 0 or not (left and is_word_part(self._text[place - 1]) and is_word_part(part[0]))
                behind = after == len(self._text) or not (
                    right and is_word_part(self._text[after]) and is_word_part(part[-1])
                )
                if before and behind:
                    return place, after
                place = self._text.find(part, place + 1, gap[1])
        return None

    def _point(self, covered: range, taken: Sequence[Span], inside: Span) -> Span:
        """Return an empty place: after what is linked to the unit before the element, or before that after it.

        What is placed there, and has the linked unit inside, comes whole before or after it.
        """
        by_source: dict[int, list[int]] = {}
        for j in self._units_within(inside):
            for i in self._links[j]:
                by_source.setdefault(i, []).append(j)
        before = max((i for i in by_source if i < covered.start), default=None)
        after = min((i for i in by_source if i >= covered.stop), default=None)
        if before is not None:
            place = self._target[by_source[before][-1]][1]
        elif after is not None:
            place = self._target[by_source[after][0]][0]
        else:
            place = inside[0 if covered.start == 0 else 1]
        for begin, end in taken[bisect_left(taken, (place, 0)) - 1 :][:1]:  # the last that begins before it
            if begin < place < end:
                place = end if before is not None else begin
        return place, place

    def written(self, placed: Sequence[_Placed], begin: int, end: int) -> Iterator[str]:
        """Yield the parts of the translation from one place to another, with the elements in it."""
        for each in placed:
            yield self._escaped(self._text[begin : each.begin])
            own = each.element
            if own.kept:
                yield from self._kept(each)
            else:
                yield own.opening
                yield from self.written(each.children, each.begin, each.end)
                yield own.closing
            begin = each.end
        yield self._escaped(self._text[begin:end])

    def _kept(self, each: _Placed) -> Iterator[str]:
        """Yield a kept part; in the place of something else, apart from words beside it if it is in the source."""
        text, source, own = self._text, self._marked.text, each.element
        part, before, after = source[own.begin : own.end], text[: each.begin][-1:], text[each.end :][:1]
        beside = (before, source[: own.begin][-1:]), (after, source[own.end :][:1])
        left, right = (is_letter(here or " ") and not is_word_part(there or " ") for here, there in beside)
        if each.begin == each.end:
            left, right = before.strip() != "", is_word_part(after or " ")
        elif text[each.begin : each.end] == part:
            left = right = False
        yield f"{' ' * left}{self._escaped(part)}{' ' * right}"

    def _escaped(self, text: str) -> str:
        return html.escape(text, quote=False) if self._marked.escaped else text


def _kept_parts(elements: Sequence[Element]) -> Iterator[Element]:
    """Yield the parts that are kept, those inside elements, too, in their order."""
    for each in elements:
        if each.kept:
            yield each
        yield from _kept_parts(each.children)


def _take(free: list[Span], place: Span) -> None:
    """Remove a place from rising gaps, none of which is empty; what it divides stays apart, even if it is empty."""
    number = bisect_right(free, place[0], key=lambda gap: gap[0]) - 1
    if number >= 0 and place[0] <= free[number][1]:
        begin, end = free[number]
        free[number : number + 1] = [gap for gap in ((begin, place[0]), (place[1], end)) if gap[0] < gap[1]]


def _best_run(votes: Sequence[int], units: range) -> tuple[int, int, int, int]:
    """Return the run of units with the largest sum of votes, the shortest, then the first: sum, -length, ends."""
    best, total, first = (0, 0, 0, 0), 0, units.start
    for j in units:
        if total <= 0:
            total, first = 0, j
        total += votes[j]
        best = max(best, (total, first - j - 1, first, j), key=lambda run: (run[0], run[1]))
    return best
