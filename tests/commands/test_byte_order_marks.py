"""A byte order mark at the beginning of a file is no text, whatever the file is for; a note tells of it once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.cli import run
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.storage.files import write_json
from tests.commands.support import Run

MARK = b"\xef\xbb\xbf"
NOTE = "begins with a byte order mark, which is not read as text"
TEXT_MODEL = """\
name: text
directory: text-model
model: {preset: tiny}
data:
  task: language_model
  directory: prepared-text
  train: [{text: corpus/train.de}]
  dev: {text: corpus/dev.de}
  tokenizer: {vocabulary_size: 150}
"""
DOCUMENTS = """\
base: small.yaml
data:
  directory: prepared-blocks
  documents: {max_length: 60}
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de, documents: corpus/train.id}]
  dev: {documents: corpus/dev.id}
"""
SWEEP = "name: s\ndirectory: s\nrecipe: small.yaml\nsets: [dev]\nvariants: [{name: a}]\n"
DE, EN = "corpus/dev.de", "corpus/dev.en"
CORPORA = [f"corpus/{name}.{side}" for name in ("train", "dev") for side in ("en", "de")]


def mark(path: Path) -> None:
    content = path.read_bytes()
    packed = content.startswith(b"\x1f\x8b")
    path.write_bytes(gzip.compress(MARK + gzip.decompress(content)) if packed else MARK + content)


@pytest.fixture
def corpus(workspace: Path) -> Path:
    """The corpora with ids of documents and tags, packed hypotheses, and recipes."""
    for name, lines in (("train", 200), ("dev", 20)):
        write_lines(workspace / "corpus" / f"{name}.id", [str(number // 5) for number in range(lines)])
    words = [line.split(" ") for line in read_lines(workspace / EN)]
    write_lines(workspace / "corpus" / "dev.tags", [" ".join(f"{each}_NN" for each in line) for line in words])
    (workspace / "corpus" / "dev.de.gz").write_bytes(gzip.compress((workspace / DE).read_bytes()))
    for name, content in (("text.yaml", TEXT_MODEL), ("blocks.yaml", DOCUMENTS), ("sweep.yaml", SWEEP)):
        (workspace / name).write_bytes(content.encode())
    errors = [{"contrastive": "Zwei", "type": "number"}]
    write_json(workspace / "suite.json", [{"source": "One", "reference": "Ein", "errors": errors}])
    return workspace


FORCED = ("score", "--model", "model", "--source", EN, "--target", DE)


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        (["score", "corpus/dev.de.gz", "-r", DE], [DE]),
        (["score", "corpus/dev.de.gz", "-r", DE], ["corpus/dev.de.gz"]),
        (["score", DE, "-r", DE, "-m", "dbleu", "--documents", "corpus/dev.id"], ["corpus/dev.id"]),
        (["score", "--model", "model", "--source", EN, "-r", DE], [EN, DE]),
        ([*FORCED, "--tags", "corpus/dev.tags"], [EN, DE, "corpus/dev.tags"]),
        (["decode", "model", "-i", EN], [EN]),
        (["contrast", "model", "--source", EN, "--correct", DE, "--incorrect", "corpus/dev.de.gz"], [EN, DE]),
        (["contrast", "model", "suite.json"], ["suite.json"]),
        (["analyze", "diversity", "model", "-i", EN], [EN]),
        (["sweep", "sweep.yaml", "--list"], ["sweep.yaml", "small.yaml"]),
    ],
    ids=lambda value: " ".join(value) if value[0] in ("score", "decode", "contrast", "analyze", "sweep") else "",
)
def test_output_is_the_same_with_a_mark(corpus: Path, command: Run, words: list[str], marked: list[str]) -> None:
    before = command(*words)
    for name in marked:
        mark(corpus / name)
    after = command(*words)
    assert before.code == 0 and after.code == 0, before.err + after.err
    assert after.out == before.out and NOTE not in before.err
    assert [after.err.count(f"{name}: {NOTE}") for name in marked] == [1] * len(marked), after.err


def test_standard_input_may_begin_with_a_mark(corpus: Path, command: Run) -> None:
    text = (corpus / EN).read_bytes()
    plain, marked = command("decode", "model", stdin=text), command("decode", "model", stdin=MARK + text)
    assert marked.out == plain.out and f"stdin: {NOTE}" in marked.err
    assert command("decode", "model", stdin=MARK).out == b""


@pytest.mark.parametrize(
    ("recipe", "marked"),
    [
        ("small", [*CORPORA, "small.yaml"]),
        ("text", ["corpus/train.de", DE]),
        ("blocks", ["corpus/train.id", "corpus/dev.id"]),
    ],
)
def test_prepared_data_are_the_same_with_a_mark(
    corpus: Path, command: Run, recipe: str, marked: list[str], contents: Callable[[Path], dict[str, bytes]]
) -> None:
    assert command("prepare", f"{recipe}.yaml", "data.directory=a").code == 0
    for name in marked:
        mark(corpus / name)
    after = command("prepare", f"{recipe}.yaml", "data.directory=b")
    assert after.code == 0 and contents(corpus / "a") == contents(corpus / "b")
    assert [after.err.count(f"{name}: {NOTE}") for name in marked] == [1] * len(marked), after.err


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Read all files of a folder but the manifest, which names times and paths."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_other_encodings_are_refused(corpus: Path, refused: Callable[..., str], encoding: str) -> None:
    text = "\ufeff".encode(encoding) if encoding.endswith("be") else b""
    (corpus / "wide").write_bytes(text + "ein Satz\n".encode(encoding))
    message = "the text is UTF-16 or UTF-32 by its byte order mark, not UTF-8"
    for words in (["score", "wide", "-r", "wide"], ["decode", "model", "-i", "wide"], ["prepare", "wide"]):
        assert f"wide: {message}\n  Recode it" in refused(*words)
    assert f"stdin: {message}" in refused("decode", "model", stdin=(corpus / "wide").read_bytes())
    (corpus / DE).write_bytes((corpus / "wide").read_bytes())
    assert f"{DE}: {message}" in refused("prepare", "small.yaml", "data.directory=c")


def test_a_mark_within_a_text_is_text(corpus: Path, command: Run) -> None:
    write_lines(corpus / "a", ["\ufeffx", "\ufeffy"])
    assert list(read_lines(corpus / "a")) == ["x", "\ufeffy"]
    assert run(["score", "a", "-r", "a"]) == 0
