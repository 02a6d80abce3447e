"""Source features made of tags: their values, the state that is saved, prepared data with a tagger and with tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from sparsenmt.data.prepare.pipeline import PreparedData, check_prepared_data, prepare
from sparsenmt.data.tagging import taggers
from sparsenmt.data.tagging.source_tagger import SourceTagger
from sparsenmt.data.tagging.taggers import split_words
from sparsenmt.data.tagging.tagsets import TagSet, WordCategory
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

MakeData = Callable[..., schema.Data]
FEATURES = ("later_piece", "pos_category")
LINES = ["The dog runs.", "a Dog, the DOG", "", "run the run in dogland!"] * 5


class FakeTagger:
    """Knows articles and marks; everything else is a noun."""

    name = "hanta"
    version = "7"
    tagset: TagSet = "penn"
    opened = 0

    def __init__(self, language: str) -> None:
        self.language = language
        type(self).opened += 1

    def tokenize(self, line: str) -> list[str]:
        return split_words(line, self.language)

    def tag(self, words: Sequence[str]) -> list[str]:
        return ["DT" if word.lower() in ("a", "the") else "NN" if word[0].isalpha() else "." for word in words]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTagger, "opened", 0)
    monkeypatch.setitem(taggers._TAGGERS, "hanta", FakeTagger)


def given(data: schema.Data, **tags: str) -> schema.Data:
    """The data with files of tags: train, dev."""
    train = [data.train[0].model_copy(update={"tags": tags["train"]})] if "train" in tags else data.train
    dev = data.dev.model_copy(update={"tags": tags["dev"]}) if "dev" in tags else data.dev
    return data.model_copy(update={"train": train, "dev": dev})


def tagged(line: str) -> str:
    tagger = FakeTagger("en")
    words = tagger.tokenize(line)
    return " ".join(f"{word}_{tag}" for word, tag in zip(words, tagger.tag(words), strict=True))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_values_of_words_and_their_pieces(make_data: MakeData, kind: str) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES[:4], LINES[:4]), tokenizer={"kind": kind, "vocabulary_size": 45})
    data = data.model_copy(update={"source_language": "en"})
    prepare(data, features=FEATURES)
    dataset = PreparedData.open(data.directory).train[0]
    tokenizer = PreparedData.open(data.directory).tokenizers.source
    ids = dataset.source(0)
    pieces = tokenizer.pieces(ids.tolist())
    categories, later = dataset.feature("pos_category", 0), dataset.feature("later_piece", 0)
    assert (int(categories[-1]), int(later[-1]), pieces[-1]) == (WordCategory.END, 0, "</s>")
    at = 0
    for word, expected in (
        ("The", WordCategory.FUNCTION),
        ("dog", WordCategory.CONTENT),
        ("runs", WordCategory.CONTENT),
    ):
        taken = ""
        while taken.strip(SPACE) != word and at < len(pieces) - 1:
            piece = pieces[at].strip(SPACE)
            assert int(categories[at]) == (expected if piece else WordCategory.REST)
            assert int(later[at]) == int(bool(taken.strip(SPACE)) and bool(piece))
            taken += pieces[at]
            at += 1
            if kind == "word":  # "runs." is one piece, with most of its characters in "runs"
                break
    if kind in ("bpe", "unigram", "char"):
        assert int(categories[-2]) == WordCategory.PUNCTUATION and int(later[-2]) == 0, "a mark is a word of its own"


def test_prepared_values_are_those_of_decoding(make_data: MakeData) -> None:
    data = make_data([(LINES, LINES)], (LINES, LINES), source_language="en")
    filters = schema.Filters(max_source_length=6)
    data = data.model_copy(update={"filters": filters})
    prepare(data, features=FEATURES)
    prepared = PreparedData.open(data.directory)
    assert prepared.features.needs_text and prepared.dev_tags is not None
    for dataset, lines in ((prepared.train[0], [line for line in LINES if line]), (prepared.dev, LINES)):
        assert len(dataset) == len(lines)
        for number, line in enumerate(lines):
            ids = [*prepared.tokenizers.source.encode(line)[:6], EOS]
            assert dataset.source(number).tolist() == ids
            made = prepared.features.compute(ids, line)
            for name, values in made.items():
                assert dataset.feature(name, number).tolist() == values.tolist()
            if dataset is prepared.dev:  # what validation decodes with
                stored = prepared.features.compute(ids, line, prepared.dev_tags[number])
                assert {name: values.tolist() for name, values in stored.items()} == {
                    name: values.tolist() for name, values in made.items()
                }


def test_given_tags_are_taken_and_no_tagger_is_opened(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES), source_language="en")
    prepare(data, features=FEATURES)
    made = PreparedData.open(data.directory)
    write_lines(tmp_path / "tags", [tagged(line) for line in LINES])
    FakeTagger.opened = 0
    beside = given(data, train=str(tmp_path / "tags"), dev=str(tmp_path / "tags"))
    beside = beside.model_copy(update={"directory": str(tmp_path / "beside")})
    prepare(beside, features=FEATURES)
    found = PreparedData.open(beside.directory)
    assert FakeTagger.opened == 0
    for name in FEATURES:
        assert np.array_equal(found.train[0].feature_values[name], made.train[0].feature_values[name])
        assert np.array_equal(found.dev.feature_values[name], made.dev.feature_values[name])
    assert found.dev_tags is not None and [len(each.words) for each in found.dev_tags][:3] == [4, 5, 0]
    state = json.loads((tmp_path / "beside/features/tagging.json").read_bytes())
    assert state == {
        "tagger": "hanta", "language": "en", "version": None, "given_tagset": "penn", "tagger_tagset": None,
    }  # fmt: skip
    assert prepare(beside, features=FEATURES).up_to_date


def test_the_choice_of_the_tagger_belongs_to_the_prepared_data(make_data: MakeData) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES), source_language="en")
    first = prepare(data, features=FEATURES)
    assert prepare(data, features=FEATURES).up_to_date
    check_prepared_data(data, FEATURES)
    other = data.model_copy(update={"tagger": schema.TaggerSection(language="nl")})
    with pytest.raises(UserError, match=r"prepared with other settings: .*language"):
        check_prepared_data(other, FEATURES)
    second = prepare(other, features=FEATURES)
    assert not second.up_to_date and second.fingerprint != first.fingerprint
    state = json.loads((Path(data.directory) / "features/tagging.json").read_bytes())
    assert state == {
        "tagger": "hanta", "language": "nl", "version": "7", "given_tagset": None, "tagger_tagset": "penn",
    }  # fmt: skip


def test_without_methods_that_read_tags_nothing_is_tagged(make_data: MakeData) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES))
    report = prepare(data, features=["word_id"])
    other = given(data, dev="nowhere").model_copy(update={"tagger": schema.TaggerSection(name="given")})
    assert prepare(other, features=["word_id"]).fingerprint == report.fingerprint
    assert FakeTagger.opened == 0 and "tagger" not in json.loads((Path(data.directory) / "manifest.json").read_bytes())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([tagged(line) for line in LINES[:-1]], "19 tagged sentences, but .*train0.s has 20 lines"),
        ([tagged(line) for line in ["A dog.", *LINES[1:]]], "the 3 tagged words are not those of line 1 of"),
        (["dog", *LINES[1:]], "'dog' has no tag"),
    ],
)
def test_tags_that_do_not_fit_are_refused_before_any_work(
    make_data: MakeData, tmp_path: Path, lines: list[str], message: str
) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES), source_language="en")
    write_lines(tmp_path / "tags", lines)
    with pytest.raises(UserError, match=message) as caught:
        prepare(given(data, train=str(tmp_path / "tags")), features=FEATURES)
    assert str(tmp_path / "tags") in str(caught.value.where)
    assert not Path(data.directory).exists()


def test_unknown_tags_are_listed_once(make_data: MakeData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES), source_language="en")
    write_lines(tmp_path / "tags", [tagged(line).replace("_NN", "_FOO") for line in LINES])
    prepare(given(data, train=str(tmp_path / "tags")), features=FEATURES)
    assert capsys.readouterr().err.count("'FOO' (") == 1
    found = PreparedData.open(data.directory).train[0]
    assert {int(value) for value in found.feature_values["pos_category"]} == {
        WordCategory.END, WordCategory.FUNCTION, WordCategory.PUNCTUATION, WordCategory.REST,
    }  # fmt: skip


def test_no_tagger_and_no_tags(make_data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES), source_language="en")
    nobody = data.model_copy(update={"tagger": schema.TaggerSection(name="given")})
    with pytest.raises(UserError, match="tags are needed, and none are given"):
        prepare(nobody, features=FEATURES)
    assert not Path(data.directory).exists()
    prepare(data, features=FEATURES)

    def missing(language: str) -> taggers.Tagger:
        raise UserError("HanTa is not installed", where="x", hint="Install it.")

    monkeypatch.setitem(taggers._TAGGERS, "hanta", missing)
    features = PreparedData.open(data.directory).features
    with pytest.raises(UserError, match="none are given: HanTa is not installed") as caught:
        features.compute([5, EOS], "a")
    assert "tagging.json" in str(caught.value.where) and "--tags" in str(caught.value.hint)


def test_another_version_of_the_tagger_is_told(
    make_data: MakeData, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES, LINES), source_language="en")
    prepare(data, features=FEATURES)
    features = PreparedData.open(data.directory).features
    capsys.readouterr()
    monkeypatch.setattr(FakeTagger, "version", "8")
    for _ in range(2):
        features.compute([5, EOS], "a")
    assert capsys.readouterr().err.count("tagged with hanta 7; this is 8") == 1


def test_a_state_that_is_none(tmp_path: Path) -> None:
    sound = {"tagger": "x", "language": "en", "version": None, "given_tagset": None, "tagger_tagset": "penn"}
    for state in ([], {"tagger": "hanta"}, {**sound, "given_tagset": "y"}, None):
        (tmp_path / "tagging.json").write_bytes(json.dumps(state).encode())
        with pytest.raises(UserError, match="does not name a tagger"):
            SourceTagger.load(tmp_path / "tagging.json", None)  # type: ignore[arg-type]


def test_any_characters_can_be_tagged_and_stored(make_data: MakeData) -> None:
    lines = ["'' `` -LRB- a_b _ __", "a\u2028b\x1cc\x85d \r", "\u200b \xad a\u0301 ﬁ", "# x", "<n> </s> <unk>", " "]
    data = make_data([(LINES, LINES)], (lines, ["x"] * len(lines)), source_language="en")
    prepare(data, features=FEATURES)
    prepared = PreparedData.open(data.directory)
    assert prepared.dev_tags is not None and len(prepared.dev_tags) == len(lines)
    assert prepared.dev_tags[0].words[:3] == ("''", "``", "-")


def test_validation_tags_are_those_of_the_validation_text(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data([(LINES, LINES[::-1])], (LINES[:3], LINES[:3]), source_language="en")
    write_lines(tmp_path / "tags", [tagged(line) for line in LINES[:3]])
    prepare(given(data, dev=str(tmp_path / "tags")), features=FEATURES)
    assert list(read_lines(Path(data.directory) / "dev.tags.txt")) == [tagged(line) for line in LINES[:3]]
    prepared = PreparedData.open(data.directory)
    assert prepared.dev_tags is not None and prepared.dev_tags[0].tags == ("DT", "NN", "NN", ".")
