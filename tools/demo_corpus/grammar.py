"""Random sentences of the demo corpus: statements, relative and subordinate clauses, questions, and their German."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tools.demo_corpus import english as en
from tools.demo_corpus import german as de
from tools.demo_corpus import lexicon
from tools.demo_corpus import phrases as ph
from tools.demo_corpus.clauses import Clause, phrase
from tools.demo_corpus.english import Tense, Token
from tools.demo_corpus.phrases import Gap, Nominal, NounPhrase, Relative
from tools.demo_corpus.random_phrases import RandomPhrases

_TENSES: tuple[tuple[float, Tense], ...] = (
    (7.0, "present"),
    (5.0, "past"),
    (1.5, "perfect"),
    (1.5, "future"),
    (1.5, "can"),
    (1.0, "must"),
    (0.8, "should"),
    (1.0, "want"),
    (0.5, "may"),
    (1.2, "progressive"),
)
_PAST: tuple[Tense, ...] = ("past", "perfect")
_AFTER = (("because", "weil"), ("when", "wenn"), ("although", "obwohl"), ("before", "bevor"), ("while", "während"))
_BEFORE = (("when", "wenn"), ("if", "falls"), ("because", "weil"), ("although", "obwohl"))


@dataclass(frozen=True)
class DemoSentence:
    """A sentence pair: raw English, its tokens with Penn tags, raw German."""

    source: str
    tokens: tuple[Token, ...]
    target: str


def sentences(seed: int) -> Iterator[DemoSentence]:
    """An endless stream of sentence pairs, with repetitions."""
    choices = RandomPhrases(seed)
    while True:
        english, german = choices.weighted(_SHAPES)(choices)
        tokens = en.capitalised(english)
        yield DemoSentence(en.text(tokens), tuple(tokens), de.text(german))


def distinct_sentences(seed: int) -> Iterator[DemoSentence]:
    """The stream without repetitions: the first sentence of every source."""
    seen: set[str] = set()
    for sentence in sentences(seed):
        if sentence.source not in seen:
            seen.add(sentence.source)
            yield sentence


_SentencePair = tuple[list[Token], list[str]]  # English and German


def _stop(english: Sequence[Token], german: Sequence[str], mark: str = ".") -> _SentencePair:
    return [*english, Token(mark, ".", attached=True)], [*german, mark]


# Clauses


def _tense(choices: RandomPhrases, verb: lexicon.Verb) -> Tense:
    tense = choices.weighted(_TENSES)
    if verb.stative and tense not in ("past", "perfect", "future"):
        return "present"
    if tense == "past" and verb.past == verb.base:  # "they read": present and past look alike
        return "perfect"
    return tense


def _verb(choices: RandomPhrases) -> lexicon.Verb:
    table = choices.weighted(
        ((10.0, lexicon.TRANSITIVE), (4.0, lexicon.INTRANSITIVE), (2.0, lexicon.DITRANSITIVE), (1.2, lexicon.DATIVE))
    )
    return choices.skewed(table)


def _bare_clause(choices: RandomPhrases, *, subject: Nominal | None = None, verb: lexicon.Verb | None = None) -> Clause:
    """A clause of subject, verb and objects, without adverbials that the verb does not require."""
    verb = verb or _verb(choices)
    subject = subject or choices.subject(verb.subject)
    tense = _tense(choices, verb)
    negated = choices.chance(0.12)
    clause = Clause(
        subject=subject,
        verb=verb,
        tense=tense,
        accusative=choices.object(verb.accusative, subject, negated=negated) if verb.accusative else None,
        dative=choices.object(verb.dative, subject, negated=negated) if verb.dative else None,
        negated=negated,
        contracted=choices.chance(0.5),
    )
    if verb.accusative and verb.dative:
        full = choices.noun_phrase(verb.accusative, simple=negated)  # "gives him it" is no English
        clause = replace(clause, accusative=full, dative_last=choices.chance(0.3))
    if verb.adverbial == "direction":
        return replace(clause, end=choices.direction())
    if verb.adverbial == "place" and (verb.stative or choices.chance(0.5)):
        return replace(clause, end=choices.place())
    return clause


def _state(choices: RandomPhrases, *, subject: Nominal | None = None) -> Clause:
    """A statement about a state: old, older than Anna, 34 years old."""
    subject = subject or choices.subject("PPA") if choices.chance(0.6) else choices.noun_phrase("TOLRVF")
    kind = subject.noun.kind if isinstance(subject, NounPhrase) else "P"
    fitting = [word for word in lexicon.ADJECTIVES if kind in word.kinds]
    word = choices.skewed(fitting)
    shape = choices.weighted(((5.0, "plain"), (2.0, "than"), (1.0 if kind == "P" else 0.0, "age")))
    if shape == "than":
        other = choices.name() if kind == "P" and choices.chance(0.4) else choices.noun_phrase(kind, simple=True)
        comparative = (
            [Token(word.english_comparative, "JJR")]
            if word.english_comparative
            else [Token("more", "RBR"), Token(word.english, "JJ")]
        )
        english = [*comparative, Token("than", "IN"), *other.english("subject")]
        predicate = phrase(english, [word.comparative, "als", *other.german("nominative")])
    elif shape == "age":
        years = choices.below(80) + 5
        predicate = phrase(en.tagged(f"{years}_CD years_NNS old_JJ"), [f"{years}", "Jahre", "alt"])
    else:
        very = choices.chance(0.2)
        english = [Token("very", "RB")] if very else []
        predicate = phrase([*english, Token(word.english, "JJ")], [*(["sehr"] if very else []), word.german])
    tense: Tense = "past" if choices.chance(0.25) else "present"
    negated = choices.chance(0.12)
    return Clause(subject, lexicon.BE, tense, end=predicate, negated=negated, contracted=choices.chance(0.5))


def _cost(choices: RandomPhrases) -> Clause:
    """The book costs 12.50 euros."""
    euros = choices.below(90) + 2
    cents = choices.one(("", "", ".50", ".99", ".20"))
    english, german = f"{euros}{cents}", f"{euros}{cents}".replace(".", ",")
    if choices.chance(0.3):
        thousands, rest = choices.below(20) + 1, f"{choices.below(20) * 50:03d}"
        english, german = f"{thousands},{rest}", f"{thousands}.{rest}"
    price = phrase(en.tagged(f"{english}_CD euros_NNS"), [german, "Euro"])
    return Clause(choices.noun_phrase("TOIVR", simple=True), lexicon.COST, "present", end=price)


def _with_adverbials(choices: RandomPhrases, clause: Clause, *, front: bool = True) -> Clause:
    """Add random adverbials of time, frequency, manner and place."""
    time = choices.time(clause.tense) if choices.chance(0.3) else None
    fronted = time is not None and front and choices.chance(0.5)
    clause = replace(clause, time=time, fronted=fronted)
    if time is None and not clause.negated and clause.tense in ("present", "past") and choices.chance(0.12):
        clause = replace(clause, frequency=choices.frequency())
    if clause.verb is lexicon.BE or clause.verb.stative:
        return clause
    if clause.frequency is None and choices.chance(0.12):
        clause = replace(clause, manner=choices.manner(beneficiary=clause.accusative is not None and not clause.dative))
    if clause.end is None and clause.verb.adverbial != "direction" and choices.chance(0.12):
        clause = replace(clause, end=choices.place())
    return clause


def _short_clause(choices: RandomPhrases, *, beside: Clause | None = None) -> Clause:
    """A clause for sentences of two clauses; both are in a past tense, or neither is."""
    clause = _state(choices) if choices.chance(0.2) else _bare_clause(choices)
    if beside and (beside.tense in _PAST) != (clause.tense in _PAST):
        past: Tense = "perfect" if clause.verb.past == clause.verb.base else "past"
        clause = replace(clause, tense=past if beside.tense in _PAST else "present")
    time = choices.time(clause.tense) if choices.chance(0.15) else None
    return replace(clause, time=time)


# Sentences


def _statement(choices: RandomPhrases) -> _SentencePair:
    clause = (
        _cost(choices) if choices.chance(0.04) else _state(choices) if choices.chance(0.15) else _bare_clause(choices)
    )
    if clause.verb is not lexicon.COST:
        clause = _with_adverbials(choices, clause)
    return _stop(clause.english(), clause.german())


def _relative(choices: RandomPhrases, phrase_: NounPhrase) -> NounPhrase:
    """The noun phrase with a relative clause: who sees the dog, that the man buys."""
    kind = phrase_.noun.kind
    pronoun = Token("who", "WP") if kind == "P" else Token("that", "WDT")
    verbs = [verb for verb in lexicon.TRANSITIVE if kind in verb.accusative]
    gap = Gap(plural=phrase_.plural)
    if kind in "PA" and (choices.chance(0.6) or not verbs):
        clause = _bare_clause(choices, subject=gap, verb=_verb(choices) if kind == "P" else choices.one(_ANIMAL_VERBS))
        case: de.Case = "nominative"
    else:
        clause = replace(_bare_clause(choices, subject=choices.subject("P"), verb=choices.one(verbs)), accusative=gap)
        pronoun, case = Token("that", "WDT"), "accusative"
    relative = Relative(tuple(clause.english([pronoun])), tuple(clause.german_last()), case)
    return replace(phrase_, relative=relative)


_ANIMAL_VERBS = tuple(verb for verb in (*lexicon.TRANSITIVE, *lexicon.INTRANSITIVE) if "A" in verb.subject)


def _with_relative(choices: RandomPhrases) -> _SentencePair:
    clause = _state(choices) if choices.chance(0.15) else _bare_clause(choices)
    if choices.chance(0.5) and isinstance(clause.subject, NounPhrase):
        clause = replace(clause, subject=_relative(choices, clause.subject))
    elif isinstance(clause.accusative, NounPhrase) and not clause.dative_last:
        # Nothing may follow the object: it could belong to the relative clause.
        clause = replace(clause, accusative=_relative(choices, clause.accusative), end=None)
    time = choices.time(clause.tense) if choices.chance(0.3) else None
    clause = replace(clause, time=time, fronted=time is not None)
    return _stop(clause.english(), clause.german())


def _subordinate_after(choices: RandomPhrases) -> _SentencePair:
    main = _short_clause(choices)
    english, german = _subordinate(choices.skewed(_AFTER), _short_clause(choices, beside=main))
    return _stop([*main.english(), *english], [*main.german(), ",", *german])


def _subordinate_before(choices: RandomPhrases) -> _SentencePair:
    main = _short_clause(choices)
    english, german = _subordinate(choices.skewed(_BEFORE), _short_clause(choices, beside=main))
    return _stop([*english, Token(",", ",", attached=True), *main.english()], main.german(front=[*german, ","]))


def _subordinate(conjunction: tuple[str, str], clause: Clause) -> _SentencePair:
    english, german = conjunction
    if english == "when" and clause.tense == "past":
        german = "als"  # once, in the past
    token = Token(english, "WRB" if english == "when" else "IN")
    return clause.english([token]), [german, *clause.german_last()]


def _complement(choices: RandomPhrases) -> _SentencePair:
    """Anna says that the man has bought the house."""
    main = _bare_clause(choices, verb=choices.skewed(lexicon.SAYING))
    inner = _short_clause(choices)
    return _stop(
        [*main.english(), *inner.english([Token("that", "IN")])], [*main.german(), ",", "dass", *inner.german_last()]
    )


def _infinitive(choices: RandomPhrases) -> _SentencePair:
    """Anna tries to open the door."""
    main = _bare_clause(choices, verb=choices.skewed(lexicon.TRYING))
    time = choices.time(main.tense) if choices.chance(0.2) else None
    main = replace(main, time=time, fronted=time is not None)
    inner = replace(_bare_clause(choices, subject=main.subject), negated=False, tense="present")
    return _stop([*main.english(), *inner.english_infinitive()], [*main.german(), ",", *inner.german_infinitive()])


def _coordination(choices: RandomPhrases) -> _SentencePair:
    first = _short_clause(choices)
    second = _short_clause(choices, beside=first)
    if choices.chance(0.5):
        english, german = [Token("and", "CC")], ["und"]
    else:
        english, german = [Token(",", ",", attached=True), Token("but", "CC")], [",", "aber"]
    return _stop([*first.english(), *english, *second.english()], [*first.german(), *german, *second.german()])


def _existence(choices: RandomPhrases) -> _SentencePair:
    """There is a dog in the garden."""
    thing = choices.noun_phrase("PATOLVF")
    thing = replace(thing, determiner=ph.A if not thing.plural else choices.one((ph.NOTHING, ph.MANY, ph.SOME)))
    place, negated = choices.place(), choices.chance(0.15)
    if thing.determiner not in (ph.A, ph.NOTHING):
        negated = False
    english = thing if not negated else replace(thing, determiner=ph.NO)
    be = en.be(3, plural=thing.plural)
    tokens = [Token("there", "EX"), be, *english.english("subject"), *place.english]
    return _stop(tokens, ["es", "gibt", *thing.german("accusative", negated=negated), *place.german])


def _question(choices: RandomPhrases) -> _SentencePair:
    clause = _state(choices) if choices.chance(0.2) else _bare_clause(choices)
    clause = replace(
        clause, negated=clause.negated and clause.contracted and clause.tense not in ("can", "must", "may")
    )
    if clause.negated and (clause.tense == "future" or clause.subject.english("subject")[0].text == "I"):
        clause = replace(clause, negated=False)
    time = choices.time(clause.tense) if choices.chance(0.2) else None
    clause = replace(clause, time=time)
    return _stop(clause.english_question(), clause.german_question(), "?")


def _asked(choices: RandomPhrases, clause: Clause, english: list[Token], german: list[str]) -> _SentencePair:
    """A question with a question word that is neither subject nor its determiner."""
    clause = replace(clause, negated=False)
    return _stop(clause.english_question(english), clause.german(front=german), "?")


def _object_question(choices: RandomPhrases) -> _SentencePair:
    """A question about the object: what, which book, how many books does Anna buy?"""
    verb = choices.skewed([verb for verb in lexicon.TRANSITIVE if set(verb.accusative) & set("TORLFV")])
    clause = _bare_clause(choices, verb=verb)
    kinds = "".join(kind for kind in verb.accusative if kind in "TORLFV")
    asked = choices.noun_phrase(kinds, determiner=ph.WHICH)
    shape = choices.one(("what", "which", "many"))
    if shape == "many":
        asked = replace(asked, determiner=ph.HOW_MANY, plural=True)
    english = [Token("what", "WP")] if shape == "what" else asked.english("accusative")
    german = ["was"] if shape == "what" else asked.german("accusative")
    return _asked(choices, replace(clause, accusative=Gap()), english, german)


def _adverb_question(choices: RandomPhrases) -> _SentencePair:
    """Why, where, when, how does the child sleep?"""
    clause = _bare_clause(choices)
    word, german = choices.skewed((("why", "warum"), ("where", "wo"), ("when", "wann"), ("how", "wie")))
    if word in ("where", "how"):
        clause = replace(clause, end=None)
    return _asked(choices, clause, [Token(word, "WRB")], [german])


def _subject_question(choices: RandomPhrases) -> _SentencePair:
    """Who has bought the house?"""
    clause = _bare_clause(choices, subject=Gap())
    return _stop(clause.english([Token("who", "WP")]), clause.german(front=["wer"]), "?")


Shape = Callable[[RandomPhrases], _SentencePair]
_SHAPES: tuple[tuple[float, Shape], ...] = (
    (48.0, _statement),
    (9.0, _with_relative),
    (8.0, _subordinate_after),
    (6.0, _subordinate_before),
    (6.0, _complement),
    (5.0, _infinitive),
    (4.0, _coordination),
    (3.0, _existence),
    (5.0, _question),
    (3.0, _object_question),
    (2.0, _adverb_question),
    (2.0, _subject_question),
)
