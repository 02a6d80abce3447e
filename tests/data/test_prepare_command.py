"""The command `prepare`, on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sparsenmt.commands.prepare import command
from sparsenmt.data.prepare.pipeline import PreparedData
from sparsenmt.data.text import write_lines
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema

RECIPE = """\
name: small
directory: {root}/model
data:
  directory: {root}/prepared
  train:
    - {{name: invented, source: train0.s, target: train0.t}}
  dev: {{source: dev.s, target: dev.t}}
  tokenizer: {{vocabulary_size: 60}}
"""


@pytest.fixture
def recipe(make_data: Callable[..., schema.Data], tmp_path: Path) -> Path:
    make_data()
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.format(root=tmp_path), encoding="utf-8", newline="\n")
    return path


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_prepares_once(recipe: Path, tmp_path: Path) -> None:
    output = run(recipe)
    assert "invented: 300 of 300 pairs kept" in output
    assert "written" in output
    assert len(PreparedData.open(tmp_path / "prepared").train[0]) == 300
    assert "up to date" in run(recipe)
    assert "written" in run(recipe, "data.tokenizer.vocabulary_size=61")
    assert PreparedData.open(tmp_path / "prepared").tokenizers.source.size == 61


def test_dump_config(recipe: Path, tmp_path: Path) -> None:
    output = run(recipe, "data.tokenizer.vocabulary_size=70", "--dump-config")
    assert "vocabulary_size: 70" in output
    assert str(tmp_path / "train0.s") in output
    assert not (tmp_path / "prepared").exists()


def test_mistakes(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        run(tmp_path / "missing.yaml")
    (tmp_path / "dev.t").write_bytes(b"one line\n")
    with pytest.raises(UserError, match=r"dev\.t has 1"):
        run(recipe)
    assert not (tmp_path / "prepared").exists()


def test_a_unigram_vocabulary_that_is_smaller_than_wanted_says_so(recipe: Path) -> None:
    output = run(recipe, "data.tokenizer.kind=unigram", "data.tokenizer.vocabulary_size=5000")
    size = int(re.findall(r"unigram finds ([\d,]+) shared", output)[0].replace(",", ""))
    assert "5,000 tokens were wanted" in output and f"data.tokenizer.vocabulary_size={size}," in output
    enough = run(recipe, "data.tokenizer.kind=unigram", f"data.tokenizer.vocabulary_size={size}")
    assert f"vocabulary: {size:,} shared tokens" in enough and "wanted" not in enough
    with pytest.raises(UserError, match=r"target: a vocabulary of 5000 bpe tokens|source: a vocabulary of 5000 bpe"):
        run(recipe, "data.tokenizer.shared=false", "model.tie_embeddings=none", "data.tokenizer.vocabulary_size=5000")


def test_the_coverage_of_characters_is_told(recipe: Path, tmp_path: Path) -> None:
    assert "characters: " not in run(recipe)  # an alphabet, as a whole
    output = run(recipe, "data.tokenizer.kind=char", "data.tokenizer.character_coverage=0.9")
    assert re.search(r"characters: \d+ shared, 90% of the running text; others are unknown", output)
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 1200)))
    write_lines(tmp_path / "train0.s", [many[start : start + 4] for start in range(0, 1200, 4)])
    output = run(recipe, "data.tokenizer.kind=char", "data.tokenizer.vocabulary_size=3000")
    assert re.search(r"characters: 1,2\d\d shared, all of the training text", output)
