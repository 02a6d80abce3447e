"""Part-of-speech taggers with a common interface: HanTa, spaCy, Stanza.

All are optional packages; none downloads anything. HanTa unpickles its models from its own package data; it would
prefer a file of the same name in the working directory, so it is given the full path of the package's own file. spaCy
and Stanza read models that are installed on this machine, Stanza's with `torch.load`.
"""

from __future__ import annotations

import importlib.metadata
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from sparsenmt.data.tagging.tagsets import TagSet, WordCategory, tag_category
from sparsenmt.errors import UserError
from sparsenmt.languages import base_language

_CACHED_WORDS = 1 << 16
_LONGEST_WORD = 256  # characters, for HanTa: its time is quadratic in them, 20 s for a word of 3,200


class Tagger(Protocol):
    """Splits lines into words, and tags words. The same words always get the same tags."""

    version: str
    """Version of the package, and of the model if it has one."""
    tagset: TagSet
    needs_spaces: bool
    """True if it finds words between spaces only, so that those of Japanese, Chinese and Thai are whole sentences."""

    def tokenize(self, line: str) -> list[str]:
        """The words of a line; concatenated, they are its characters without white space."""
        ...

    def tag(self, words: Sequence[str]) -> list[str]:
        """One tag for each word of a line."""
        ...


def open_tagger(name: str, language: str) -> Tagger:
    """Open a tagger by name (hanta, spacy, stanza) for a language code such as "en" or "de-AT".

    Raises:
        UserError: there is no such tagger, it is not installed, or it does not cover the language.
    """
    try:
        tagger = _TAGGERS[name]
    except KeyError:
        raise UserError(
            f"unknown tagger {name!r}", where="data.tagger.name", hint=f"There are: {', '.join(_TAGGERS)}."
        ) from None
    return tagger(base_language(language))


