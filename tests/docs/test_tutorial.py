"""docs/start/tutorial.md: its recipe loads, and its commands are ones that the program understands."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from sparsenmt.cli import COMMANDS
from sparsenmt.recipe.load import load
from sparsenmt.sparsity.registry import methods

TUTORIAL = (Path(__file__).resolve().parents[2] / "docs/start/tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The words after `sparsenmt` of every command in a console block or in a sentence."""
    shown = [line[2:] for block in blocks("console") for line in block.split("\n") if line.startswith("$ ")]
    shown += re.findall(r"`(sparsenmt [a-z]+ [^`]+)`", re.sub(r"^```.*?^```$", "", TUTORIAL, flags=re.M | re.S))
    parts = [part.strip() for line in shown for part in line.split(" | ")]
    return [shlex.split(part)[1:] for part in parts if part.startswith("sparsenmt ")]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (text,) = blocks("yaml")
    path = tmp_path / "de-en.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_recipe(recipe: Path) -> None:
    assert load(recipe, methods()).data.tokenizer.vocabulary_size == 4000


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands(words: list[str], recipe: Path) -> None:
    command: click.Command = importlib.import_module(f"sparsenmt.commands.{COMMANDS[words[0]].module}").command
    parameters = command.make_context(words[0], words[1:]).params  # parsed, not run
    assert parameters.keys() == {each.name for each in command.params if each.expose_value}
    if overrides := parameters.get("overrides"):
        assert load(recipe, methods(), overrides) != load(recipe, methods())


def test_there_are_commands() -> None:
    assert {words[0] for words in commands()} == {"prepare", "train", "decode", "score", "average"}
