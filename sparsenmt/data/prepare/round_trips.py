"""Lines of the training text that do not come back from the tokenizer as they were.

Normalisation changes them for good: a model never writes a character that its tokenizer replaces.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice

from sparsenmt.data.line_parts import read_line_parts
from sparsenmt.data.prepare.chosen_lines import chosen_lines, read_numbered_parts
from sparsenmt.data.prepared_data import PreparedReport
from sparsenmt.data.text import bounded_batches
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers, unknown_texts
from sparsenmt.data.vocabulary import UNK
from sparsenmt.errors import printable
from sparsenmt.recipe.schema import Corpus, Data, TokenizerSection

MOST_UNKNOWN = 0.01
"""A larger share of unknown tokens, or of lines that change, is worth a warning."""
_LOOKED_AT = 5_000
"""Lines of a side that are encoded and decoded, spread evenly over the training corpora: less than a second."""
_LONGEST = 100_000  # characters of a line that are looked at
_SHOWN, _SHOWN_CHARACTERS, _AROUND = 3, 20, 10  # examples, characters of an unknown one, and around what changes


@dataclass
class RoundTrips:
    """The lines of a side of the training text that were encoded and decoded to see if they come back."""

    side: str
    lines: int = 0
    changed: int = 0
    """Lines that come back with other characters; neither runs of spaces nor unknown characters count."""
    examples: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    def add(self, tokenizer: Tokenizer, path: str, numbered: Sequence[tuple[int, str]], lowercase: bool) -> None:
        """Encode and decode lines of a file, with their numbers from 0."""
        self.lines += len(numbered)
        for (number, line), ids in zip(numbered, tokenizer.encode_batch([line for _, line in numbered]), strict=True):
            unknown = unknown_texts(tokenizer, line) if UNK in ids else []
            self.unknown.update(unknown)
            before, after = (
                " ".join(filter(None, text.split(" ")))
                for text in (line.lower() if lowercase else line, tokenizer.decode(ids, unknown))
            )
            if before != after:
                self.changed += 1
                if self.changed <= _SHOWN:
                    self.examples.append(
                        "{}, line {:,}: '{}' becomes '{}'".format(path, number + 1, *_change(before, after))
                    )

    @property
    def most_unknown(self) -> list[str]:
        """The most frequent unknown texts."""
        return [f"'{_escaped(text[:_SHOWN_CHARACTERS])}'" for text, _ in self.unknown.most_common(_SHOWN)]

    def describe(self, options: TokenizerSection) -> str:
        """Describe the changes, as a warning if they are many and a model learns to write what comes back."""
        learned = options.from_model is None
        rule = options.normalization if learned and options.kind in ("bpe", "unigram") else "identity"
        why = f"data.tokenizer.normalization ({rule}) decides, and `identity` keeps all but U+2581"
        if rule == "identity":
            why = "U+2581 stands for a space in vocabularies" if learned else "data.tokenizer.from_model decides"
        many = self.side != "source" and self.changed > MOST_UNKNOWN * self.lines
        head = f"{self.changed:,} of {self.lines:,} {self.side} lines do not come back from the tokenizer as they were"
        return "\n  ".join([f"{'warning: ' if many else ''}{head}: {why}", *self.examples])


def examine_round_trips(report: PreparedReport, data: Data) -> list[RoundTrips]:
    """Encode and decode some of the training text, side by side."""
    tokenizers = Tokenizers.load(report.directory / "tokenizers")
    step = max(1, -(-report.lines // _LOOKED_AT))
    found = []
    for side in data.dev.files:
        trips = RoundTrips(side)
        tokenizer = tokenizers.source if side == "source" else tokenizers.target
        for corpus in data.train:
            some = islice(_used_lines(corpus, corpus.files[side]), 0, None, step)
            for batch in bounded_batches(some, lambda entry: len(entry[1])):
                lowercase = data.tokenizer.lowercase and data.tokenizer.from_model is None
                trips.add(tokenizer, corpus.files[side], batch, lowercase)
        found.append(trips)
    return found


def _used_lines(corpus: Corpus, path: str) -> Iterator[tuple[int, str]]:
    """Lines of a training corpus that are read by training, or parts of long ones, with their numbers from 0."""
    used: Sequence[int] = range(sys.maxsize if corpus.lines is None else corpus.lines)
    if corpus.lines_seed is not None:
        used = chosen_lines(corpus, sum(part.ends for part in read_line_parts(path)))
    return ((number, part.text[:_LONGEST]) for number, part in read_numbered_parts(path, used))


def _change(before: str, after: str) -> tuple[str, str]:
    """Return the first place that differs in two texts, with what is around it; odd characters as escapes."""
    same = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before))
    begin = max(0, min(same, len(after)) - _AROUND)
    parts = before[begin : begin + 6 * _AROUND], after[begin : begin + 6 * _AROUND]
    blocks = SequenceMatcher(None, *parts, autojunk=False).get_opcodes()
    _, a, b, c, d = next(block for block in blocks if block[0] != "equal")
    return _place(parts[0], a, b), _place(parts[1], c, d)


def _place(text: str, begin: int, end: int) -> str:
    before, after = text[max(0, begin - _AROUND) : begin], text[end : end + _AROUND]
    return printable(before) + _escaped(text[begin:end]) + printable(after)


def _escaped(text: str) -> str:
    return "".join(each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in text)
