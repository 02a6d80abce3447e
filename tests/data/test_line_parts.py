"""Lines of any length: the parts of a text are the text, whatever comes at once, and their tokens are those of it."""

from __future__ import annotations

import gzip
import random
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from sparsenmt.data import line_parts, text
from sparsenmt.data.line_parts import LinePart, divide_lines, read_line_parts
from sparsenmt.data.prepare.pipeline import check_prepared_data, prepare
from sparsenmt.data.prepared_data import PreparedText
from sparsenmt.data.text import LONGEST_LINE, read_lines
from sparsenmt.data.text_dataset import encode_lines
from sparsenmt.data.tokenizers.tokenizer import train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.data.conftest import invented_lines

ODD = [
    "",
    "  two  spaces ",
    "ὈΔΥΣΣΕΥΣ ἐν Σ",
    "a" * 70 + " b",
    "日本語の文" * 9,
    "tab\t\u3000x",
    "   " * 20,
    "<doc> 'tis",
]
LINES = [" ".join(invented_lines(40)), *ODD, *invented_lines(20, seed=1)]


def parts_of(lines: list[str], part: int) -> list[LinePart]:
    return list(divide_lines(["\n".join([*lines, ""])], part))


def test_the_parts_are_the_text_whatever_comes_at_once() -> None:
    whole = "\n".join([*LINES, "no end"])
    draw = random.Random(1)
    for part in (1, 2, 7, 50, 10_000):
        expected = list(divide_lines([whole], part))
        assert "".join(each.text + "\n" * each.ends for each in expected) == whole + "\n"
        assert max(len(each.text) for each in expected) <= part or part == 10_000
        assert sum(each.words for each in expected) == sum(len(line.split()) + 1 for line in whole.split("\n"))
        assert sum(each.bytes for each in expected) == len(whole.encode()) + 1
        cuts = [0, *sorted(draw.choices(range(len(whole)), k=60)), len(whole)]
        assert list(divide_lines((whole[a:b] for a, b in pairwise(cuts)), part)) == expected
    assert list(divide_lines([], 9)) == [] and list(divide_lines(["\n"], 9)) == [LinePart("")]


def test_long_lines_are_divided_before_spaces() -> None:
    assert [each.text for each in divide_lines(["ab cd ef gh"], 8)] == ["ab cd", " ef gh"]
    assert [each.text for each in divide_lines(["ab   cd   "], 8)] == ["ab  ", " cd   "]
    found = list(divide_lines(["abcdefg hi\tj"], 3))
    assert [(each.text, each.inside_word, each.ends) for each in found] == [
        *[("abc", False, False), ("def", True, False), ("g", True, False)],
        *[(" hi", False, False), ("\tj", False, True)],
    ]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(
    ("kind", "size"), [("byte", 260), ("char", 100), ("bpe", 120), ("unigram", 120), ("word", 2000)]
)
def test_the_tokens_of_parts_are_those_of_the_line(kind: str, size: int, lowercase: bool) -> None:
    options = schema.TokenizerSection(
        kind=kind,  # type: ignore[arg-type]
        vocabulary_size=size,
        lowercase=lowercase,
        **({} if kind == "byte" else {"user_symbols": ["<doc>"]}),
    )
    whole, divided = parts_of(LINES, 10_000), parts_of(LINES, 150)
    assert len(whole) < len(divided)
    tokenizer = train_tokenizer(options, [each.text for each in whole])
    ids, counts = encode_lines(tokenizer, whole)
    found, sizes = encode_lines(tokenizer, divided)
    assert found.tolist() == ids.tolist() and sizes == counts
    again = train_tokenizer(options, [each.text for each in divided])  # the same vocabulary
    assert again.pieces(range(again.size)) == tokenizer.pieces(range(tokenizer.size))


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_line_of_any_length_is_read_in_bounded_memory(name: str, tmp_path: Path) -> None:
    content = b"word " * (6 * LONGEST_LINE // 5)
    (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    size = len(content)
    del content
    tracemalloc.start()
    try:
        assert sum(each.characters for each in read_line_parts(tmp_path / name)) == size + 1
        assert tracemalloc.get_traced_memory()[1] < LONGEST_LINE
    finally:
        tracemalloc.stop()


def test_damage_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `read_lines`, wherever a chunk ends."""
    path = tmp_path / "text"

    def said(error: UserError) -> str:  # without Python's reason, which depends on what follows
        return re.sub(r"\(.* at byte", "(at byte", str(error))

    for content in (
        b"a\nb\xc3\xa4\n\xe4\n",
        b"\xff",
        b"ab\xe4\xbd\n",
        b"abc\n\xf0\x9f\x98",
        "日本\n".encode() + b"\xed\xa0\x80",
    ):
        path.write_bytes(content)
        with pytest.raises(UserError) as expected:
            list(read_lines(path))
        for at_once in (1, 2, 3, 100):
            monkeypatch.setattr(text, "_AT_ONCE", at_once)
            with pytest.raises(UserError) as found:
                list(read_line_parts(path))
            assert said(found.value) == said(expected.value)
        monkeypatch.undo()
    path.write_bytes(gzip.compress(b"1\n" * 99_999)[:50])
    with pytest.raises(UserError, match="the gzip file ends early, after line"):
        list(read_line_parts(path))


def test_a_text_of_one_line_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of more than ten million bytes, as of text8: tokens, sizes and the check before training."""
    monkeypatch.setattr(line_parts, "PART", 100_000)
    words = " ".join(invented_lines(2000))
    train = (words + " ") * (LONGEST_LINE // len(words) + 1)
    assert len(train) > LONGEST_LINE
    (tmp_path / "train.txt").write_text(train, encoding="utf-8")
    (tmp_path / "dev.txt").write_text(words, encoding="utf-8")
    data = schema.Data(
        task="language_model",
        directory=str(tmp_path / "prepared"),
        train=[schema.Corpus(text=str(tmp_path / "train.txt"))],
        dev=schema.Corpus(text=str(tmp_path / "dev.txt")),
        tokenizer=schema.TokenizerSection(kind="char", vocabulary_size=40),
    )
    report = prepare(data)
    assert f"train.txt: 1 line, {len(train) + 1:,} characters, {len(train) + 1:,} tokens\n" in report.describe()
    (dataset,) = PreparedText.open(data.directory).train
    assert dataset.counts.words == len(train.split()) + 1 and dataset.counts.bytes == len(train) + 1
    tokenizer = PreparedText.open(data.directory).tokenizer
    assert tokenizer.decode(dataset.ids[-2000:-1].tolist()) == train[-1999:]
    assert tokenizer.decode(dataset.ids[99_000:101_000].tolist()) == train[99_000:101_000]
    (tmp_path / "train.txt").touch()  # read again
    assert check_prepared_data(data, ()) == report.fingerprint and prepare(data).up_to_date
