"""A rule that reads tags, from `prepare` to `decode --tags` and `score --tags`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tagging import taggers
from sparsenmt.data.tagging.taggers import split_words
from sparsenmt.data.tagging.tagsets import TagSet
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.errors import UserError
from tests.commands.conftest import RECIPE
from tests.commands.support import Run

RULE = """\
base: small.yaml
name: ruled
directory: ruled
model: {memory: [{name: pos, later_pieces: false, drop: [content]}]}
data: {directory: prepared-ruled}
"""


class ShortWords:
    """Short words are articles, long ones are nouns."""

    name, version = "hanta", "1"
    tagset: TagSet = "penn"

    def __init__(self, language: str) -> None:
        self.language = language

    def tokenize(self, line: str) -> list[str]:
        return split_words(line, self.language)

    def tag(self, words: Sequence[str]) -> list[str]:
        return ["NN" if len(word) > 3 else "DT" if word[0].isalpha() else "." for word in words]


def tagged(lines: Sequence[str], noun: str = "NN") -> list[str]:
    tagger = ShortWords("en")
    cut = [tagger.tokenize(line) for line in lines]
    return [
        " ".join(f"{word}_{tag}" for word, tag in zip(words, tagger.tag(words), strict=True)).replace("_NN", f"_{noun}")
        for words in cut
    ]


@pytest.fixture
def fake_tagger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(taggers._TAGGERS, "hanta", ShortWords)


@pytest.fixture
def no_tagger(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def missing(language: str) -> taggers.Tagger:
        raise UserError("HanTa is not installed", where="x", hint="Install it.")

    return lambda: monkeypatch.setitem(taggers._TAGGERS, "hanta", missing)


@pytest.fixture(scope="module")
def ruled_folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``trained`` with a model that has the rule, fine-tuned for some updates; a text; tags for it."""
    folder = tmp_path_factory.mktemp("ruled") / "work"
    shutil.copytree(trained, folder)
    (folder / "ruled.yaml").write_text(RULE, encoding="utf-8", newline="\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(taggers._TAGGERS, "hanta", ShortWords)
        assert run(["prepare", "ruled.yaml"]) == 0
        assert run(["train", "ruled.yaml", "--from", "model", "training.max_updates=4"]) == 0
    lines = [*list(read_lines(folder / "corpus/test.en"))[:6], "", "one"]
    write_lines(folder / "in", lines)
    write_lines(folder / "tags", tagged(lines))
    write_lines(folder / "few", tagged(lines)[:-1])
    write_lines(folder / "other", [*tagged(lines)[:3], "a_DT", *tagged(lines)[4:]])
    return folder


@pytest.fixture
def workspace(ruled_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of ``ruled_folder``."""
    folder = tmp_path / "work"
    shutil.copytree(ruled_folder, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ruled(workspace: Path, fake_tagger: None) -> list[str]:
    """The lines of the text."""
    return list(read_lines(workspace / "in"))


def test_the_state_goes_with_the_model(ruled: list[str], workspace: Path) -> None:
    state = json.loads((workspace / "ruled/features/tagging.json").read_bytes())
    assert state == {
        "tagger": "hanta", "language": "en", "version": "1", "given_tagset": None, "tagger_tagset": "penn",
    }  # fmt: skip


def test_given_tags_are_those_that_the_tagger_makes(
    ruled: list[str], command: Run, workspace: Path, no_tagger: Callable[[], None]
) -> None:
    made = command("decode", "ruled", "-i", "in", "--json")
    assert made.code == 0, made.err
    forced = command("score", "--model", "ruled", "--source", "in", "--target", "in")
    no_tagger()
    given = command("decode", "ruled", "-i", "in", "--json", "--tags", "tags")
    assert (given.code, given.out) == (0, made.out), given.err
    stdin = command("decode", "ruled", "--json", "--tags", "tags", stdin=(workspace / "in").read_bytes())
    assert (stdin.code, stdin.out) == (0, made.out), stdin.err
    small = command("decode", "ruled", "-i", "in", "--json", "--tags", "tags", "--window", "2", "-o", "out")
    assert small.code == 0 and (workspace / "out").read_bytes().count(b"\n") == len(ruled)
    beside = command("score", "--model", "ruled", "--source", "in", "--target", "in", "--tags", "tags")
    assert (beside.code, beside.out) == (0, forced.out)


def test_other_tags_give_other_gates(ruled: list[str], command: Run, workspace: Path) -> None:
    arguments = ("score", "--model", "ruled", "--source", "in", "--reference", "in", "--json", "--tags")
    write_lines(workspace / "kept", tagged(ruled, noun="CD"))
    rates = [json.loads(command(*arguments, name).out)["sparsity"] for name in ("tags", "kept")]
    assert rates[0] > 0 == rates[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("few", "few: 7 tagged sentences, but in has 8 lines"),
        ("other", "other, line 4: the 1 tagged words are not those of line 4 of in"),
        ("in", "in, line 1: '"),
        ("nowhere", "nowhere: no such file"),
    ],
)
def test_tags_that_do_not_fit(
    ruled: list[str], command: Run, refused: Callable[..., str], name: str, message: str
) -> None:
    assert message in refused("decode", "ruled", "-i", "in", "-o", "out", "--tags", name)
    for wanted in ("--reference", "--target"):
        assert message in refused("score", "--model", "ruled", "--source", "in", wanted, "in", "--tags", name)


def test_tags_that_end_too_late_for_a_stream(ruled: list[str], command: Run) -> None:
    lines = "\n".join(ruled[:2]).encode()
    result = command("decode", "ruled", "--tags", "tags", stdin=lines)
    assert result.code == 2 and "8 tagged sentences, but stdin has 2 lines" in result.err


def test_no_tagger_and_no_tags(
    ruled: list[str], command: Run, refused: Callable[..., str], no_tagger: Callable[[], None]
) -> None:
    no_tagger()
    for arguments in (
        ("decode", "ruled", "-i", "in"),
        ("score", "--model", "ruled", "--source", "in", "--reference", "in"),
        ("score", "--model", "ruled", "--source", "in", "--target", "in"),
    ):
        message = refused(*arguments)
        assert "tagging.json: part-of-speech tags are needed, and none are given: HanTa is not installed" in message
        assert "--tags" in message


def test_a_model_that_reads_no_tags(ruled: list[str], command: Run, refused: Callable[..., str]) -> None:
    plain = command("decode", "model", "-i", "in")
    given = command("decode", "model", "-i", "in", "--tags", "tags")
    assert (given.code, given.out) == (0, plain.out)
    assert given.err == "warning: tags: the model reads no part-of-speech tags\n"
    assert "--tags: needs --model" in refused("score", "in", "--reference", "in", "--tags", "tags")


@pytest.mark.parametrize(("noun", "message"), [("NN", "resumes after line 2"), ("CD", "starts again")])
def test_a_run_goes_on_where_the_tags_are_the_same(
    ruled: list[str], command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch, noun: str, message: str
) -> None:
    arguments = ("decode", "ruled", "-i", "in", "--json", "--tags", "tags", "--window", "2")
    compute = FeatureSet.compute

    def stopped(self: FeatureSet, ids: Any, line: str, tags: Any) -> Any:
        if line == ruled[3]:
            monkeypatch.setattr(FeatureSet, "compute", compute)
            raise RuntimeError("a bug")
        return compute(self, ids, line, tags)

    monkeypatch.setattr(FeatureSet, "compute", stopped)
    assert command(*arguments, "-o", "out").code == 1
    write_lines(workspace / "tags", tagged(ruled, noun=noun))
    result = command(*arguments, "-o", "out")
    assert result.code == 0 and message in result.err
    assert (workspace / "out").read_bytes() == command(*arguments).out


def test_the_recipe_names_tags_beside_its_texts(command: Run, workspace: Path, no_tagger: Callable[[], None]) -> None:
    """Relative to the recipe, as the texts are; validation decodes with them."""
    no_tagger()
    for split in ("train", "dev"):
        write_lines(workspace / f"corpus/{split}.tags", tagged(list(read_lines(workspace / f"corpus/{split}.en"))))
    text = RECIPE.replace("target: corpus/train.de}", "target: corpus/train.de, tags: corpus/train.tags}")
    text = text.replace(
        "target: corpus/dev.de}", "target: corpus/dev.de, tags: corpus/dev.tags}\n  tagger: {name: given}"
    )
    text = text.replace("name: small\ndirectory: model\n", "name: given\ndirectory: given\n")
    text = text.replace("directory: prepared", "directory: prepared-given").replace("max_updates: 12", "max_updates: 6")
    text = text.replace("model: {preset", "model: {memory: [{name: pos}], preset")
    (workspace / "given.yaml").write_text(text, encoding="utf-8", newline="\n")
    for name in ("prepare", "train"):
        result = command(name, "given.yaml")
        assert result.code == 0, result.err
    state = json.loads((workspace / "given/features/tagging.json").read_bytes())
    assert state == {
        "tagger": "given", "language": "en", "version": None, "given_tagset": "penn", "tagger_tagset": None,
    }  # fmt: skip
    result = command("decode", "given", "-i", "corpus/dev.en")
    assert result.code == 2 and "part-of-speech tags are needed, and none are given" in result.err
    assert command("decode", "given", "-i", "corpus/dev.en", "--tags", "corpus/dev.tags").code == 0
