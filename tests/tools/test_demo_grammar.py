"""The grammar of the demo corpus: the shipped sentences, one translation a source, right German."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from sparsenmt.data.demo_corpus import SENTENCES
from tools.demo_corpus import english, german, lexicon, phrases
from tools.demo_corpus.__main__ import command
from tools.demo_corpus.clauses import Clause, phrase
from tools.demo_corpus.english import Token
from tools.demo_corpus.grammar import DemoSentence, sentences
from tools.demo_corpus.sentence_file import packed_line

# The file


def test_the_shipped_sentences_are_the_grammars(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--output", str(tmp_path / "sentences.gz")], catch_exceptions=False)
    assert done.exit_code == 0
    written = (tmp_path / "sentences.gz").read_bytes()
    # Versions of zlib compress differently: the content is compared.
    assert gzip.decompress(written) == gzip.decompress(SENTENCES.read_bytes()), "run: make demo-corpus"
    assert written[:10] == SENTENCES.read_bytes()[:10] == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"  # no name, no time


def test_another_seed_gives_other_sentences() -> None:
    first, second = (list(islice(sentences(seed), 100)) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("text", ["a~b", "a b", "a\tb"])
def test_a_token_contains_no_separator(text: str) -> None:
    with pytest.raises(ValueError, match="separator"):
        packed_line(DemoSentence(text, (Token(text, "NN"),), "a"))


@pytest.mark.thorough
def test_every_source_has_one_translation() -> None:
    translations: dict[str, str] = {}
    for sentence in islice(sentences(seed=3), 20_000):
        assert translations.setdefault(sentence.source, sentence.target) == sentence.target
    assert len(translations) > 15_000


# German


def noun(kind: str, name: str) -> lexicon.Noun:
    return next(word for word in lexicon.NOUNS[kind] if word.english == name)


def adjective(name: str) -> lexicon.Adjective:
    return next(word for word in lexicon.ADJECTIVES if word.english == name)


def verb(table: tuple[lexicon.Verb, ...], base: str) -> lexicon.Verb:
    return next(word for word in table if word.base == base)


@pytest.mark.parametrize(
    ("determiner", "adjective_", "noun_", "plural", "forms"),
    [
        (phrases.THE, "old", ("P", "man"), False, "der alte Mann, den alten Mann, dem alten Mann"),
        (phrases.A, "old", ("P", "man"), False, "ein alter Mann, einen alten Mann, einem alten Mann"),
        (phrases.A, "small", ("P", "child"), False, "ein kleines Kind, ein kleines Kind, einem kleinen Kind"),
        (
            phrases.THIS,
            "sad",
            ("P", "woman"),
            True,
            "diese traurigen Frauen, diese traurigen Frauen, diesen traurigen Frauen",
        ),
        (phrases.NOTHING, "cold", ("D", "water"), False, "kaltes Wasser, kaltes Wasser, kaltem Wasser"),
        (phrases.NOTHING, "old", ("P", "man"), True, "alte Männer, alte Männer, alten Männern"),
        (phrases.MANY, "old", ("A", "dog"), True, "viele alte Hunde, viele alte Hunde, vielen alten Hunden"),
        (phrases.THE, "young", ("P", "boy"), False, "der junge Junge, den jungen Jungen, dem jungen Jungen"),
        (phrases.A, "strong", ("A", "bear"), False, "ein starker Bär, einen starken Bären, einem starken Bären"),
        (
            phrases.owned_by("Thomas"),
            "old",
            ("A", "dog"),
            False,
            "Thomas' alter Hund, Thomas' alten Hund, Thomas' altem Hund",
        ),
        (
            phrases.EVERY,
            "expensive",
            ("T", "table"),
            False,
            "jeder teure Tisch, jeden teuren Tisch, jedem teuren Tisch",
        ),
    ],
)
def test_agreement(
    determiner: phrases.Determiner, adjective_: str, noun_: tuple[str, str], plural: bool, forms: str
) -> None:
    whole = phrases.NounPhrase(determiner, noun(*noun_), plural, (adjective(adjective_),))
    cases: tuple[german.Case, ...] = ("nominative", "accusative", "dative")
    assert ", ".join(" ".join(whole.german(case)) for case in cases) == forms


@pytest.mark.parametrize(
    ("table", "base", "forms"),
    [
        (lexicon.TRANSITIVE, "buy", "kaufe kaufst kauft kaufen"),
        (lexicon.TRANSITIVE, "see", "sehe siehst sieht sehen"),
        (lexicon.TRANSITIVE, "read", "lese liest liest lesen"),
        (lexicon.TRANSITIVE, "find", "finde findest findet finden"),
        (lexicon.TRANSITIVE, "invite", "lade lädst lädt laden"),
        (lexicon.TRANSITIVE, "feed", "füttere fütterst füttert füttern"),
        (lexicon.TRANSITIVE, "clean", "putze putzt putzt putzen"),
        (lexicon.TRANSITIVE, "carry", "trage trägst trägt tragen"),
        (lexicon.INTRANSITIVE, "work", "arbeite arbeitest arbeitet arbeiten"),
        (lexicon.INTRANSITIVE, "live", "wohne wohnst wohnt wohnen"),
        (lexicon.SAYING, "know", "weiß weißt weiß wissen"),
    ],
)
def test_conjugation(table: tuple[lexicon.Verb, ...], base: str, forms: str) -> None:
    found = verb(table, base)
    cells = [(1, False), (2, False), (3, False), (3, True)]
    present = [german.present(found.german, found.german_third, person, plural=plural) for person, plural in cells]
    assert " ".join(present) == forms


@pytest.mark.parametrize(
    ("value", "word", "translation"),
    [
        (2, "two", "zwei"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (99, "ninety-nine", "neunundneunzig"),
    ],
)
def test_number_words(value: int, word: str, translation: str) -> None:
    assert english.number(value) == word
    assert german.number(value) == translation


@pytest.mark.parametrize("value", [0, 1, 100])
def test_number_words_have_bounds(value: int) -> None:
    for language in (english, german):
        with pytest.raises(ValueError, match=str(value)):
            language.number(value)


def test_a_compound_is_one_word_of_its_heads_gender() -> None:
    cup = german.compound("Kaffee", noun("T", "cup"), "coffee")
    assert german.noun(cup, "dative", plural=True) == "Kaffeetassen"
    assert [token.text for token in english.noun(cup, plural=True)] == ["coffee", "cups"]
    assert cup.gender == "f"


ANNA = phrases.Name("Anna")
DOOR = phrases.NounPhrase(phrases.A, noun("O", "door"))
YESTERDAY = phrase([Token("yesterday", "NN")], ["gestern"])
TODAY = phrase([Token("today", "NN")], ["heute"])
OPEN = verb(lexicon.TRANSITIVE, "open")


@pytest.mark.parametrize(
    ("clause", "statement", "second", "last"),
    [
        (
            Clause(ANNA, OPEN, "present", accusative=DOOR),
            "Anna opens a door",
            "Anna macht eine Tür auf",
            "Anna eine Tür aufmacht",
        ),
        (
            Clause(ANNA, OPEN, "past", accusative=DOOR, time=YESTERDAY, fronted=True),
            "yesterday, Anna opened a door",
            "gestern hat Anna eine Tür aufgemacht",
            "Anna gestern eine Tür aufgemacht hat",
        ),
        (
            Clause(ANNA, OPEN, "present", accusative=DOOR, negated=True, contracted=True),
            "Anna doesn't open a door",
            "Anna macht keine Tür auf",
            "Anna keine Tür aufmacht",
        ),
        (
            Clause(ANNA, OPEN, "must", accusative=DOOR, negated=True),
            "Anna must not open a door",
            "Anna darf keine Tür aufmachen",
            "Anna keine Tür aufmachen darf",
        ),
        (
            Clause(ANNA, OPEN, "want", accusative=phrases.PRONOUNS[4], time=TODAY, negated=True),
            "Anna does not want to open them today",
            "Anna will sie heute nicht aufmachen",
            "Anna sie heute nicht aufmachen will",
        ),
    ],
)
def test_word_order(clause: Clause, statement: str, second: str, last: str) -> None:
    assert english.text(clause.english()) == statement
    assert " ".join(clause.german()) == second
    assert " ".join(clause.german_last()) == last


def test_raw_text_joins_punctuation_and_merges_commas() -> None:
    assert german.text(["der", "Hund", ",", "der", "schläft", ",", ",", "weil", "er", "alt", "ist", ",", "."]) == (
        "Der Hund, der schläft, weil er alt ist."
    )
