"""Taggers: golden tags, words that are the line's characters, and who is not there."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenmt.data.tagging import taggers
from sparsenmt.data.tagging.tagged_text import read_tagged
from sparsenmt.data.tagging.taggers import open_tagger, split_words
from sparsenmt.data.tagging.tagsets import is_known_tag, tag_category
from sparsenmt.data.tagging.word_alignment import comparable_text
from sparsenmt.errors import UserError


@pytest.mark.parametrize(
    ("language", "line", "words"),
    [
        ("en", "He can't, won't; I'd've gone.", "He ca n't , wo n't ; I 'd 've gone ."),
        ("en", "It's John's 5-year-old t-shirt...", "It 's John 's 5-year-old t-shirt ..."),
        (
            "en",
            "Mr. Smith paid $1,000.50 (10%) at 12:30 in the U.S.",
            "Mr. Smith paid $ 1,000.50 ( 10 % ) at 12:30 in the U.S.",
        ),
        ("en", "#Person1#: Hi! <n> #Person2#: Hi.", "#Person1# : Hi ! <n> #Person2# : Hi ."),
        ("de", "Wie geht's? „Gut“, z.B. heute.", "Wie geht's ? „ Gut “ , z.B. heute ."),
        ("en", "a\u0301b  \t", "a\u0301b"),
        ("en", "", ""),
    ],
)
def test_words_and_marks(language: str, line: str, words: str) -> None:
    assert split_words(line, language) == words.split()


def test_the_words_are_the_characters_of_the_line() -> None:
    generator = random.Random(1)
    alphabet = "ab1 .,'’\"-<>#_\u0301\u200b漢ß½\u2028"
    for _ in range(500):
        line = "".join(generator.choices(alphabet, k=generator.randint(0, 30)))
        assert comparable_text("".join(split_words(line, "en"))) == comparable_text(line)


class TestHanTa:
    @pytest.fixture(autouse=True)
    def _installed(self) -> Iterator[None]:
        pytest.importorskip("HanTa")
        yield

    @pytest.mark.parametrize(
        ("language", "line", "tags"),
        [
            ("en", "There is a man in a blue shirt, isn't he?", "EX0 VBZ AT0 NN1 PRP AT0 AJ0 NN1 PUN VBZ XX0 PNP PUN"),
            ("en", "<n> 1,000.5 –", "PUN CRD PUN"),
            ("de", "Der kleine Hund läuft über die Straße.", "ART ADJ(A) NN VV(FIN) APPR ART NN $."),
            ("nl", "De hond loopt.", "LID(bep,stan,rest) N(soort,ev,basis,zijd,stan) WW(pv,tgw,met-t) LET()"),
        ],
    )
    def test_golden_tags(self, language: str, line: str, tags: str) -> None:
        """As HanTa 1.2 gives them, but for the numbers and marks that it has not met."""
        tagger = open_tagger("hanta", language)
        found = tagger.tag(tagger.tokenize(line))
        assert found == tags.split()
        assert all(is_known_tag(tag, tagger.tagset) for tag in found)

    def test_any_words_can_be_tagged(self) -> None:
        tagger = open_tagger("hanta", "en-GB")
        generator = random.Random(1)
        words = ["a", "A", ".", "'", "\u200b", "漢字", "x" * 200, "\U0001f600", "ﬁ", "_", "§", "don't", "1.", "\x00"]
        for _ in range(200):
            chosen = generator.choices(words, k=generator.randint(0, 8))
            tags = tagger.tag(chosen)
            assert len(tags) == len(chosen) and all(isinstance(tag, str) and tag for tag in tags)
            assert tagger.tag(chosen) == tags

    def test_its_own_model_is_read_not_one_that_lies_about(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """HanTa prefers a file of the working directory: a pickle of whoever put it there."""
        monkeypatch.chdir(tmp_path)
        for name in ("morphmodel_en.pgz", "morphmodel_ger.pgz", "morphmodel_dutch.pgz"):
            (tmp_path / name).write_bytes(b"no model")
        assert open_tagger("hanta", "en").tag(["dogs"]) == ["NN2"]

    def test_agrees_with_gold_tags(self, real_data: Path) -> None:
        """Categories of HanTa's tags on gold words: 95.8% English and 99.0% German on the test sets."""
        for name, language, least in (("en_ewt-ud-dev", "en", 0.95), ("de_gsd-ud-dev", "de", 0.98)):
            path = real_data / "ud" / f"{name}.conllu.gz"
            if not path.is_file():
                pytest.skip(f"there is no {path}: name a folder of corpora with ud/ in SPARSENMT_DATA")
            tagger = open_tagger("hanta", language)
            pairs = [
                (tag_category(gold), tag_category(tag, tagger.tagset))
                for sentence in list(read_tagged(path))[:500]
                for gold, tag in zip(sentence.tags, tagger.tag(sentence.words), strict=True)
            ]
            assert sum(gold is tag for gold, tag in pairs) > least * len(pairs)

    def test_other_languages_are_refused(self) -> None:
        with pytest.raises(UserError, match="hanta does not cover the language 'fr'; it covers en, de, nl") as error:
            open_tagger("hanta", "fr")
        assert "python -m spacy download fr_core_news_sm` for spacy" in str(error.value.hint)
        assert "stanza.download('fr')" in str(error.value.hint) and "give tags" in str(error.value.hint)


