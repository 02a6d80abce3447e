"""`sparsenmt distill`: text, data and student, in stages; what is complete is kept; what does not fit is refused."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.data.prepare.chosen_lines import chosen_lines
from sparsenmt.decoding import translate
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.recipe.load import load
from sparsenmt.recipe.schema import Corpus
from sparsenmt.sparsity.registry import methods
from sparsenmt.storage.files import read_sealed, write_sealed
from tests.commands.support import Run

LINES = 30
TEXT = Path("distilled-text")
DISTILL = ("distill", "model", "student.yaml", "--method", "greedy", "--window", "10", "--threads", "1")
STUDENT = """\
base: small.yaml
name: student
directory: student
data:
  directory: distilled
  train: [{name: first, source: first.en, target: nowhere.de}, {name: second, source: second.en.gz, target: no.de}]
  tokenizer: {vocabulary_size: 120}
training: {max_updates: 2, save_every: 2, validation: {every: 2}}
"""


@pytest.fixture
def student(workspace: Path) -> Path:
    """A recipe whose corpora have no targets."""
    lines = Path("corpus/train.en").read_bytes().split(b"\n")
    Path("first.en").write_bytes(b"\n".join(lines[:LINES]))  # without a line end after the last one
    Path("second.en.gz").write_bytes(gzip.compress(b"\n".join([*lines[LINES : LINES + 5], b""])))
    Path("student.yaml").write_text(STUDENT, encoding="utf-8", newline="\n")
    return workspace


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first line of every batch that is searched; `Stop` at a line ends it once."""
    found: list[int] = []
    encode = translate.encoded_batch

    def noting(bundle: Any, memory: Any, numbers: Any, lines: Any, options: Any) -> Any:
        found.append(min(each.number for each in lines))
        return encode(bundle, memory, numbers, lines, options)

    monkeypatch.setattr(translate, "encoded_batch", noting)
    return found


def test_a_student_is_trained_on_what_the_teacher_says(command: Run, student: Path) -> None:
    result = command(*DISTILL)
    assert result.code == 0, result.err
    for number, source in enumerate(("first.en", "second.en.gz")):
        given = Path(source).read_bytes()
        text = (gzip.decompress(given) if source.endswith(".gz") else given).removesuffix(b"\n") + b"\n"
        assert (TEXT / f"train-{number}.source").read_bytes() == text
        expected = command("decode", "model", "-i", source, "--method", "greedy", "--threads", "1", "--window", "10")
        assert (TEXT / f"train-{number}.target").read_bytes() == expected.out
        assert text.count(b"\n") == expected.out.count(b"\n")
    assert "[1/2] first: model translates" in result.err and "[2/2] second: model translates" in result.err
    assert "distilled: the student splits the teacher's text by a vocabulary of its own" in result.err
    assert command("decode", "student", "-i", "corpus/test.en").code == 0
    recipe = load(TEXT / "student.yaml", methods())
    assert [Path(corpus.target) for corpus in recipe.data.train] == [
        (TEXT / f"train-{number}.target").resolve() for number in (0, 1)
    ]
    assert Path(recipe.data.dev.target) == Path("corpus/dev.de").resolve()
    again = command("train", TEXT / "student.yaml")
    assert again.code == 0 and "nothing is left to do" in again.err


