"""Noun phrases of the demo corpus in English and German."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from tools.demo_corpus import english as en
from tools.demo_corpus import german as de
from tools.demo_corpus.english import Token
from tools.demo_corpus.german import Case
from tools.demo_corpus.lexicon import Adjective, Noun

Role = Literal["subject", "accusative", "dative"]
CASE_OF: dict[Role, Case] = {"subject": "nominative", "accusative": "accusative", "dative": "dative"}


class Nominal(Protocol):
    """A subject or object."""

    @property
    def person(self) -> int:
        """1, 2 or 3."""

    @property
    def plural(self) -> bool:
        """True for plural, in both languages."""

    @property
    def pronoun(self) -> bool:
        """True for personal pronouns, which stand first in the German clause."""

    @property
    def takes_kein(self) -> bool:
        """True if a negated clause uses "kein" here."""

    def english(self, role: Role) -> list[Token]:
        """The tokens in this role."""

    def german(self, case: Case, *, negated: bool = False) -> list[str]:
        """The words in this case; ``negated``: with "kein"."""


@dataclass(frozen=True)
class Determiner:
    """The first word of a noun phrase; ``declension`` is that of the following adjectives."""

    english_singular: str  # tagged tokens; "" = nothing, "a" = a or an
    english_plural: str
    german: str  # stem, "der" for the definite article, a whole word for names and numbers, "" for nothing
    kind: Literal["definite", "der", "ein", "fixed"]
    declension: de.Declension

    def german_word(self, place: de.Slot, case: Case) -> list[str]:
        """The inflected word, or nothing."""
        if self.kind == "definite":
            return [de.definite_article(place, case)]
        if self.kind == "der":
            return [de.like_der(self.german, place, case)]
        if self.kind == "ein":
            return [de.like_ein(self.german, place, case)]
        return self.german.split()


THE = Determiner("the_DT", "the_DT", "", "definite", "weak")
THIS = Determiner("this_DT", "these_DT", "dies", "der", "weak")
EVERY = Determiner("every_DT", "", "jed", "der", "weak")
A = Determiner("a", "", "ein", "ein", "mixed")
NOTHING = Determiner("", "", "", "fixed", "strong")
NO = Determiner("no_DT", "no_DT", "kein", "ein", "mixed")
MANY = Determiner("", "many_JJ", "viel", "der", "strong")
SOME = Determiner("", "some_DT", "einig", "der", "strong")
WHICH = Determiner("which_WDT", "which_WDT", "welch", "der", "weak")
HOW_MANY = Determiner("", "how_WRB many_JJ", "wie viel", "der", "strong")
POSSESSIVES = tuple(
    Determiner(f"{word}_PRP$", f"{word}_PRP$", stem, "ein", "mixed")
    for word, stem in (
        ("my", "mein"),
        ("your", "dein"),
        ("his", "sein"),
        ("her", "ihr"),
        ("our", "unser"),
        ("their", "ihr"),
    )
)


def counted(value: int, *, spelled: bool) -> Determiner:
    """two, twenty-five, 340."""
    word, german = (en.number(value), de.number(value)) if spelled else (f"{value}", f"{value}")
    return Determiner("", f"{word}_CD", german, "fixed", "strong")


def owned_by(name: str) -> Determiner:
    """Anna's."""
    return Determiner(f"{name}_NNP 's_POS", f"{name}_NNP 's_POS", de.genitive_name(name), "fixed", "strong")