_CLITICS = {
    "en": re.compile(r"(?i)(?<=\w)(n['’]t|['’](?:s|re|ve|ll|d|m))$"),
}
_LONGEST_CLITIC = 3
_LETTER = r"[\w\u0300-\u036f]"  # or a digit, an accent
_WORD = re.compile(
    rf"""
    <[\w/]+> | \#\w+\#                          # markers: <n>, #Person1#
    | (?:\w\.){{2,}}                           # U.S., z.B.
    | (?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|bzw|usw|ca|Nr|dhr|mevr)\.(?!\w)
    | \d+(?:[.,:]\d+)+                         # 1,000.5 12:30
    | {_LETTER}+(?:['’-]{_LETTER}+)*           # don't, t-shirt
    | \.{{2,}} | -{{2,}} | ([^\w\s])\1*          # ... -- !!!
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_MARKER = re.compile(r"<[\w/]+>")
_UNSURE = (WordCategory.REST, WordCategory.FOREIGN, WordCategory.SYMBOL)
_ENDS = re.compile(r"[.!?…]+")


def split_words(line: str, language: str) -> list[str]:
    """Split a line into words, numbers and punctuation marks; English clitics ("n't", "'s") are words of their own.

    Concatenated, the words are the line's characters without white space.
    """
    clitics = _CLITICS.get(language)
    words: list[str] = []
    for match in _WORD.finditer(line):
        word = match.group()
        end = len(word)
        cut: list[str] = []
        # I'd've: two. Only the end of the word is searched, so that the time is linear in its length.
        while clitics is not None and (found := clitics.search(word, max(end - _LONGEST_CLITIC, 0), end)) is not None:
            end = found.start()
            cut.append(found.group())
        words += [word[:end], *reversed(cut)]
    return words


class _HanTa:
    """The Hanover Tagger (Wartena 2019): a second-order hidden Markov model over words and their morphemes."""

    needs_spaces = True
    _MODELS: dict[str, tuple[str, TagSet]] = {
        "en": ("morphmodel_en.pgz", "c5"),
        "de": ("morphmodel_ger.pgz", "stts"),
        "nl": ("morphmodel_dutch.pgz", "cgn"),
    }
    _PLAIN: dict[TagSet, tuple[str, str]] = {
        "c5": ("PUN", "CRD"), "stts": ("$(", "CARD"), "cgn": ("LET()", "TW(hoofd,vrij)"),
    }  # fmt: skip

    def __init__(self, language: str) -> None:
        if language not in self._MODELS:
            raise _not_covered("hanta", language, "en, de, nl")
        try:
            import HanTa
            from HanTa.HanoverTagger import HanoverTagger
        except ImportError:
            raise _not_installed("HanTa", "pip install 'sparsenmt[pos]'") from None
        model, self.tagset = self._MODELS[language]
        self.language = language
        self.version = importlib.metadata.version("HanTa")
        self._tagger: Any = HanoverTagger(str(Path(HanTa.__file__).resolve().parent / model))
        # The analysis of a word takes most of the time and does not depend on its context.
        self._tagger.analyze_forward = lru_cache(maxsize=_CACHED_WORDS)(self._tagger.analyze_forward)

    def tokenize(self, line: str) -> list[str]:
        return split_words(line, self.language)

    def tag(self, words: Sequence[str]) -> list[str]:
        tags = (tag for sentence in _sentences(words) for tag in self._tag_sentence(sentence))
        return [self._corrected(word, tag) for word, tag in zip(words, tags, strict=True)]

    def _corrected(self, word: str, tag: str) -> str:
        """Correct HanTa's tags of unseen numbers, punctuation marks and markers ("1,000", "–", "<n>")."""
        punctuation, number = self._PLAIN[self.tagset]
        if word[0].isdigit() and _NUMBER.fullmatch(word):
            return number
        if tag_category(tag, self.tagset) not in _UNSURE and word[0] != "<":
            return tag
        is_mark = word not in "%&#@" and all(unicodedata.category(character)[0] == "P" for character in word)
        return punctuation if is_mark or _MARKER.fullmatch(word) else tag

    def _tag_sentence(self, words: list[str]) -> list[str]:
        try:
            return [str(tag) for tag in self._tagger.tag_sent([word[:_LONGEST_WORD] for word in words], taglevel=0)]
        except (KeyError, IndexError):  # its search found no path; it may find one for each word alone
            return [self._tag_word(word) for word in words]

    def _tag_word(self, word: str) -> str:
        try:
            return str(self._tagger.tag_word(word[:_LONGEST_WORD])[0][0])
        except (KeyError, IndexError):
            return "UNKNOWN"


class _SpaCy:
    """An installed spaCy pipeline for the language: its ``tag_`` if that is a known tag set, otherwise UPOS."""

    needs_spaces = False

    def __init__(self, language: str) -> None:
        try:
            import spacy
        except ImportError:
            raise _not_installed("spaCy", "pip install spacy, and a pipeline for the language") from None
        pipelines = sorted(name for name in spacy.util.get_installed_models() if name.startswith(f"{language}_"))
        if not pipelines:
            raise _not_covered("spacy", language, "the languages of the pipelines that are installed")
        self.version = f"{spacy.__version__} {pipelines[0]}"
        self._pipeline: Any = spacy.load(pipelines[0], exclude=["parser", "ner", "lemmatizer", "textcat"])
        self._fine = language in ("en", "de")
        self.tagset: TagSet = {"en": "penn", "de": "stts"}.get(language, "ud")  # type: ignore[assignment]

    def tokenize(self, line: str) -> list[str]:
        return [token.text for token in self._pipeline.make_doc(line) if not token.is_space]

    def tag(self, words: Sequence[str]) -> list[str]:
        if not words:
            return []
        from spacy.tokens import Doc

        document: Any = Doc(self._pipeline.vocab, words=list(words))
        for _, step in self._pipeline.pipeline:
            document = step(document)
        return [str(token.tag_ if self._fine else token.pos_) for token in document]


class _Stanza:
    """Stanza's tokenizer and tagger with installed models; UPOS."""

    tagset: TagSet = "ud"
    needs_spaces = False

    def __init__(self, language: str) -> None:
        try:
            import stanza
        except ImportError:
            raise _not_installed("Stanza", "pip install stanza, and download its models for the language") from None
        self.version = str(stanza.__version__)
        options = {"lang": language, "download_method": None, "verbose": False}
        try:
            self._cutter: Any = stanza.Pipeline(processors="tokenize", **options)
            self._tagger: Any = stanza.Pipeline(processors="tokenize,pos", tokenize_pretokenized=True, **options)
        except Exception:  # Stanza has no specific exception for a missing model
            raise _not_covered("stanza", language, "the languages of the models that are on this machine") from None

    def tokenize(self, line: str) -> list[str]:
        return [token.text for sentence in self._cutter(line).sentences for token in sentence.tokens]

    def tag(self, words: Sequence[str]) -> list[str]:
        if not words:
            return []
        (sentence,) = self._tagger([list(words)]).sentences
        return [str(word.upos) for word in sentence.words]


_TAGGERS: dict[str, Callable[[str], Tagger]] = {"hanta": _HanTa, "spacy": _SpaCy, "stanza": _Stanza}


def _sentences(words: Sequence[str]) -> Iterator[list[str]]:
    """Split words into sentences at punctuation marks."""
    sentence: list[str] = []
    for word in words:
        sentence.append(word)
        if _ENDS.fullmatch(word):
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _not_installed(package: str, how: str) -> UserError:
    return UserError(
        f"{package} is not installed",
        where="data.tagger.name",
        hint=f"Install it ({how}), choose another tagger, or give tags beside the text.",
    )


def _not_covered(name: str, language: str, covered: str) -> UserError:
    pipeline = f"{language}_core_{'web' if language in ('en', 'zh') else 'news'}_sm"
    models = {
        "stanza": f"`pip install stanza` and `python -c \"import stanza; stanza.download('{language}')\"`",
        "spacy": f"`pip install spacy` and `python -m spacy download {pipeline}`",
    }
    commands = "; or ".join(f"{models[each]} for {each}" for each in ([name] if name in models else models))
    return UserError(
        f"the tagger {name} does not cover the language {language!r}; it covers {covered}",
        where="data.tagger.language",
        hint=f"Install one that does: {commands}. Or give tags beside the text; or, if the code is wrong, write the "
        "language's there or as data.source_language.",
    )
