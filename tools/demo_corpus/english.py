"""English inflection for the demo corpus, as tokens with Penn tags (Marcus et al. 1993)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tools.demo_corpus.lexicon import Noun, Verb

Tense = Literal["present", "progressive", "past", "perfect", "future", "can", "must", "should", "want", "may"]

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


@dataclass(frozen=True)
class Token:
    """A token of the Penn treebank; ``attached``: without a space before it in the raw text."""

    text: str
    tag: str
    attached: bool = False


def tokens(text: str, tag: str) -> list[Token]:
    """White-space separated words that share a tag."""
    return [Token(word, tag) for word in text.split()]


def tagged(text: str) -> list[Token]:
    """Tokens from ``word_TAG word_TAG``."""
    return [Token(word, tag) for word, _, tag in (item.rpartition("_") for item in text.split())]


def article(following: str) -> Token:
    """a or an."""
    return Token("an" if following[0].lower() in "aeiou" else "a", "DT")


def noun(word: Noun, *, plural: bool) -> list[Token]:
    """The noun; in a compound only the last word is inflected."""
    words = (word.english_plural if plural else word.english).split()
    return [*(Token(part, "NN") for part in words[:-1]), Token(words[-1], "NNS" if plural else "NN")]


def number(value: int) -> str:
    """The English number word, from 2 to 99."""
    if not 2 <= value <= 99:
        raise ValueError(f"no number word for {value}")
    if value < 20:
        return _UNITS[value]
    return _TENS[value // 10] + (f"-{_UNITS[value % 10]}" if value % 10 else "")


def third_person(base: str) -> str:
    """buys, watches, cries, has."""
    if base == "have":
        return "has"
    if base.endswith(("s", "x", "ch", "sh", "o")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"


def be(person: int, *, plural: bool, past: bool = False) -> Token:
    """The finite forms of "be"."""
    if past:
        return Token("were" if plural or person == 2 else "was", "VBD")
    if plural or person == 2:
        return Token("are", "VBP")
    return Token("am", "VBP") if person == 1 else Token("is", "VBZ")


def _finite(base: str, person: int, *, plural: bool) -> Token:
    third = person == 3 and not plural
    return Token(third_person(base) if third else base, "VBZ" if third else "VBP")


@dataclass(frozen=True)
class VerbForms:
    """``auxiliaries`` (finite verb, then "not") precede adverbs of frequency, ``main`` follows them."""

    auxiliaries: tuple[Token, ...]
    main: tuple[Token, ...]


def verb_forms(
    verb: Verb, tense: Tense, person: int, *, plural: bool, negated: bool, contracted: bool, question: bool
) -> VerbForms:
    """The verb group of a clause, with do-support if necessary."""
    auxiliary: Token | None = None
    main = [Token(verb.base, "VB")]
    if tense == "progressive":
        auxiliary, main = be(person, plural=plural), [Token(verb.gerund, "VBG")]
    elif tense == "perfect":
        auxiliary, main = _finite("have", person, plural=plural), [Token(verb.participle, "VBN")]
    elif tense == "future":
        auxiliary = Token("will", "MD")
    elif tense in ("can", "must", "should", "may"):
        auxiliary = Token(tense, "MD")
    elif verb.base == "be":
        auxiliary, main = be(person, plural=plural, past=tense == "past"), []
    else:
        finite = _finite("want" if tense == "want" else verb.base, person, plural=plural)
        base = [Token("want", "VB"), Token("to", "TO"), *main] if tense == "want" else main
        if tense == "past":
            finite = Token(verb.past, "VBD")
        if negated or question:
            auxiliary = Token("did", "VBD") if tense == "past" else _finite("do", person, plural=plural)
            main = base
        else:
            main = [finite, *base[1:]]
    if verb.particle:
        main.append(Token(verb.particle, "IN"))
    auxiliaries = [auxiliary] if auxiliary else []
    if negated and auxiliary:
        auxiliaries = _negate(auxiliary, contracted=contracted)
    return VerbForms(tuple(auxiliaries), tuple(main))


def _negate(auxiliary: Token, *, contracted: bool) -> list[Token]:
    if auxiliary.text == "can":
        return [auxiliary, Token("not", "RB", attached=True)]
    if not contracted or auxiliary.text in {"am", "may", "must", "will"}:
        return [auxiliary, Token("not", "RB")]
    return [auxiliary, Token("n't", "RB", attached=True)]


def text(sentence: Sequence[Token]) -> str:
    """The raw text."""
    line = ""
    for token in sentence:
        line += token.text if token.attached or not line else f" {token.text}"
    return line


def capitalised(sentence: Sequence[Token]) -> list[Token]:
    """The first letter in upper case."""
    first = sentence[0]
    return [replace(first, text=first.text[:1].upper() + first.text[1:]), *sentence[1:]]
