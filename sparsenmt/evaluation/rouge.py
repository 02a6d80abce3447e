"""ROUGE F1 (Lin 2004) through rouge-score; the signature names every choice that changes the value.

rouge-score's own tokenizer knows the letters a-z and the digits only: it cuts "schön" into "sch" and "n", and finds
nothing at all in Greek or Russian. It is used for English, as is usual, with Porter stemming. For all other languages
`words` finds the tokens, without stemming. Both lower the case. Of text without spaces between words, in any language,
every character of a script that is written so is a token.

The value of a corpus is the mean of its sentences' F1, times 100. With several references the best one counts for each
sentence. ROUGE-Lsum compares the sentences inside a line: see `split_sentences`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.evaluation.scorer import ScoringSettings, SentenceMeans
from sparsenmt.languages import base_language

_JOINERS = "\u200c\u200d"
_MARKER = re.compile(r"<(?:n|q|doc)>")
# A full stop, question mark, exclamation mark or ellipsis, closing quotes or brackets, then white space; or one of the
# full-width marks of Chinese and Japanese, which no space follows.
_SENTENCE_END = re.compile(r"(?<=[.!?…])([\"'”’»)\]]*)\s+|(?<=[。！？])([”’」』）]*)\s*")


def is_english(language: str) -> bool:
    """Return True if a language code means English: en, en-GB, eng ..."""
    return base_language(language) in {"en", "eng", "english"}


def words(text: str, *, unspaced: bool = False) -> list[str]:
    """Split a text into Unicode words: runs of letters, marks and digits, in lower case and composed form (NFC).

    A Chinese or Japanese character is a word of its own, since these scripts put no spaces between words.

    A zero-width joiner or non-joiner belongs to the word around it.

    Args:
        unspaced: True if the text has no spaces between words: a character of Thai and its kin is a word, too.
    """
    composed = unicodedata.normalize("NFC", text.lower())
    found: list[str] = []
    for kind, run in itertools.groupby(composed, _unspaced_kind if unspaced else _character_kind):
        if kind != "other":
            own = "".join(run).strip(_JOINERS)
            found += own if kind == "ideograph" else [own]
    return list(filter(None, found))


@functools.lru_cache(maxsize=4096)
def _character_kind(character: str) -> str:
    if re.match(r"[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]", character):
        return "ideograph"
    return "word" if unicodedata.category(character)[0] in "LMN" or character in _JOINERS else "other"


@functools.lru_cache(maxsize=4096)
def _unspaced_kind(character: str) -> str:
    return "ideograph" if is_unspaced([character]) else _character_kind(character)


@dataclass(frozen=True)
class UnicodeTokenizer:
    """`words` in the form that rouge-score's ``RougeScorer`` takes."""

    unspaced: bool = False

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return words(text, unspaced=self.unspaced)


def without_markers(text: str) -> str:
    """Return a line with spaces in the place of its markers, which are no words."""
    return _MARKER.sub(" ", text)


def split_sentences(text: str) -> list[str]:
    """Split a line into sentences, for ROUGE-Lsum.

    If the line holds a marker or a line end, these and only these end sentences: ``<n>``, ``<q>`` or ``<doc>``, between
    spaces or without any around it, as PEGASUS writes ``<n>``. Otherwise a sentence ends after ``.``, ``!``, ``?`` or
    ``…`` followed by white space, closing quotes and brackets included, and after the full-width marks of Chinese and
    Japanese. Abbreviations are not recognised.
    """
    marked = _MARKER.sub("\n", text)
    if "\n" in marked:
        sentences = marked.split("\n")
    else:
        sentences = _SENTENCE_END.sub(lambda end: f"{end[1] or end[2] or ''}\n", text).split("\n")
    return [sentence.strip() for sentence in sentences if sentence.strip()]


class RougeF1(SentenceMeans):
    """One variant of ROUGE, by its name in rouge-score."""

    def __init__(self, name: str, settings: ScoringSettings) -> None:
        self._name, self._language, self._unspaced = name, settings.language, settings.unspaced
        self._variants = tuple(sorted(each for each in set(settings.metrics) if each.startswith("rouge")))

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        value = 100 * float(self.sentence_scores(hypotheses, references).mean())
        return value, signature(references=len(references), language=self._language, unspaced=self._unspaced)

    def sentence_scores(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        texts = tuple(hypotheses), tuple(map(tuple, references))
        english = is_english(self._language) and not self._unspaced
        return _sentence_f1(*texts, self._variants, english, self._unspaced)[self._name]


@functools.lru_cache(maxsize=1)
def _sentence_f1(
    hypotheses: tuple[str, ...],
    references: tuple[tuple[str, ...], ...],
    variants: tuple[str, ...],
    english: bool,
    unspaced: bool,
) -> dict[str, NDArray[np.float64]]:
    """Return the F1 of every sentence, between 0 and 1, for each variant.

    All variants are computed together, since most of the time goes into tokens and stems. The cache serves the other
    variants of the same corpus.
    """
    from rouge_score.rouge_scorer import RougeScorer

    # `split_summaries` stays off: it would ask nltk for data from the network.
    tokenizer = None if english else UnicodeTokenizer(unspaced)
    scorer = RougeScorer(list(variants), use_stemmer=english, tokenizer=tokenizer)
    values = {name: np.zeros(len(hypotheses)) for name in variants}
    for index, (hypothesis, *targets) in enumerate(zip(hypotheses, *references, strict=True)):
        best = scorer.score_multi([_lines(target) for target in targets], _lines(hypothesis))
        for name in variants:
            values[name][index] = best[name].fmeasure
    return values


def is_outdated(signature: str) -> bool:
    """Return True for the signature of an earlier version, whose markers had spaces around them."""
    return "|split:n-marker-or-punct|" in signature


def signature(*, references: int, language: str, unspaced: bool = False) -> str:
    """Return everything needed to reproduce a value, in the style of sacrebleu's signatures."""
    english = is_english(language) and not unspaced
    tokens = "rouge-score" if english else "unicode-words+characters" if unspaced else "unicode-words"
    parts = {
        "nrefs": str(references),
        "case": "lc",
        "avg": "sentence-f1",
        "stem": "porter" if english else "no",
        "tok": tokens,
        "split": "markers-or-punct",
        "version": f"rouge-score-{importlib.metadata.version('rouge-score')}",
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items())


def _lines(text: str) -> str:
    """Put every sentence on a line, as ROUGE-Lsum expects; the other variants read a line end as a space."""
    return "\n".join(split_sentences(text))
