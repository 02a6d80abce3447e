"""Odd text: what is data, what is dropped and counted, what is refused."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenmt.data import text as text_module
from sparsenmt.data.prepare.pipeline import PreparedData, prepare
from sparsenmt.data.prepare.survey import survey_text
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from tests.examples import examples

MakeData = Callable[..., schema.Data]
Lines = Callable[..., list[str]]
KINDS = ("bpe", "unigram", "char", "word")


def refused(data: schema.Data) -> UserError:
    with pytest.raises(UserError) as caught:
        prepare(data)
    directory = Path(data.directory)
    assert not directory.exists() and not list(directory.parent.glob(".*"))
    assert caught.value.hint
    return caught.value


def unpacked(path: str) -> bytes:
    return Path(path).read_bytes()


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", "ä\u2028".encode(), b" ", b"\x00"])), st.integers(1, 4))
def test_survey_equals_reading_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], chunk: int
) -> None:
    text = b"".join(pieces)
    path = tmp_path_factory.mktemp("text") / "x"
    path.write_bytes(text)
    lines = text.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_AT_ONCE", chunk)
        found = survey_text(path)
    assert found.bytes == len(text)
    assert found.lines == len(lines)
    assert found.returns == sum(line.endswith(b"\r") for line in lines)
    assert found.blank == all(not line.decode().strip() for line in lines)


def test_the_hash_is_of_the_text_not_of_its_packing(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"a\nb\n")
    (tmp_path / "packed").write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    plain, packed = survey_text(tmp_path / "plain"), survey_text(tmp_path / "packed")
    assert plain.sha256 == packed.sha256 and plain.bytes != packed.bytes


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a pipe or a device"):
        survey_text(tmp_path / "pipe")


@pytest.mark.parametrize("kind", KINDS)
def test_windows_line_ends_are_text_and_warned_of(
    make_data: MakeData, lines: Lines, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(
        tokenizer={"kind": kind, "normalization": "identity", "vocabulary_size": 1000 if kind == "word" else 60}
    )
    source = Path(data.train[0].source)
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    prepare(data)
    warning = f"warning: {source}: 300 lines end in \\r (as in Windows), which is kept as text\n"
    assert capsys.readouterr().err == warning, "once, and nothing else"
    prepared = PreparedData.open(data.directory)
    for number, line in enumerate(lines(300)[:20]):
        ids = prepared.train[0].source(number).tolist()
        assert prepared.tokenizers.source.decode(ids) == f"{line}\r"
    assert prepare(data).up_to_date and not capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_characters_that_end_lines_elsewhere(make_data: MakeData, lines: Lines, kind: str) -> None:
    odd = ["ka\u2028lo", "ka\x0clo", "ka\x85lo", "ka\x1clo", "ka\x00lo", "\ufeffka"] * 3
    tokenizer = {"kind": kind, "normalization": "identity", "vocabulary_size": 1000 if kind == "word" else 90}
    data = make_data([(odd + lines(99), odd + lines(99, seed=1))], tokenizer=tokenizer)
    assert prepare(data).corpora[0].counts.kept == len(odd) + 99
    prepared = PreparedData.open(data.directory)
    for number, line in enumerate(odd):
        decoded = prepared.tokenizers.source.decode(prepared.train[0].source(number).tolist())
        # To SentencePiece a NUL is always unknown.
        assert decoded == (line if kind in ("char", "word") else line.replace("\x00", "\u2047"))


@pytest.mark.parametrize("kind", KINDS)
@examples("space", ["", " "])
def test_lines_of_a_megabyte(make_data: MakeData, lines: Lines, kind: str, space: str) -> None:
    long = space.join(["kalomi", "tersun", "garepol"] * 60_000)
    assert len(long) > 1_000_000
    sides = (["ka lo", long, "mi", *lines(99)], ["ka", "lo mi", long, *lines(99, seed=1)])
    tokenizer = {"kind": kind, "vocabulary_size": 1000 if kind == "word" else 60}
    report = prepare(make_data([sides], ([long], ["ka"]), tokenizer=tokenizer))
    # To a tokenizer of words, a word of a megabyte is one unknown piece.
    too_long = 0 if kind == "word" and not space else 2
    assert report.corpora[0].counts.read == 102
    assert report.corpora[0].counts.removed["max_length"] == too_long
    assert report.corpora[0].counts.kept == 102 - too_long
    assert PreparedData.open(report.directory).dev_lines == [(long, "ka")]


def test_empty_lines_on_one_side_are_dropped_and_counted(make_data: MakeData) -> None:
    sides = (["a b", "", "a", "   ", "b"], ["x", "y", "", "z", "\u3000"])
    report = prepare(make_data([sides], tokenizer={"kind": "bpe", "vocabulary_size": 12}))
    assert report.corpora[0].counts.removed["empty"] == 4
    assert PreparedData.open(report.directory).train[0].line_numbers.tolist() == [0]
    assert "4 removed by empty" in report.describe()


def test_unequal_files(make_data: MakeData, lines: Lines) -> None:
    error = refused(make_data([(lines(9), lines(9)), (lines(1200), lines(1199))]))
    assert "train1.s has 1,200" in error.message and "train1.t has 1,199" in error.message
    assert "dev.s has 3" in refused(make_data(dev=(lines(3), []))).message


def test_invalid_text_is_named_with_its_line(make_data: MakeData) -> None:
    data = make_data()
    Path(data.train[0].target).write_bytes(b"a\nb\xc3\n")
    assert refused(data).where == f"{data.train[0].target}, line 2"
    Path(data.train[0].target).write_bytes(b"a\nb\xc3")
    assert refused(data).where == f"{data.train[0].target}, line 2"


@pytest.mark.parametrize("cut", [1, 8, 30])
def test_gzip_that_ends_early(make_data: MakeData, cut: int) -> None:
    data = make_data()
    packed = gzip.compress(Path(data.train[0].source).read_bytes())
    Path(data.train[0].source).write_bytes(packed[:-cut])
    error = refused(data)
    assert "the gzip file ends early" in error.message and error.where == data.train[0].source


def test_the_same_text_twice(make_data: MakeData, lines: Lines, tmp_path: Path) -> None:
    data = make_data([(lines(50), lines(50, seed=1)), (lines(50), lines(50, seed=1))])
    error = refused(data)
    assert "'train0' and 'train1' contain the same text" in error.message and "weight: 2" in (error.hint or "")
    packed = tmp_path / "other.gz"
    packed.write_bytes(gzip.compress(Path(data.train[1].source).read_bytes()))
    twin = data.train[1].model_copy(update={"source": str(packed)})
    assert "contain the same text" in refused(data.model_copy(update={"train": [data.train[0], twin]})).message
    # The same sources with other targets are other pairs.
    prepare(make_data([(lines(50), lines(50, seed=1)), (lines(50), lines(50, seed=2))]))


@pytest.mark.parametrize("side", [0, 1])
def test_a_blank_side_of_the_validation_text(make_data: MakeData, lines: Lines, side: int) -> None:
    dev = [lines(3), lines(3)]
    dev[side] = ["", " ", "\u3000\r"]
    data = make_data(dev=(dev[0], dev[1]))
    error = refused(data)
    assert error.message == "every line of the validation text is blank"
    assert error.where == (data.dev.source, data.dev.target)[side]


def test_no_pairs(make_data: MakeData) -> None:
    assert refused(make_data([([], [])])).message == "the corpus is empty"
    assert refused(make_data(dev=([], []))).message == "the corpus is empty"
