"""docs/start/tutorial.md: its recipe loads, its commands are ones that the program understands, and they run."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sparsenmt.cli import COMMANDS
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.recipe.load import load
from sparsenmt.sparsity.registry import methods

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs/start/tutorial.md").read_text(encoding="utf-8")
SMALLER = {
    "vocabulary_size: 4000": "vocabulary_size: 300",
    "max_updates: 1200": "max_updates: 6",
    "batch_tokens: 2048": "batch_tokens: 256",
    "warmup_updates: 200": "warmup_updates: 2",
    "save_every: 100": "save_every: 2",
    "every: 200": "every: 6",
    "max_sentences: 200": "max_sentences: 4",
    "max_updates=400": "max_updates=4",
    "save_every=50": "save_every=2",
    "| head -1": "| sed -n 1p",  # reads to the end: a program whose output is not read any more fails
}
"""Text of the page -> one that takes seconds."""


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
    assert {words[0] for words in commands()} == {"prepare", "train", "decode", "score", "average", "report"}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_commands_run_one_after_the_other(recipe: Path, tmp_path: Path) -> None:
    """As the page has them, but for sizes: the example of an interrupt trains to its end, and finds nothing to do."""
    write_demo_corpus(tmp_path / "data", train=200, dev=10, test=6)
    lines = [line[2:] for block in blocks("console") for line in block.split("\n") if line.startswith("$ ")]
    text, script = recipe.read_text(encoding="utf-8"), "\n".join(lines)
    for large, small in SMALLER.items():
        assert large in text + script, large
        text, script = text.replace(large, small), script.replace(large, small)
    recipe.write_text(text, encoding="utf-8", newline="\n")
    program = f'sparsenmt() {{ {shlex.quote(sys.executable)} -m sparsenmt "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", program + script],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=850,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert len((tmp_path / "test.out").read_text(encoding="utf-8").splitlines()) == 6
    assert (tmp_path / "runs/de-en-average/weights.safetensors").is_file()
