"""ROUGE F1 (Lin 2004) through rouge-score, with every choice that changes the value named in a signature.

rouge-score's own tokenizer knows the letters a-z and the digits only: it cuts "schön" into "sch" and "n", and finds
nothing at all in Greek or Russian. It is used for English, as is usual, with Porter stemming; for all other languages
`words` finds the tokens, without stemming. Both lower the case.

The value of a corpus is the mean of its sentences' F1, times 100. With several references a sentence takes the one
that is best for it. ROUGE-Lsum looks at sentences inside a line: see `split_sentences`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MARKER = re.compile(r"(?<!\S)<n>(?!\S)")
# A full stop, question mark, exclamation mark or ellipsis, closing quotes or brackets, then white space; or one of the
# full-width marks of Chinese and Japanese, which no space follows.
_SENTENCE_END = re.compile(r"(?<=[.!?…])([\"'”’»)\]]*)\s+|(?<=[。！？])([”’」』）]*)\s*")


def is_english(language: str) -> bool:
    """Whether a language code means English: en, en-GB, eng ..."""
    return re.split(r"[-_]", language.lower())[0] in {"en", "eng", "english"}


def words(text: str) -> list[str]:
    """Unicode words: runs of letters, marks and digits, in lower case and composed form (NFC).

    A Chinese or Japanese character is a word of its own, since these scripts put no spaces between words.
    """
    composed = unicodedata.normalize("NFC", text.lower())
    found: list[str] = []
    for kind, run in itertools.groupby(composed, _character_kind):
        if kind == "word":
            found.append("".join(run))
        elif kind == "ideograph":
            found.extend(run)
    return found


@functools.lru_cache(maxsize=4096)
def _character_kind(character: str) -> str:
    if re.match(r"[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]", character):
        return "ideograph"
    return "word" if unicodedata.category(character)[0] in "LMN" else "other"


class UnicodeTokenizer:
    """`words` in the form that rouge-score's ``RougeScorer`` takes."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return words(text)


def split_sentences(text: str) -> list[str]:
    """The sentences of a line, for ROUGE-Lsum.

    Where the line holds the literal marker ``<n>`` between spaces, or a line end, these and only these end sentences.
    Otherwise a sentence ends after ``.``, ``!``, ``?`` or ``…`` that white space follows, closing quotes and brackets
    included, and after the full-width marks of Chinese and Japanese. Abbreviations are not looked for.
    """
    marked = _MARKER.sub("\n", text)
    if "\n" in marked:
        sentences = marked.split("\n")
    else:
        sentences = _SENTENCE_END.sub(lambda end: f"{end[1] or end[2] or ''}\n", text).split("\n")
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def signature(*, references: int, language: str) -> str:
    """What must be known to compute the same value again, in the style of sacrebleu's signatures."""
    english = is_english(language)
    parts = {
        "nrefs": str(references),
        "case": "lc",
        "avg": "sentence-f1",
        "stem": "porter" if english else "no",
        "tok": "rouge-score" if english else "unicode-words",
        "split": "n-marker-or-punct",
        "version": f"rouge-score-{importlib.metadata.version('rouge-score')}",
    }
    return "|".join(f"{key}:{value}" for key, value in parts.items())


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, metrics: Sequence[str], language: str
) -> dict[str, NDArray[np.float64]]:
    """F1 of every sentence, between 0 and 1, for each of the metrics.

    Args:
        hypotheses: N lines.
        references: one or more references of N lines each.
        metrics: some of rouge1, rouge2, rougeL, rougeLsum.
        language: language code; decides about tokenizer and stemmer.
    """
    from rouge_score.rouge_scorer import RougeScorer

    english = is_english(language)
    # `split_summaries` stays off: it would ask nltk for data from the network.
    scorer = RougeScorer(list(metrics), use_stemmer=english, tokenizer=None if english else UnicodeTokenizer())
    values = {name: np.zeros(len(hypotheses)) for name in metrics}
    for index, (hypothesis, *targets) in enumerate(zip(hypotheses, *references, strict=True)):
        best = scorer.score_multi([_lines(target) for target in targets], _lines(hypothesis))
        for name in metrics:
            values[name][index] = best[name].fmeasure
    return values


def _lines(text: str) -> str:
    """One sentence a line, which is how rouge-score wants it; for the other metrics a line end is a space."""
    return "\n".join(split_sentences(text))