@dataclass(frozen=True)
class Relative:
    """A relative clause: English tokens, German words in verb-final order, and the case of its pronoun."""

    english: tuple[Token, ...]
    german: tuple[str, ...]
    case: Case


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjectives, noun, relative clause."""

    determiner: Determiner
    noun: Noun
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    relative: Relative | None = None
    person: int = 3
    pronoun: bool = False

    @property
    def takes_kein(self) -> bool:
        return self.determiner in (A, NOTHING)

    def english(self, role: Role) -> list[Token]:
        rest = [Token(word.english, "JJ") for word in self.adjectives] + en.noun(self.noun, plural=self.plural)
        opening = self.determiner.english_plural if self.plural else self.determiner.english_singular
        if opening == "a":
            first = [en.article(rest[0].text)]
        else:
            first = [Token(token.text, token.tag, token.tag == "POS") for token in en.tagged(opening)]
        return [*first, *rest, *(self.relative.english if self.relative else ())]

    def german(self, case: Case, *, negated: bool = False) -> list[str]:
        determiner = NO if negated else self.determiner
        place = de.slot(self.noun.gender, plural=self.plural)
        words = determiner.german_word(place, case)
        words += [de.adjective(word, determiner.declension, place, case) for word in self.adjectives]
        words.append(de.noun(self.noun, case, plural=self.plural))
        if self.relative:
            words += [",", de.relative_pronoun(place, self.relative.case), *self.relative.german, ","]
        return words


@dataclass(frozen=True)
class Name:
    """A proper name: copied, but for "Mr.", which is inflected, and for cities with a German name."""

    words: str
    title: Literal["", "Mr.", "Mrs.", "Dr."] = ""
    person: int = 3
    plural: bool = False
    pronoun: bool = False
    takes_kein: bool = False

    def english(self, role: Role) -> list[Token]:
        return en.tokens(f"{self.title} {self.words}", "NNP")

    def german(self, case: Case, *, negated: bool = False) -> list[str]:
        mister = "Herr" if case == "nominative" else "Herrn"
        title = {"": [], "Mr.": [mister], "Mrs.": ["Frau"], "Dr.": ["Dr."]}[self.title]
        return [*title, *self.words.split()]


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun."""

    english_forms: tuple[str, str]  # subject, object
    german_forms: tuple[str, str, str]
    person: int
    plural: bool
    pronoun: bool = True
    takes_kein: bool = False

    def english(self, role: Role) -> list[Token]:
        return [Token(self.english_forms[role != "subject"], "PRP")]

    def german(self, case: Case, *, negated: bool = False) -> list[str]:
        return [self.german_forms[("nominative", "accusative", "dative").index(case)]]


PRONOUNS = (
    Pronoun(("I", "me"), ("ich", "mich", "mir"), 1, False),
    Pronoun(("he", "him"), ("er", "ihn", "ihm"), 3, False),
    Pronoun(("she", "her"), ("sie", "sie", "ihr"), 3, False),
    Pronoun(("we", "us"), ("wir", "uns", "uns"), 1, True),
    Pronoun(("they", "them"), ("sie", "sie", "ihnen"), 3, True),
    Pronoun(("you", "you"), ("du", "dich", "dir"), 2, False),
)


@dataclass(frozen=True)
class Pair:
    """Two phrases joined by "and": plural."""

    first: Nominal
    second: Nominal
    person: int = 3
    plural: bool = True
    pronoun: bool = False
    takes_kein: bool = False

    def english(self, role: Role) -> list[Token]:
        return [*self.first.english(role), Token("and", "CC"), *self.second.english(role)]

    def german(self, case: Case, *, negated: bool = False) -> list[str]:
        return [*self.first.german(case), "und", *self.second.german(case)]


@dataclass(frozen=True)
class Gap:
    """The empty position of a phrase that was moved to the front of a relative clause or question."""

    plural: bool = False
    person: int = 3
    pronoun: bool = False
    takes_kein: bool = False

    def english(self, role: Role) -> list[Token]:
        return []

    def german(self, case: Case, *, negated: bool = False) -> list[str]:
        return []


def prepositional(
    preposition: str, german_preposition: str, phrase: Nominal, case: Case
) -> tuple[list[Token], list[str]]:
    """A prepositional phrase in both languages; the English preposition is given with tags: ``next_JJ to_TO``."""
    english = [*en.tagged(preposition), *phrase.english("accusative")]
    return english, de.prepositional(german_preposition, phrase.german(case))
