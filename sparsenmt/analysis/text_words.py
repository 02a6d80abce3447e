"""The words of the text that a report reads: between spaces, or as given tags or a segmenter cut it.

The tokens of a text without spaces between words (Japanese, Chinese, Thai) do not show where its words begin: what
stands between spaces is mostly a whole sentence. Reports then leave words out, or use words that are known otherwise:
those of part-of-speech tags beside the text, or those of a named tagger, which splits lines into words.
Shapes: S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tagging.source_tagger import open_tagger_for_text
from sparsenmt.data.tagging.word_alignment import align_words
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.process.progress import progress_bar

SPACES, TAGS, UNKNOWN = "spaces", "tags", "unknown"
UNSPACED = "the text has no spaces between words"
_REMEDY = "name a tagger that finds words with --words, or give tags"
REPORT_REMEDY = "Reports take the language with --language, and tags with --tags."


@dataclass(frozen=True)
class TextWords:
    """The words of a text.

    Args:
        origin: `SPACES`, `TAGS`, the name of a segmenter, or `UNKNOWN`: the text has no spaces between words.
        lines: the words of every line by its number; None: between spaces, also where these do not bound words.
    """

    origin: str = SPACES
    lines: Sequence[Sequence[str]] | None = None

    @property
    def known(self) -> bool:
        """True if the words are words, not whole sentences."""
        return self.origin != UNKNOWN

    def indices(self, line: SourceLine, tokenizer: Tokenizer) -> NDArray[np.int64]:
        """Return the word of every token, (S,): numbers from 0 that never decrease.

        ``</s>`` is a word of its own, and so is a token that belongs to no word of a segmenter, or to a frame.
        """
        if self.lines is None:
            own = word_ids(line.sentence, tokenizer)
        else:
            found = align_words(tokenizer, line.sentence, self.lines[line.number]).words
            starts = (found < 0) | (np.diff(found, prepend=-1) != 0)
            starts[:1] = True
            own = np.cumsum(starts, dtype=np.int64) - 1
        before, after = len(line.frame.prefix), len(line.frame.suffix)
        more = own[-1] + 1 + np.arange(after, dtype=np.int64)
        return np.concatenate([np.arange(before, dtype=np.int64), own + before, more + before])

    def notes(self, missing: str) -> list[str]:
        """Return the note for a report, if one is needed; ``missing``: the consequence of unknown words, in words."""
        if not self.known:
            return [f"{UNSPACED}: {missing}; {_REMEDY}"]
        origin = "the given tags" if self.origin == TAGS else self.origin
        return [] if self.lines is None else [f"words: those of {origin}"]


def find_words(lines: Sequence[InputLine], segmenter: str | None, language: str) -> TextWords:
    """Find the words of a text: by the segmenter if one is named, between spaces, or in its tags.

    Args:
        segmenter: a tagger that splits lines into words.
        language: of the text, for the segmenter.

    Raises:
        UserError: the segmenter is not available, or does not cover the language.
    """
    if segmenter is not None:
        tool = open_tagger_for_text(segmenter, language, "--words", need="words cannot be found", remedy=REPORT_REMEDY)
        found = []
        with progress_bar("words", len(lines)) as advance:
            for line in lines:
                found.append(tool.tokenize(line.text))
                advance(1)
        return TextWords(segmenter, found)
    if not is_unspaced(line.text for line in lines):
        return TextWords()
    tagged = [line.tags.words for line in lines if line.tags is not None]
    return TextWords(TAGS, tagged) if len(tagged) == len(lines) else TextWords(UNKNOWN)
