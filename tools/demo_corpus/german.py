"""German inflection for the demo corpus: articles, adjectives, nouns, verbs, numbers, raw text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tools.demo_corpus.lexicon import Adjective, Gender, Noun, Verb

Case = Literal["nominative", "accusative", "dative"]
Slot = Literal["m", "n", "f", "p"]  # gender, or plural
Declension = Literal["weak", "mixed", "strong"]

_CASES: tuple[Case, ...] = ("nominative", "accusative", "dative")
_DEFINITE = {
    "m": ("der", "den", "dem"),
    "n": ("das", "das", "dem"),
    "f": ("die", "die", "der"),
    "p": ("die", "die", "den"),
}
_RELATIVE = {**_DEFINITE, "p": ("die", "die", "denen")}
_STRONG = {"m": ("er", "en", "em"), "n": ("es", "es", "em"), "f": ("e", "e", "er"), "p": ("e", "e", "en")}
_EIN = {"m": ("", "en", "em"), "n": ("", "", "em"), "f": ("e", "e", "er"), "p": ("e", "e", "en")}
_WEAK = {"m": ("e", "en", "en"), "n": ("e", "e", "en"), "f": ("e", "e", "en"), "p": ("en", "en", "en")}
_MIXED = {"m": ("er", "en", "en"), "n": ("es", "es", "en"), "f": ("e", "e", "en"), "p": ("en", "en", "en")}
_ADJECTIVE = {"weak": _WEAK, "mixed": _MIXED, "strong": _STRONG}

_IRREGULAR_PRESENT = {
    "sein": ("bin", "bist", "ist", "sind"),
    "haben": ("habe", "hast", "hat", "haben"),
    "werden": ("werde", "wirst", "wird", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
    "können": ("kann", "kannst", "kann", "können"),
    "müssen": ("muss", "musst", "muss", "müssen"),
    "wollen": ("will", "willst", "will", "wollen"),
    "sollen": ("sollte", "solltest", "sollte", "sollten"),  # subjunctive: should
    "dürfen": ("darf", "darfst", "darf", "dürfen"),
}
_PRETERITE = {"sein": ("war", "warst", "war", "waren"), "haben": ("hatte", "hattest", "hatte", "hatten")}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}
_UNITS = ("null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf")
_TENS = ("", "zehn", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def slot(gender: Gender, *, plural: bool) -> Slot:
    """The column of the declension tables."""
    return "p" if plural else gender


def definite_article(place: Slot, case: Case) -> str:
    """der, die, das ..."""
    return _DEFINITE[place][_CASES.index(case)]


def relative_pronoun(place: Slot, case: Case) -> str:
    """der, die, das, denen ..."""
    return _RELATIVE[place][_CASES.index(case)]


def like_der(stem: str, place: Slot, case: Case) -> str:
    """Determiners with the endings of the definite article: dies-, jed-, welch-, viel-."""
    return stem + _STRONG[place][_CASES.index(case)]


def like_ein(stem: str, place: Slot, case: Case) -> str:
    """Determiners with the endings of the indefinite article: ein, kein, mein ..."""
    return stem + _EIN[place][_CASES.index(case)]


def adjective(word: Adjective, declension: Declension, place: Slot, case: Case) -> str:
    """The attributive form."""
    return word.stem + _ADJECTIVE[declension][place][_CASES.index(case)]


def noun(word: Noun, case: Case, *, plural: bool) -> str:
    """The noun in its case and number."""
    if plural:
        takes_n = case == "dative" and not word.german_plural.endswith(("n", "s"))
        return word.german_plural + ("n" if takes_n else "")
    if word.weak and case != "nominative":
        return word.german_plural  # the oblique cases of the n-declension look like the plural
    return word.german


def compound(modifier: str, head: Noun, english: str) -> Noun:
    """A noun of two parts: written as one word in German, gender and inflection of the head."""
    return Noun(
        english=f"{english} {head.english}",
        english_plural=f"{english} {head.english_plural}",
        german=modifier + head.german.lower(),
        gender=head.gender,
        german_plural=modifier + head.german_plural.lower(),
        kind=head.kind,
        weak=head.weak,
    )


def genitive_name(name: str) -> str:
    """Annas, Thomas'."""
    return name + ("'" if name.endswith(("s", "x", "z", "ß")) else "s")


def present(infinitive: str, third: str | None, person: int, *, plural: bool) -> str:
    """Present tense of a verb without its separable prefix; ``third`` is the irregular third person singular."""
    forms = _IRREGULAR_PRESENT.get(infinitive)
    if forms:
        return forms[3 if plural else person - 1]
    if plural:
        return infinitive
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    if person == 1:
        return stem + "e"
    if person == 3 and third:
        return third
    if person == 2:
        stem = third[:-1] if third and third.endswith("t") else stem
    link = "e" if not (third and person == 2) and _needs_e(stem) else ""
    if person == 3:
        return stem + link + "t"
    return stem + link + ("t" if not link and stem.endswith(("s", "ß", "z", "x")) else "st")


def _needs_e(stem: str) -> bool:
    """True if -st and -t need a vowel before them: arbeitest, zeichnet, but wohnt."""
    return stem.endswith(("t", "d")) or (stem.endswith(("n", "m")) and stem[-2] not in "aeiouäöürlmnh")


def preterite(infinitive: str, person: int, *, plural: bool) -> str | None:
    """The simple past of "sein" and "haben"; None for other verbs, which take the perfect."""
    forms = _PRETERITE.get(infinitive)
    return forms[3 if plural else person - 1] if forms else None


def zu_infinitive(verb: Verb) -> list[str]:
    """zu kaufen, aufzumachen."""
    return [f"{verb.prefix}zu{verb.german}"] if verb.prefix else ["zu", verb.german]


def prepositional(preposition: str, phrase: Sequence[str]) -> list[str]:
    """A preposition before a noun phrase, with im, am, zum, zur, vom, beim."""
    joined = _CONTRACTIONS.get((preposition, phrase[0]))
    return [joined, *phrase[1:]] if joined else [preposition, *phrase]


def number(value: int) -> str:
    """The German number word, from 2 to 99: fünfundzwanzig."""
    if not 2 <= value <= 99:
        raise ValueError(f"no number word for {value}")
    if value <= 12:
        return _UNITS[value]
    ten, unit = divmod(value, 10)
    if ten == 1:
        return {6: "sech", 7: "sieb"}.get(unit, _UNITS[unit]) + "zehn"
    return (_UNITS[unit] + "und" if unit else "") + _TENS[ten]


def text(words: Sequence[str]) -> str:
    """Words and punctuation as raw text: punctuation attached, doubled commas merged, first letter upper case."""
    line = ""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if word == "," and following in {",", ".", "?"}:
            continue
        line += word if not line or word in {",", ".", "?"} else f" {word}"
    return line[:1].upper() + line[1:]
