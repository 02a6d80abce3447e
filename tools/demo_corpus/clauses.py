"""Clauses of the demo corpus: English order, and the three German orders (verb second, first, last)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.demo_corpus import english as en
from tools.demo_corpus import german as de
from tools.demo_corpus.english import Tense, Token
from tools.demo_corpus.lexicon import Verb
from tools.demo_corpus.phrases import Nominal

_MODALS = {"can": "können", "must": "müssen", "should": "sollen", "want": "wollen", "may": "dürfen", "future": "werden"}


@dataclass(frozen=True)
class Phrase:
    """An adverbial or a predicate in both languages."""

    english: tuple[Token, ...]
    german: tuple[str, ...]


def phrase(english: Sequence[Token], german: Sequence[str]) -> Phrase:
    """A phrase from any sequences."""
    return Phrase(tuple(english), tuple(german))


@dataclass(frozen=True)
class Clause:
    """A verb with its subject, objects and adverbials; ``end`` is a place, a direction or a predicate."""

    subject: Nominal
    verb: Verb
    tense: Tense
    accusative: Nominal | None = None
    dative: Nominal | None = None
    time: Phrase | None = None
    fronted: bool = False  # time stands first, in both languages
    frequency: Phrase | None = None
    manner: Phrase | None = None
    end: Phrase | None = None
    negated: bool = False
    contracted: bool = False  # doesn't rather than does not
    dative_last: bool = False  # gives a book to the woman

    # English

    def english(self, opening: Sequence[Token] = ()) -> list[Token]:
        """The statement, after ``opening`` (a relative pronoun, a conjunction)."""
        forms = self._english_verb(question=False)
        front = [*self.time.english, Token(",", ",", attached=True)] if self.time and self.fronted else []
        subject = self.subject.english("subject")
        return [*opening, *front, *subject, *forms.auxiliaries, *self._after_auxiliaries(forms)]

    def english_question(self, opening: Sequence[Token] = ()) -> list[Token]:
        """The question, with the question word in ``opening``."""
        forms = self._english_verb(question=True)
        together = 2 if self.contracted and self.negated else 1
        auxiliaries = forms.auxiliaries
        subject = self.subject.english("subject")
        inverted = [*auxiliaries[:together], *subject, *auxiliaries[together:]]
        return [*opening, *inverted, *self._after_auxiliaries(forms)]

    def english_infinitive(self) -> list[Token]:
        """to buy the house."""
        particle = [Token(self.verb.particle, "IN")] if self.verb.particle else []
        return [Token("to", "TO"), Token(self.verb.base, "VB"), *particle, *self._english_complements()]

    def _english_verb(self, *, question: bool) -> en.VerbForms:
        return en.verb_forms(
            self.verb,
            self.tense,
            self.subject.person,
            plural=self.subject.plural,
            negated=self.negated,
            contracted=self.contracted,
            question=question,
        )

    def _after_auxiliaries(self, forms: en.VerbForms) -> list[Token]:
        frequency = self.frequency.english if self.frequency else ()
        return [*frequency, *forms.main, *self._english_complements()]

    def _english_complements(self) -> list[Token]:
        dative = self.dative.english("dative") if self.dative else []
        accusative = self.accusative.english("accusative") if self.accusative else []
        objects = [*accusative, Token("to", "TO"), *dative] if dative and self.dative_last else [*dative, *accusative]
        time = self.time if not self.fronted else None
        rest = [part.english for part in (self.manner, self.end, time) if part]
        return [*objects, *(token for part in rest for token in part)]

    # German

    def german(self, front: Sequence[str] | None = None) -> list[str]:
        """The verb-second clause: ``front``, the fronted time or the subject precedes the verb."""
        finite, prefix, tail = self._german_verb()
        if front is not None:
            first, subject = list(front), self.subject.german("nominative")
        elif self.time and self.fronted:
            first, subject = list(self.time.german), self.subject.german("nominative")
        else:
            first, subject = self.subject.german("nominative"), []
        time = None if front is None and self.fronted else self.time
        return [*first, finite, *self._middle(subject, time), *tail, *prefix]

    def german_question(self) -> list[str]:
        """The verb-first clause."""
        return self.german(front=())

    def german_last(self) -> list[str]:
        """The verb-last clause, for subordinate clauses."""
        finite, prefix, tail = self._german_verb()
        verbs = ["".join([*prefix, finite])] if prefix else [*tail, finite]
        return [*self._middle(self.subject.german("nominative"), self.time), *verbs]

    def german_infinitive(self) -> list[str]:
        """das Haus zu kaufen."""
        return [*self._middle([], self.time), *de.zu_infinitive(self.verb)]

    def _german_verb(self) -> tuple[str, list[str], list[str]]:
        """The finite form, the separated prefix, and the infinite forms at the end of the clause."""
        verb, person, plural = self.verb, self.subject.person, self.subject.plural
        infinitive = verb.prefix + verb.german
        if self.tense in _MODALS:
            modal = "dürfen" if self.tense == "must" and self.negated else _MODALS[self.tense]
            return de.present(modal, None, person, plural=plural), [], [infinitive]
        past = de.preterite(verb.german, person, plural=plural) if self.tense == "past" else None
        if past:
            return past, [], []
        if self.tense in ("past", "perfect"):
            return de.present(verb.auxiliary, None, person, plural=plural), [], [verb.german_participle]
        finite = de.present(verb.german, verb.german_third, person, plural=plural)
        return finite, [verb.prefix] if verb.prefix else [], []

    def _middle(self, subject: list[str], time: Phrase | None) -> list[str]:
        """The words between the two verb positions: subject, pronouns, time, objects, negation, other adverbials."""
        kein = self.negated and self.accusative is not None and self.accusative.takes_kein
        accusative = self.accusative.german("accusative", negated=kein) if self.accusative else []
        dative = self.dative.german("dative") if self.dative else []
        pronoun_accusative = self.accusative is not None and self.accusative.pronoun
        pronoun_dative = self.dative is not None and self.dative.pronoun
        parts = [
            subject,
            accusative if pronoun_accusative else [],
            dative if pronoun_dative else [],
            ["gerade"] if self.tense == "progressive" else [],
            time.german if time else (),
            self.frequency.german if self.frequency else (),
            [] if pronoun_dative else dative,
            [] if pronoun_accusative else accusative,
            ["nicht"] if self.negated and not kein else [],
            self.manner.german if self.manner else (),
            self.end.german if self.end else (),
        ]
        return [word for part in parts for word in part]