@pytest.mark.parametrize(("name", "package"), [("hanta", "HanTa"), ("spacy", "spaCy"), ("stanza", "Stanza")])
def test_packages_that_are_not_installed(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("HanTa", "spacy", "stanza"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"{package} is not installed") as caught:
        open_tagger(name, "en")
    assert "pip install" in str(caught.value.hint)


def test_an_unknown_tagger() -> None:
    with pytest.raises(UserError, match="unknown tagger 'treetagger'"):
        open_tagger("treetagger", "en")


def test_spacy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in with spaCy's interface: words are made into a document, and passed through the pipeline."""

    def token(word: str) -> SimpleNamespace:
        return SimpleNamespace(text=word, is_space=word.isspace(), tag_="", pos_="")

    class Pipeline:
        vocab = object()

        def make_doc(self, line: str) -> list[SimpleNamespace]:
            return [token(word) for word in line.replace("  ", " \t ").split(" ")]

        @property
        def pipeline(self) -> list[tuple[str, Any]]:
            def step(document: Any) -> Any:
                for each in document:
                    each.tag_, each.pos_ = "NN", "NOUN"
                return document

            return [("tagger", step)]

    spacy, tokens = ModuleType("spacy"), ModuleType("spacy.tokens")
    vars(spacy).update(
        __version__="3",
        util=SimpleNamespace(get_installed_models=lambda: ["en_core_web_sm", "fr_core_news_sm"]),
        load=lambda name, exclude: Pipeline(),
    )
    vars(tokens).update(Doc=lambda vocab, words: [token(word) for word in words])
    monkeypatch.setitem(sys.modules, "spacy", spacy)
    monkeypatch.setitem(sys.modules, "spacy.tokens", tokens)
    tagger = open_tagger("spacy", "en")
    assert (tagger.tagset, tagger.version) == ("penn", "3 en_core_web_sm")
    assert tagger.tokenize("a  b") == ["a", "b"]
    assert tagger.tag(["a", "b"]) == ["NN", "NN"] and tagger.tag([]) == []
    assert open_tagger("spacy", "fr").tag(["a"]) == ["NOUN"]
    with pytest.raises(UserError, match="spacy does not cover the language 'de'"):
        open_tagger("spacy", "de")


def test_stanza(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in with Stanza's interface."""

    class Pipeline:
        def __init__(self, lang: str, processors: str, download_method: None, **options: object) -> None:
            if lang != "en":
                raise FileNotFoundError(lang)
            assert download_method is None, "nothing is fetched"

        def __call__(self, text: Any) -> SimpleNamespace:
            words = text.split() if isinstance(text, str) else text[0]
            each = [SimpleNamespace(text=word, upos="NOUN") for word in words]
            return SimpleNamespace(sentences=[SimpleNamespace(tokens=each, words=each)])

    stanza = ModuleType("stanza")
    vars(stanza).update(__version__="1", Pipeline=Pipeline)
    monkeypatch.setitem(sys.modules, "stanza", stanza)
    tagger = open_tagger("stanza", "en")
    assert tagger.tokenize("a b") == ["a", "b"] and tagger.tag(["a", "b"]) == ["NOUN", "NOUN"] and tagger.tag([]) == []
    with pytest.raises(UserError, match="stanza does not cover the language 'xx'"):
        open_tagger("stanza", "xx")


def test_sentences_end_at_their_marks() -> None:
    words = ["Hi", "!", "How", "are", "you", "...", "fine"]
    assert list(taggers._sentences(words)) == [["Hi", "!"], ["How", "are", "you", "..."], ["fine"]]
    assert list(taggers._sentences([])) == []


def split_words_before(line: str) -> list[str]:
    """The earlier implementation, whose time was quadratic in the length of a word."""
    words: list[str] = []
    for match in taggers._WORD.finditer(line):
        word = match.group()
        cut: list[str] = []
        while (found := taggers._CLITICS["en"].search(word)) is not None:
            word, cut = word[: found.start()], [found.group(), *cut]
        words += [word, *cut]
    return words


@given(st.text(st.sampled_from("nN'’strevldm aSſ1.,<>#/_-!"), max_size=40))
def test_clitics_are_split_as_before(line: str) -> None:
    assert split_words(line, "en") == split_words_before(line)


PARTS = ["'s", "n't", "x", "1", "1.", "a.", "<a", "#a", "a-", "</", ".", "'", "''s", "é", "x'll've", "<a/>", "\u0301"]


def test_long_lines_are_split_in_linear_time() -> None:
    """A process of its own, which would take hours: it is killed after a minute."""
    code = (
        "import sys; from sparsenmt.data.tagging.taggers import split_words\n"
        "for part in sys.argv[1:]:\n"
        "    assert ''.join(split_words(part * 100_000, 'en')) == part * 100_000"
    )
    done = subprocess.run([sys.executable, "-c", code, *PARTS], cwd=Path(__file__).parents[3], timeout=60)
    assert done.returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("HanTa") is None, reason="HanTa is not installed")
def test_hanta_sees_the_beginnings_of_long_words() -> None:
    tagger: Any = open_tagger("hanta", "en")
    seen: list[str] = []
    inner = tagger._tagger.tag_sent
    tagger._tagger.tag_sent = lambda words, **options: seen.extend(words) or inner(words, **options)
    assert len(tagger.tag(["a" * 100_000, "house"])) == 2
    assert max(map(len, seen)) <= 256
