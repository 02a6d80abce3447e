"""The demo corpus: the same bytes everywhere, one translation a source, gold tags, right German."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest

from sparsenmt.data.demo import english, german, lexicon, phrases
from sparsenmt.data.demo.clauses import Clause, phrase
from sparsenmt.data.demo.corpus import DemoCorpus, write_demo_corpus
from sparsenmt.data.demo.english import Token
from sparsenmt.data.demo.grammar import sentences
from sparsenmt.data.text import read_lines
from sparsenmt.errors import UserError

# Of the sizes in `corpus`. They change when the grammar or its words change: then the figures of the demo change too.
GOLDEN = {
    "train.en": "338a97ff019dbf043c832b8a7ff6a9b8528ee5fe835aee51da2d5fd7517b49ec",
    "train.de": "6b5c3b30970924b361c4ea7317b17349cf322ada5fc067975f29326b801effea",
    "train.tags": "4cf9363ffa52f986ba5824aac5c7fba91f0f1cd9211c1bbd28873ca66df4905c",
    "dev.en": "8eb33289147ce412ea6be8a83f7b42801f502ac785994476d812d27e16de7390",
    "dev.de": "25d39f75f17b71d18efa27da485ac1acd33c1456590271cacce32f6f1e3340ff",
    "dev.tags": "a160aa8f2fb2e9930826988769ed32fdfbc46fd0f3098aebf4c679ed24a20f6c",
    "test.en": "b8b999fd64b0a7118598cccddaf225b77ce4455c47c3175c8b68bd26242cd7e3",
    "test.de": "6bf5c6f8fa754916d3c3bf5ce55da94cf44d6af964f93fcfd2ce309120bd0c72",
    "test.tags": "0b028168f73ce6ca6a0a64cfa52eb8e9ea501369fd376e488c92cace0a56ecbd",
}
PENN = {
    *("CC", "CD", "DT", "EX", "IN", "JJ", "JJR", "MD", "NN", "NNS", "NNP", "POS", "PRP", "PRP$", "RB", "RBR", "TO"),
    *("VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "WDT", "WP", "WRB", ".", ","),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DemoCorpus:
    return write_demo_corpus(tmp_path_factory.mktemp("demo"), train=2000, dev=100, test=100)


def lines(path: Path) -> list[str]:
    return list(read_lines(path))


def test_bytes_are_the_same_on_every_machine(corpus: DemoCorpus) -> None:
    files = [
        file for split in (corpus.train, corpus.dev, corpus.test) for file in (split.source, split.target, split.tags)
    ]
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == GOLDEN


def test_another_seed_gives_another_corpus(corpus: DemoCorpus, tmp_path: Path) -> None:
    other = write_demo_corpus(tmp_path, train=2000, dev=100, test=100, seed=2)
    assert other.train.source.read_bytes() != corpus.train.source.read_bytes()


def test_dev_and_test_do_not_depend_on_the_size_of_train(corpus: DemoCorpus, tmp_path: Path) -> None:
    other = write_demo_corpus(tmp_path, train=10, dev=100, test=100)
    assert other.dev.source.read_bytes() == corpus.dev.source.read_bytes()
    assert other.test.target.read_bytes() == corpus.test.target.read_bytes()


def test_sizes_and_no_source_twice(corpus: DemoCorpus) -> None:
    splits = {"train": corpus.train, "dev": corpus.dev, "test": corpus.test}
    for split, size in zip(splits.values(), (2000, 100, 100), strict=True):
        assert len(lines(split.source)) == len(lines(split.target)) == len(lines(split.tags)) == size
    sources = [line for split in splits.values() for line in lines(split.source)]
    assert len(set(sources)) == len(sources)


def test_tags_are_penns_and_spell_the_raw_text(corpus: DemoCorpus) -> None:
    for split in (corpus.train, corpus.test):
        for source, tagged in zip(lines(split.source), lines(split.tags), strict=True):
            tokens, tags = zip(*(item.rsplit("_", 1) for item in tagged.split(" ")), strict=True)
            assert "".join(tokens) == source.replace(" ", "")
            assert set(tags) <= PENN


def test_every_source_has_one_translation() -> None:
    translations: dict[str, str] = {}
    for sentence in itertools.islice(sentences(seed=3), 20_000):
        assert translations.setdefault(sentence.source, sentence.target) == sentence.target
    assert len(translations) > 15_000


def test_the_corpus_has_what_it_is_for(corpus: DemoCorpus) -> None:
    source, target = " ".join(lines(corpus.train.source)), " ".join(lines(corpus.train.target))
    for text in ("?", "Mr. ", "n't ", "cannot ", "who ", "because ", " than ", " euros"):
        assert text in source
    for text in (", weil ", ", dass ", " kein", " nicht", "Herrn ", " zum ", "und" + "zwanzig", ", der ", " Euro"):
        assert text in target
    seen = {word for word in target.split() if len(word) > 5}
    new = [word for line in lines(corpus.test.target) for word in line.split() if len(word) > 5 and word not in seen]
    assert new, "the test set holds words that only their pieces can spell"


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_an_empty_split_is_refused(tmp_path: Path, split: str) -> None:
    sizes = {"train": 5, "dev": 5, "test": 5, split: 0}
    with pytest.raises(UserError, match=split):
        write_demo_corpus(tmp_path, **sizes)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write_demo_corpus(tmp_path / "file" / "demo", train=1, dev=1, test=1)


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
