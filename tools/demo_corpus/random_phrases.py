"""Random nouns, phrases and adverbials for the demo corpus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tools.demo_corpus import english as en
from tools.demo_corpus import german as de
from tools.demo_corpus import lexicon
from tools.demo_corpus import phrases as ph
from tools.demo_corpus.clauses import Phrase, phrase
from tools.demo_corpus.english import Tense
from tools.demo_corpus.lexicon import Adjective, Noun
from tools.demo_corpus.phrases import Determiner, Name, Nominal, NounPhrase

T = TypeVar("T")

_COMPOUND_KINDS = frozenset("TORL")
_FIRST_OF_TWO = frozenset(("big", "small", "beautiful", "expensive", "cheap"))  # never together: no "big small"
_SKEW = 1.6  # words at the start of a list are chosen more often, as in real text


class RandomPhrases:
    """A source of random phrases. It only uses ``random.Random.random``, whose sequence Python guarantees."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    # Plain choices

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def below(self, limit: int) -> int:
        """An integer from 0 to ``limit`` - 1."""
        return int(self._random.random() * limit)

    def one(self, options: Sequence[T]) -> T:
        """One of the options, all equally probable."""
        return options[self.below(len(options))]

    def skewed(self, options: Sequence[T]) -> T:
        """One of the options, earlier ones more often."""
        return options[int(len(options) * self._random.random() ** _SKEW)]

    def weighted(self, options: Sequence[tuple[float, T]]) -> T:
        """One of the options, with the given weights."""
        point = self._random.random() * sum(weight for weight, _ in options)
        for weight, option in options:
            point -= weight
            if point < 0:
                return option
        return options[-1][1]

    # Names and nouns

    def first_name(self) -> str:
        """A first name."""
        return self.skewed(lexicon.FIRST_NAMES)

    def name(self) -> Name:
        """A person's name."""
        if self.chance(0.65):
            return Name(self.first_name())
        surname = self.one(lexicon.SURNAME_STARTS) + self.one(lexicon.SURNAME_ENDS)
        title = self.weighted(((4.0, "Mr."), (4.0, "Mrs."), (1.0, "Dr."), (2.0, "")))
        if title == "Mr.":
            return Name(surname, "Mr.")
        if title == "Mrs.":
            return Name(surname, "Mrs.")
        if title == "Dr.":
            return Name(surname, "Dr.")
        return Name(f"{self.first_name()} {surname}")

    def noun(self, kind: str) -> Noun:
        """A noun of this kind, sometimes a compound."""
        head = self.skewed(lexicon.NOUNS[kind])
        if kind in _COMPOUND_KINDS and self.chance(0.22):
            modifier = self.skewed([word for word in lexicon.MODIFIERS if kind in word.kinds])
            if not any(part in head.english for part in modifier.english.split("-")):
                return de.compound(modifier.german, head, modifier.english)
        return head

    # Noun phrases

    def _determiner(self, noun: Noun, *, plural: bool, simple: bool) -> Determiner:
        if noun.mass:
            return self.weighted(((3, ph.THE), (4, ph.NOTHING), (1, self.one(ph.POSSESSIVES))))
        options = [
            (10.0, ph.THE),
            (2.0, ph.THIS),
            (3.0, self.skewed(ph.POSSESSIVES)),
            (1.2, ph.owned_by(self.first_name())),
        ]
        options.append((2.5, ph.NOTHING) if plural else (7.0, ph.A))
        if not simple:
            if plural:
                value = self.below(11) + 2 if self.chance(0.7) else self.below(87) + 13
                options += [(2.0, ph.counted(value, spelled=value < 13 or self.chance(0.5)))]
                options += [(1.0, ph.MANY), (1.0, ph.SOME)]
            else:
                options.append((0.8, ph.EVERY))
        return self.weighted(options)

    def noun_phrase(self, kinds: str, *, simple: bool = False, determiner: Determiner | None = None) -> NounPhrase:
        """A noun phrase; ``simple``: without quantities, which do not fit negation."""
        noun = self.noun(self.one(kinds))
        plural = not noun.mass and self.chance(0.25)
        if determiner is None:
            determiner = self._determiner(noun, plural=plural, simple=simple)
        fitting = [word for word in lexicon.ADJECTIVES if noun.kind in word.kinds]
        adjectives = []
        if fitting and self.chance(0.3):
            adjectives.append(self.skewed(fitting))
            if adjectives[0].english in _FIRST_OF_TWO and self.chance(0.4):
                adjectives += self._second_adjective(fitting)
        return NounPhrase(determiner, noun, plural, tuple(adjectives))

    def _second_adjective(self, fitting: Sequence[Adjective]) -> list[Adjective]:
        return [self.skewed([word for word in fitting if word.english not in _FIRST_OF_TWO])]

    def subject(self, kinds: str, *, pronouns: bool = True) -> Nominal:
        """A subject of these kinds of nouns."""
        if self.one(kinds) != "P":
            return self.noun_phrase("A")
        shape = self.weighted(((5.0, "noun"), (3.0, "name"), (3.0 if pronouns else 0.0, "pronoun"), (0.7, "pair")))
        if shape == "name":
            return self.name()
        if shape == "pronoun":
            return self.one(ph.PRONOUNS)
        if shape == "pair":
            first, second = self.name(), self.name()
            together = self.chance(0.5) and second != first
            return ph.Pair(first, second if together else self.noun_phrase("P", simple=True))
        return self.noun_phrase("P")

    def object(self, kinds: str, subject: Nominal, *, negated: bool) -> Nominal:
        """An object of these kinds of nouns, but never a pronoun of the subject's own person."""
        kind = self.one(kinds)
        if kind == "P":
            shape = self.weighted(((6.0, "noun"), (2.0, "name"), (2.0, "pronoun")))
            if shape == "name":
                return self.name()
            if shape == "pronoun":
                others = [pronoun for pronoun in ph.PRONOUNS if subject.person == 3 or pronoun.person != subject.person]
                return self.one(others)
        return self.noun_phrase(kind, simple=negated)

    # Adverbials

    def place(self) -> Phrase:
        """A place: in the garden, behind the old house, in Vienna."""
        if self.chance(0.25):
            english, german = self.skewed(lexicon.CITIES)
            return phrase(en.tagged(f"in_IN {english}_NNP"), ["in", german])
        prepositions = (
            (6.0, ("in_IN", "in")),
            (1.0, ("behind_IN", "hinter")),
            (1.0, ("near_IN", "bei")),
            (1.0, ("next_JJ to_TO", "neben")),
        )
        english, german = self.weighted(prepositions)
        return phrase(*ph.prepositional(english, german, self.noun_phrase("L", simple=True), "dative"))

    def direction(self) -> Phrase:
        """A direction: to the station, to Vienna."""
        if self.chance(0.35):
            english, german = self.skewed(lexicon.CITIES)
            return phrase(en.tagged(f"to_TO {english}_NNP"), ["nach", german])
        return phrase(*ph.prepositional("to_TO", "zu", self.noun_phrase("PLLL", simple=True), "dative"))

    def manner(self, *, beneficiary: bool) -> Phrase:
        """An adverb of manner, a companion or a beneficiary."""
        shape = self.weighted(((3.0, "adverb"), (2.0, "with"), (2.0 if beneficiary else 0.0, "for")))
        if shape == "adverb":
            english, german = self.skewed(lexicon.MANNERS)
            return phrase(en.tokens(english, "RB"), [german])
        companion = self.noun_phrase("P", simple=True) if self.chance(0.7) else self.name()
        if shape == "with":
            return phrase(*ph.prepositional("with_IN", "mit", companion, "dative"))
        return phrase(*ph.prepositional("for_IN", "für", companion, "accusative"))

    def frequency(self) -> Phrase:
        """An adverb of frequency: often, never."""
        english, german = self.skewed(lexicon.FREQUENCIES)
        return phrase(en.tokens(english, "RB"), [german])

    def time(self, tense: Tense) -> Phrase | None:
        """A time that fits the tense; None for tenses without one."""
        if tense == "past":
            return self._past_time()
        if tense == "perfect":
            return phrase(en.tagged("today_NN"), ["heute"])
        if tense == "progressive":
            return None
        options = ["today_NN|heute", "every_DT day_NN|jeden Tag", "in_IN the_DT evening_NN|am Abend"]
        if tense != "present":
            period, german = self.one(lexicon.PERIODS)
            value = self.below(10) + 2
            options += ["tomorrow_NN|morgen", "tomorrow_NN|morgen"]
            options += [f"in_IN {en.number(value)}_CD {period}_NNS|in {de.number(value)} {german}"]
        english, day = self.one(lexicon.WEEKDAYS)
        options.append(f"on_IN {english}_NNP|am {day}")
        clock = f"{self.below(23) + 1}:{self.one(('00', '15', '30', '45'))}"
        options.append(f"at_IN {clock}_CD|um {clock} Uhr")
        return _phrase(self.skewed(options))

    def _past_time(self) -> Phrase:
        shape = self.weighted(((3.0, "yesterday"), (1.0, "ago"), (1.0, "year"), (1.0, "date"), (1.0, "day")))
        if shape == "ago":
            value = self.below(24) + 2
            period, german = self.one(lexicon.PERIODS)
            return _phrase(f"{en.number(value)}_CD {period}_NNS ago_RB|vor {de.number(value)} {german}")
        if shape == "year":
            year = 1900 + self.below(125)
            return _phrase(f"in_IN {year}_CD|im Jahr {year}")
        if shape == "date":
            month, monat = self.one(lexicon.MONTHS)
            day = self.below(28) + 1
            return _phrase(f"on_IN {month}_NNP {day}_CD|am {day}. {monat}")
        if shape == "day":
            english, german = self.one(lexicon.WEEKDAYS)
            return _phrase(f"on_IN {english}_NNP|am {german}")
        return _phrase("yesterday_NN|gestern")


def _phrase(entry: str) -> Phrase:
    english, _, german = entry.partition("|")
    return phrase(en.tagged(english), german.split())
