"""docs/guides/depth.md: its commands are ones that the program understands, and its recipes are there."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from sparsenmt.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/depth.md").read_text(encoding="utf-8")
PAIR = {"n": "2", "m": "1"}


def commands() -> list[list[str]]:
    """The words after `sparsenmt` of every command with arguments, in a block or in a sentence."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    shown = [line for language, block in fenced if not language for line in block.replace("\\\n", " ").split("\n")]
    shown += re.findall(r"`(sparsenmt [a-z-]+ [^`]+)`", PAGE)
    words = [shlex.split(line) for line in shown if line.startswith("sparsenmt ")]
    return [[PAIR.get(word, word) for word in line[1:]] for line in words]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands(words: list[str]) -> None:
    command: click.Command = importlib.import_module(f"sparsenmt.commands.{COMMANDS[words[0]].module}").command
    command.make_context(words[0], words[1:])  # parsed, not run
    for word in words:
        assert not word.startswith("recipes/") or (ROOT / word).is_file(), word


def test_there_are_commands_and_recipes() -> None:
    assert {words[0] for words in commands()} >= {
        "train",
        "sweep",
        "decode",
        "score",
        "slice",
        "depth-table",
        "distill",
    }
    named = set(re.findall(r"`((?:sweeps/)?(?:multi30k|wmt18)-[a-z0-9-]+\.yaml)`", PAGE))
    assert len(named) == 14 and all((ROOT / "recipes" / name).is_file() for name in named), named
