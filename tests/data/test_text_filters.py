"""Filters by text, samples of lines and tags: what `prepare` keeps, counts and shows."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.prepare.chosen_lines import chosen_lines, read_chosen_lines
from sparsenmt.data.prepare.pipeline import prepare
from sparsenmt.data.prepare.text_filters import TextFilters
from sparsenmt.data.prepared_data import PreparedData, PreparedReport
from sparsenmt.data.text import write_lines
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.data.test_prepare import files

MakeData = Callable[..., schema.Data]
Lines = Callable[..., list[str]]
ALL = {
    "max_length": 40,
    "same_text": True,
    "max_repetition": 4,
    "source_scripts": ["latin"],
    "target_scripts": ["cyrillic", "latin"],
    "duplicates": True,
}


def kept_lines(data: schema.Data, number: int = 0) -> list[int]:
    return list(map(int, Dataset(Path(data.directory) / f"train-{number}").line_numbers))


@pytest.mark.parametrize(
    ("filters", "pair", "reason"),
    [
        ({"same_text": True}, ("Ein  Hund", "ein hund"), "same_text"),
        ({"same_text": True}, ("Ein Hund", "Ein Hund."), None),
        ({"max_repetition": 3}, ("aaaa", "b"), "max_repetition"),
        ({"max_repetition": 3}, ("aaa      x", "bbb"), None),
        ({"source_scripts": ["latin"]}, ("да abc", "да"), None),
        ({"source_scripts": ["latin"]}, ("дада abc", "x"), "source_scripts"),
        ({"source_scripts": ["latin"], "min_script_share": 0.9}, ("д abcdefg", "x"), "source_scripts"),
        ({"target_scripts": ["hiragana", "katakana", "cjk"]}, ("x", "これはペンー。ﾊﾛ"), None),
        ({"target_scripts": ["hiragana"]}, ("x", "12, 34"), None),
        ({"target_scripts": ["latin"]}, ("x", "ＡＢＣ"), None),
    ],
)
def test_a_pair_is_left_out_for_its_text(filters: dict[str, Any], pair: tuple[str, str], reason: str | None) -> None:
    assert TextFilters(schema.Filters(**filters), ("en", "ru")).reason(*pair) == reason


def test_a_side_that_is_reliably_in_another_language_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"ja": ("de", True), "unsure": ("fr", False), "no": ("no", True), "shalom": ("iw", True)}

    def detect(text: str, *, hintLanguage: str) -> tuple[bool, int, list[tuple[str, str]]]:
        return found[text][1], len(text), [("NAME", found[text][0])]

    package = SimpleNamespace(detect=detect, LANGUAGES=[("N", code) for code in ("de", "no", "iw", "fr")])
    monkeypatch.setitem(sys.modules, "pycld2", package)
    german = TextFilters(schema.Filters(languages=True), ("de-AT", "nb"))
    assert german.reason("ja", "no") is None and german.reason("unsure", "unsure") is None
    assert german.reason("no", "no") == german.reason("ja", "ja") == "languages"
    assert TextFilters(schema.Filters(languages=True), ("he", "de")).reason("shalom", "ja\n") is None
    with pytest.raises(UserError) as caught:
        TextFilters(schema.Filters(languages=True), ("de", "target"))
    assert caught.value.where == "data.target_language"
    monkeypatch.setitem(sys.modules, "pycld2", None)
    with pytest.raises(UserError, match="pycld2, which is not installed"):
        TextFilters(schema.Filters(languages=True), ("de", "en"))


def test_cld2_knows_german_from_english() -> None:
    pytest.importorskip("pycld2")
    filters = TextFilters(schema.Filters(languages=True), ("de", "en"))
    german, english = "Ein Mann in einem blauen Hemd steht auf einer Leiter.", "A man in a blue shirt is on a ladder."
    assert filters.reason(german, english) is None
    assert filters.reason(english, english) == filters.reason(german, german) == "languages"
    assert filters.reason("\x00\ufffe" + german, "ok") is None


def test_what_is_left_out_is_counted_and_shown(make_data: MakeData, lines: Lines, tmp_path: Path) -> None:
    """In one process or two, and by the naive twin."""
    good = [(source, f"{target} x") for source, target in zip(lines(60), lines(60, seed=1), strict=True)]
    bad = [("abc", "ABC"), ("aaaaaa", "b"), ("дадада", "b"), ("a", "עברית"), ("", ""), ("", "")]
    rows = [*good[:30], *bad, *good[:12], *good[30:]]
    train = [([s for s, _ in rows], [t for _, t in rows])]
    data = make_data(train, filters=schema.Filters.model_validate(ALL))
    report = prepare(data, progress=False)
    counts = report.corpora[0].counts  # type: ignore[union-attr]
    seen: set[tuple[str, str]] = set()
    expected = {
        "duplicates": 0,
        "same_text": 1,
        "max_repetition": 1,
        "source_scripts": 1,
        "target_scripts": 1,
        "empty": 2,
    }
    kept = []
    for number, row in enumerate(rows):
        if all(row) and row in seen:
            expected["duplicates"] += 1
        elif row not in bad:
            kept.append(number)
        seen.add(row)
    assert expected["duplicates"] >= 12
    assert {key: count for key, count in counts.removed.items() if count} == expected
    assert kept_lines(data) == kept and counts.kept == len(kept) and counts.read == len(rows)
    assert len(counts.examples["duplicates"]) == 10 and counts.examples["empty"] == [(35, "", ""), (36, "", "")]
    shown = report.describe()
    assert "1 removed by same_text" in shown and "  same_text, line 31: 'abc' | 'ABC'\n" in shown
    again = prepare(data, progress=False)
    assert again.up_to_date and again.describe().replace("up to date", "written") == shown
    pooled = data.model_copy(update={"directory": str(tmp_path / "pooled")})
    assert prepare(pooled, progress=False, processes=2).corpora == report.corpora
    assert files(pooled.directory) == files(data.directory)


def test_without_filters_by_text_the_manifest_is_that_of_earlier_versions(make_data: MakeData) -> None:
    data = make_data()
    manifest = (Path(data.directory) / "manifest.json") if prepare(data, progress=False) else Path()
    text = manifest.read_text()
    assert not any(key in text for key in ("examples", "same_text", "lines_seed", '"tag"', "languages", "duplicates"))


def test_filters_that_remove_everything_are_named(make_data: MakeData) -> None:
    data = make_data(filters=schema.Filters(source_scripts=["greek"]))
    with pytest.raises(UserError) as caught:
        prepare(data, progress=False)
    assert caught.value.where == "data.filters" and "300 by source_scripts" in caught.value.hint
    assert not Path(data.directory).exists()


def test_more_lines_than_there_are_are_noted(
    make_data: MakeData, lines: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data([(lines(80, seed=seed), lines(80, seed=seed + 1)) for seed in (1, 3)])
    train = [each.model_copy(update={"lines": 80 + number}) for number, each in enumerate(data.train)]
    assert prepare(data.model_copy(update={"train": train}), progress=False).lines == 160
    assert capsys.readouterr().err == "warning: data.train.1.lines: train1 has 80 lines, fewer than 81: all are used\n"


@pytest.mark.parametrize("seed", [None, 3])
def test_some_lines_of_a_corpus(make_data: MakeData, lines: Lines, tmp_path: Path, seed: int | None) -> None:
    """The vocabulary is learned from them, too, and their numbers are those of the file."""
    whole = make_data()
    corpus = whole.train[0].model_copy(update={"lines": 120, "lines_seed": seed})
    data = whole.model_copy(update={"train": [corpus]})
    report = prepare(data, progress=False)
    chosen = chosen_lines(corpus, 300)
    assert report.lines == len(chosen) == 120 and kept_lines(data) == list(chosen)
    assert (list(chosen) == list(range(120))) is (seed is None)
    for side in ("s", "t"):
        text = (tmp_path / f"train0.{side}").read_text().splitlines()
        write_lines(tmp_path / f"some.{side}", [text[line] for line in chosen])
        read = read_chosen_lines(corpus, tmp_path / f"train0.{side}")
        assert list(read) == [text[line] for line in chosen]
    alone = schema.Corpus(name="train0", source=str(tmp_path / "some.s"), target=str(tmp_path / "some.t"))
    other = whole.model_copy(update={"train": [alone], "directory": str(tmp_path / "other")})
    prepare(other, progress=False)
    own, wanted = files(data.directory), files(other.directory)
    for name in wanted:
        if "lines.bin" not in name and "manifest" not in name:
            assert own[name] == wanted[name], name
    assert not prepare(whole, progress=False).up_to_date


def test_a_sample_is_uniform_and_the_same_again(tmp_path: Path) -> None:
    corpus = schema.Corpus(source="a", target="b", lines=30, lines_seed=1)
    assert (
        chosen_lines(corpus, 100)
        == chosen_lines(corpus, 100)
        != chosen_lines(corpus.model_copy(update={"lines_seed": 2}), 100)
    )
    hits = [0] * 10
    for seed in range(300):
        for line in chosen_lines(corpus.model_copy(update={"lines_seed": seed, "lines": 5}), 10):
            hits[line] += 1
    assert all(abs(count - 150) < 50 for count in hits)
    assert list(chosen_lines(corpus, 20)) == list(range(20))


def test_some_lines_of_a_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "text", [f"line {number} of the text" for number in range(50)])
    corpus = schema.Corpus(text=str(tmp_path / "text"), lines=20, lines_seed=5)
    data = schema.Data(
        task="language_model",
        directory=str(tmp_path / "prepared"),
        train=[corpus],
        dev=schema.Corpus(text=str(tmp_path / "text")),
        tokenizer=schema.TokenizerSection(kind="byte"),
    )
    report = prepare(data, progress=False)
    assert report.lines == 20
    characters = sum(len(f"line {number} of the text") for number in chosen_lines(corpus, 50)) + 20
    assert report.corpora[0].tokens == characters  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_a_tag_is_one_token_before_every_source_of_its_corpus(make_data: MakeData, lines: Lines, kind: str) -> None:
    corpora = [(lines(80), lines(80, seed=1)), ([*lines(60, seed=4), ""], [*lines(60, seed=5), "a"])]
    plain = make_data(corpora, tokenizer={"kind": kind, "vocabulary_size": 70})
    tagged = [plain.train[0], plain.train[1].model_copy(update={"tag": "bt"})]
    data = plain.model_copy(update={"train": tagged})
    report = prepare(data, progress=False)
    assert report.corpora[1].counts.removed["empty"] == 1  # type: ignore[union-attr]
    opened = PreparedData.open(data.directory)
    source = opened.tokenizers.source
    (tag,) = source.encode("<bt>")
    first, second = opened.train
    assert tag not in first.source_ids and tag not in second.target_ids and tag not in opened.dev.source_ids
    assert all(second.source(row)[0] == tag for row in range(len(second))) and len(second) == 60
    assert second.source(5).tolist()[1:-1] == source.encode(lines(60, seed=4)[5])
    assert source.encode(f"<bt> {lines(1)[0]}") == [tag, *source.encode(lines(1)[0])]


def test_a_tag_that_the_vocabulary_of_a_model_lacks_is_refused(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data()
    prepare(data, progress=False)
    corpus = data.train[0].model_copy(update={"tag": "bt"})
    given = data.tokenizer.model_copy(update={"from_model": data.directory})
    other = data.model_copy(update={"train": [corpus], "tokenizer": given, "directory": str(tmp_path / "other")})
    with pytest.raises(UserError, match="has no token <bt>") as caught:
        prepare(other, progress=False)
    assert str(caught.value.where).startswith("data.train.0.tag")
    with pytest.raises(UserError, match="a tag is none"):
        prepare(data.model_copy(update={"train": [corpus]}), features=["word_id"], progress=False)


def test_parallel_files_are_taken_plain_or_gzipped_as_filters_write_them(make_data: MakeData, tmp_path: Path) -> None:
    """OpusFilter writes line-aligned text, gzipped where the name ends in .gz."""
    data = make_data()
    plain: PreparedReport = prepare(data, progress=False)
    paths = {}
    for side, path in data.train[0].files.items():
        paths[side] = str(tmp_path / f"filtered.{side}.gz")
        with gzip.open(paths[side], "wb") as stream:
            stream.write(Path(path).read_bytes())
    corpus = schema.Corpus(name="train0", **paths)
    zipped = data.model_copy(update={"train": [corpus], "directory": str(tmp_path / "zipped")})
    assert prepare(zipped, progress=False).corpora == plain.corpora
    own, other = files(data.directory), files(zipped.directory)
    assert {k: v for k, v in own.items() if "manifest" not in k} == {
        k: v for k, v in other.items() if "manifest" not in k
    }
