"""The vocabulary of the demo corpus: the tables of lexicon.txt as typed entries; irregular forms are written out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Gender = Literal["m", "n", "f"]

# Kinds of nouns: P person, A animal, F countable food, M uncountable food, D drink, R something to read, T thing,
# O something to open, I musical instrument, V vehicle, L place.


@dataclass(frozen=True)
class Noun:
    """A noun of both languages; ``english`` may be several words, of which the last one is inflected."""

    english: str
    english_plural: str
    german: str
    gender: Gender
    german_plural: str
    kind: str
    weak: bool = False  # n-declension: der Student, den Studenten

    @property
    def mass(self) -> bool:
        """True for uncountable nouns, without plural and indefinite article."""
        return self.kind in "MD"


@dataclass(frozen=True)
class Adjective:
    """An adjective: German ``stem`` takes the endings, ``german`` is the predicative form."""

    english: str
    english_comparative: str | None  # None: "more ..."
    german: str
    stem: str
    comparative: str
    kinds: str  # kinds of nouns that it can modify


@dataclass(frozen=True)
class Verb:
    """A verb with its frame: kinds of nouns for subject, accusative object and dative object ("": none)."""

    base: str
    past: str
    participle: str
    gerund: str
    german: str  # infinitive without a separable prefix
    prefix: str  # separable prefix, or ""
    german_third: str | None  # third person singular where it is irregular
    german_participle: str
    auxiliary: Literal["haben", "sein"]
    particle: str = ""  # English preposition that belongs to the verb: look for
    subject: str = "P"
    accusative: str = ""
    dative: str = ""
    adverbial: str = ""  # "place" or "direction", if the verb takes one
    stative: bool = False  # no progressive


@dataclass(frozen=True)
class Modifier:
    """The first part of a compound: its English word, the German form with its linking element, kinds of heads."""

    english: str
    german: str
    kinds: str


def _read_tables(path: Path) -> dict[str, str]:
    """Read the tables of a file by their headings in brackets; lines that begin with # are comments."""
    tables: dict[str, list[str]] = {}
    rows: list[str] = []
    for line in path.read_bytes().decode("utf-8").split("\n"):
        if line.startswith("["):
            rows = tables.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            rows.append(line)
    return {name: "\n".join(table) for name, table in tables.items()}


_TABLES = _read_tables(Path(__file__).with_name("lexicon.txt"))


def _regular_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh", "z")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _nouns(table: str) -> dict[str, tuple[Noun, ...]]:
    """Rows ``english[/plural] German gender Plural`` under headings ``kind:``; ``+`` after the gender: n-declension."""
    kinds: dict[str, list[Noun]] = {}
    kind = ""
    for row in table.strip().split("\n"):
        name, _, entries = row.partition(":")
        kind = name.strip()
        for entry in entries.split(","):
            word, german, gender, german_plural = entry.split()
            english, _, plural = word.partition("/")
            weak = gender.endswith("+")
            noun = Noun(
                english, plural or _regular_plural(english), german, _gender(gender[0]), german_plural, kind, weak
            )
            kinds.setdefault(kind, []).append(noun)
    return {kind: tuple(nouns) for kind, nouns in kinds.items()}


def _gender(letter: str) -> Gender:
    if letter == "m":
        return "m"
    return "n" if letter == "n" else "f"


NOUNS = _nouns(_TABLES["nouns"])


def _modifiers(table: str) -> tuple[Modifier, ...]:
    return tuple(Modifier(*entry.split()) for entry in table.replace("\n", " ").split(","))


MODIFIERS = _modifiers(_TABLES["modifiers"])

_GOODS = "TORIV"


def _adjectives(table: str) -> tuple[Adjective, ...]:
    """Rows ``english[/comparative] german[/stem[/comparative]] kinds``; no English comparative: "more ..."."""
    adjectives = []
    for entry in table.replace("\n", " ").split(","):
        english, german, kinds = entry.split()
        word, _, comparative = english.partition("/")
        forms = german.split("/")
        stem = forms[1] if len(forms) > 1 and forms[1] else forms[0]
        german_comparative = forms[2] if len(forms) > 2 else stem + "er"
        kinds = kinds.replace("G", _GOODS)
        adjectives.append(Adjective(word, comparative or None, forms[0], stem, german_comparative, kinds))
    return tuple(adjectives)


ADJECTIVES = _adjectives(_TABLES["adjectives"])


def _past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"


def _verbs(table: str) -> tuple[Verb, ...]:
    """Rows ``english | German | frame``.

    English: ``base [past participle [gerund]]``, a particle after ``+``. German: ``[prefix+]infinitive [third person]
    participle [*]`` with ``*`` for the auxiliary "sein". Frame: ``s:kinds`` subject, ``a:kinds`` accusative object,
    ``d:kinds`` dative object, ``place`` or ``direction``, ``stative``.
    """
    verbs = []
    for row in table.strip().split("\n"):
        english, german, frame = (field.split() for field in row.split("|"))
        base, _, particle = english[0].partition("+")
        past, participle = english[1:3] if len(english) > 2 else (_past(base), _past(base))
        gerund = (
            english[3] if len(english) > 3 else (base[:-1] if base.endswith("e") and base[-2] != "e" else base) + "ing"
        )
        auxiliary: Literal["haben", "sein"] = "sein" if german[-1] == "*" else "haben"
        forms = [form for form in german if form != "*"]
        prefix, _, infinitive = forms[0].rpartition("+")
        options = dict(item.partition(":")[::2] for item in frame)
        accusative = options.get("a", "").replace("G", _GOODS)
        verb = Verb(
            base=base,
            past=past,
            participle=participle,
            gerund=gerund,
            particle=particle,
            german=infinitive,
            prefix=prefix,
            german_third=forms[1] if len(forms) > 2 else None,
            german_participle=forms[-1],
            auxiliary=auxiliary,
            subject=options.get("s", "P"),
            accusative=accusative,
            dative=options.get("d", ""),
            adverbial=next((kind for kind in ("place", "direction") if kind in options), ""),
            stative="stative" in options,
        )
        verbs.append(verb)
    return tuple(verbs)


TRANSITIVE = _verbs(_TABLES["transitive verbs"])
DATIVE = _verbs(_TABLES["dative verbs"])
DITRANSITIVE = _verbs(_TABLES["ditransitive verbs"])
INTRANSITIVE = _verbs(_TABLES["intransitive verbs"])
SAYING = _verbs(_TABLES["saying verbs"])
TRYING = _verbs(_TABLES["trying verbs"])
BE = _verbs(_TABLES["be verb"])[0]
COST = _verbs(_TABLES["cost verb"])[0]


# Names, dates and adverbs


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """``English=German`` items; a word alone is the same in both languages."""
    pairs = (item.partition("=") for item in text.split())
    return tuple((english, german or english) for english, _, german in pairs)


FIRST_NAMES = _words(_TABLES["first names"])
# Surnames are composed, so that the test set has names that are not in the training set and must be copied.
SURNAME_STARTS = _words(_TABLES["surname starts"])
SURNAME_ENDS = _words(_TABLES["surname ends"])
CITIES = _pairs(_TABLES["cities"])
WEEKDAYS = _pairs(_TABLES["weekdays"])
MONTHS = _pairs(_TABLES["months"])
PERIODS = _pairs(_TABLES["periods"])  # German dative, as after "vor"
FREQUENCIES = _pairs(_TABLES["frequencies"])
MANNERS = _pairs(_TABLES["manners"])