def test_each_stage_goes_on_where_it_stopped(
    command: Run, student: Path, searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = command(*DISTILL, "--corpus", "whole-text", "--until", "corpus")
    assert whole.code == 0 and not Path("distilled").exists()
    noting = translate.encoded_batch

    def stopping(bundle: Any, memory: Any, numbers: Any, lines: Any, options: Any) -> Any:
        if any(each.number == 15 for each in lines):
            monkeypatch.setattr(translate, "encoded_batch", noting)
            raise Interrupted(signal.SIGTERM)
        return noting(bundle, memory, numbers, lines, options)

    monkeypatch.setattr(translate, "encoded_batch", stopping)
    stopped = command(*DISTILL)
    assert stopped.code == 143 and "distilled-text/train-0.target is kept up to line 10" in stopped.err
    assert f"Resume with: sparsenmt {' '.join(DISTILL)}\n" in stopped.err
    assert not (TEXT / "train-0.target").exists()
    result = command(*DISTILL, "--until", "data")
    assert result.code == 0 and "distilled-text/train-0.target: resumes after line 10" in result.err
    assert not Path("student").exists()
    for name in ("train-0.source", "train-0.target", "train-1.source", "train-1.target"):
        assert (TEXT / name).read_bytes() == (Path("whole-text") / name).read_bytes()
    searches.clear()
    result = command(*DISTILL)
    assert result.code == 0 and searches.count(0) == 2, "validations before and after training, not the teacher"
    assert "[1/2] first: is translated" in result.err and "distilled: up to date" in result.err


def test_text_that_was_complete_before_its_record_is_taken(command: Run, student: Path, searches: list[int]) -> None:
    assert command(*DISTILL, "--until", "corpus").code == 0
    record = read_sealed(TEXT / "train-0.json")
    write_sealed(TEXT / "train-0.json", {**record, "files": None})
    searches.clear()
    assert command(*DISTILL, "--until", "corpus").code == 0 and not searches
    assert read_sealed(TEXT / "train-0.json") == record


def test_another_student_takes_the_same_text(command: Run, student: Path, searches: list[int]) -> None:
    assert command(*DISTILL, "--until", "corpus").code == 0
    searches.clear()
    other = (*DISTILL, "directory=other", "data.directory=other-data", "data.tokenizer.vocabulary_size=100")
    assert command(*other, "--corpus", str(TEXT), "--until", "data").code == 0 and not searches
    assert Path("other-data/manifest.json").exists()


def test_with_several_processes_the_text_must_be_there(
    command: Run, student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun first, with `--until data`" in command(*DISTILL).err
    assert not TEXT.exists()


def test_other_options_would_give_other_text(command: Run, student: Path, refused: Callable[..., str]) -> None:
    assert command(*DISTILL, "--until", "corpus").code == 0
    message = refused(*DISTILL, "--min-length", "3")
    assert "train-0.json: the distilled text was made otherwise: decoding.min_length is 3 instead of 0" in message
    Path("first.en").write_bytes(b"another text\n")
    assert "the source has changed" in refused(*DISTILL)


def test_text_that_was_changed_is_not_used(command: Run, student: Path, refused: Callable[..., str]) -> None:
    assert command(*DISTILL, "--until", "corpus").code == 0
    with (TEXT / "train-1.target").open("ab") as stream:
        stream.write(b"x\n")
    assert "train-1.target: damaged" in refused(*DISTILL)


def test_a_file_of_somebody_else_stays(student: Path, refused: Callable[..., str]) -> None:
    TEXT.mkdir()
    (TEXT / "train-0.target").write_bytes(b"mine\n")
    assert "was not written by `sparsenmt distill`" in refused(*DISTILL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["data.source_language=fr"],
            "data.source_language: the teacher's source language is 'en', the student's 'fr'",
        ),
        (
            ["data.target_language=fr"],
            "data.target_language: the teacher's target language is 'de', the student's 'fr'",
        ),
        (["data.directory=prepared"], "prepared: is in use already, but the distilled text is not complete"),
        (["directory=model"], "teacher, student, prepared data and distilled text must have directories of their own"),
        (["data.directory=distilled", "--corpus", "distilled/text"], "must have directories of their own"),
        (["--corpus", "small.yaml"], "small.yaml: this is a file"),
    ],
)
def test_what_does_not_fit_is_refused(
    student: Path, refused: Callable[..., str], arguments: list[str], message: str
) -> None:
    assert message in refused(*DISTILL, *arguments)


def test_what_is_no_teacher(student: Path, refused: Callable[..., str]) -> None:
    assert "prepared: this is not a model directory" in refused("distill", "prepared", "student.yaml")
    assert "nothing.yaml: there is no such file" in refused("distill", "model", "nothing.yaml")


def test_data_of_other_text_are_not_replaced(command: Run, student: Path, refused: Callable[..., str]) -> None:
    assert command(*DISTILL, "--until", "corpus").code == 0
    assert command("prepare", "small.yaml", "data.directory=distilled").code == 0
    before = Path("distilled/manifest.json").read_bytes()
    result = command(*DISTILL)
    assert result.code == 2 and "distilled: holds data that were prepared from other text than" in result.err
    assert Path("distilled/manifest.json").read_bytes() == before


def test_unlike_teachers_are_warned_of(command: Run, student: Path) -> None:
    result = command(*DISTILL, "data.filters.max_length=300", "--until", "corpus")
    assert "warning: the teacher was trained on pairs of at most 256 tokens, the student's recipe has 300" in result.err
    assert "the student's recipe" not in command(*DISTILL, "--until", "corpus").err
    assert json.loads((TEXT / "train-0.json").read_bytes())["work"]["decoding"]["method"] == "greedy"


@pytest.mark.parametrize("seed", [None, 3])
def test_the_lines_of_a_corpus_that_are_used_are_translated(command: Run, student: Path, seed: int | None) -> None:
    sources = Path("first.en").read_text().split("\n")
    options = ["data.train.0.lines=7", *([] if seed is None else [f"data.train.0.lines_seed={seed}"])]
    assert command(*DISTILL, *options).code == 0
    chosen = chosen_lines(Corpus(source="first.en", target="nowhere.de", lines=7, lines_seed=seed), LINES)
    assert (TEXT / "train-0.source").read_text().splitlines() == [sources[line] for line in chosen]
    assert len((TEXT / "train-0.target").read_text().splitlines()) == 7
    own = load(TEXT / "student.yaml", methods=methods()).data.train[0]
    assert (own.lines, own.lines_seed) == (None, None) and read_sealed(TEXT / "train-0.json")["work"]["lines"] == 7
    assert command(*DISTILL, *options).code == 0
    assert "lines is 8 instead of 7" in command(*DISTILL, "data.train.0.lines=8", *options[1:]).err
