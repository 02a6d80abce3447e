"""Lines with tags and parts that are kept: what is translated of them, until their translation is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sparsenmt.data.input_line import InputLine
from sparsenmt.data.markup import MarkedText, keep_parts, read_markup
from sparsenmt.errors import UserError


class MarkedInput:
    """The lines of a text between reading and writing.

    Args:
        xml: True: lines have tags.
        keep: regular expressions of the parts that are kept.
        name: of the text, in messages.

    Raises:
        UserError: an expression is none.
    """

    def __init__(self, xml: bool, keep: Sequence[str], name: str) -> None:
        self._xml, self._name = xml, name
        self._patterns = [_pattern(each) for each in keep]
        self._lines: dict[int, MarkedText] = {}

    def read(self, line: InputLine) -> MarkedText:
        """Divide a line into its text and elements; UserError if its tags are not balanced."""
        where = f"{self._name}, line {line.number + 1:,}"
        marked = read_markup(line.text, where) if self._xml else MarkedText(line.text, line.text)
        return keep_parts(marked, self._patterns)

    def texts(self, lines: Iterable[InputLine]) -> Iterator[InputLine]:
        """Yield the lines without tags, and keep what they have until it is taken."""
        for line in lines:
            marked = self._lines[line.number] = self.read(line)
            yield replace(line, text=marked.text)

    def take(self, number: int) -> MarkedText:
        """Return a line that was read, and forget it."""
        return self._lines.pop(number)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        found = re.compile(text)
    except re.error as error:
        hint = r"Write one of Python's, as '\{[^{}]*\}' for what stands in braces; a \ before a sign takes it as it is."
        raise UserError(f"'{text}' is no regular expression: {error}", where="--keep", hint=hint) from None
    if found.match(""):
        hint = r"Write what must stand there, as `\d+` in place of `\d*`."
        raise UserError(f"'{text}' is found where nothing stands", where="--keep", hint=hint)
    return found
