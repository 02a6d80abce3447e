"""README.md: its method, its recipe, its commands and its Python run as they are printed."""

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
from safetensors.torch import load_file

from sparsenmt.cli import COMMANDS
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.recipe.load import load
from sparsenmt.sparsity.registry import methods

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

TINY = """\
name: tiny
directory: runs/model
model:
  dimension: 16
  feed_forward: 24
  heads: 2
  encoder_layers: 1
  decoder_layers: 1
  attention: {cross: {transform: {name: temperature}}}
data:
  directory: runs/data
  train: [{source: ../runs/demo/corpus/train.en, target: ../runs/demo/corpus/train.de}]
  dev: {source: ../runs/demo/corpus/dev.en, target: ../runs/demo/corpus/dev.de}
  tokenizer: {kind: word, vocabulary_size: 300}
training: {max_updates: 4, threads: 1, device: cpu, batch_tokens: 256, learning_rate: 0.02, warmup_updates: 1}
decoding: {beam_size: 2, max_length_factor: 0, max_length_offset: 12}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_method_and_the_python(tmp_path: Path) -> None:
    method, program = blocks("python")
    assert method.startswith("# temperature.py") and "load_recipe" in program
    (tmp_path / "temperature.py").write_text(method, encoding="utf-8", newline="\n")
    (tmp_path / "program.py").write_text(program, encoding="utf-8", newline="\n")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/demo.yaml").write_text(TINY, encoding="utf-8", newline="\n")
    write_demo_corpus(tmp_path / "runs/demo/corpus", train=100, dev=10, test=10)
    done = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            "SPARSENMT_PLUGINS": "temperature",
            "OMP_NUM_THREADS": "1",
        },
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    learned = load_file(tmp_path / "runs/trial/weights.safetensors")["decoder.steps.0.cross.transform.log_scale"]
    assert learned.shape == (2,) and bool((learned != 0).all())


def test_the_recipe(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("yaml") if block.startswith("name: my-model")]
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8", newline="\n")
    assert load(tmp_path / "recipe.yaml", methods()).decoding.beam_size == 4


def commands() -> list[list[str]]:
    """The words after `sparsenmt` of every command in a console block or in a sentence."""
    shown = [line for block in blocks("console") for line in block.replace("\\\n", " ").split("\n")]
    parts = [part.strip() for line in shown if line.startswith("$ ") for part in line[2:].split(" | ")]
    parts += re.findall(r"`(sparsenmt [a-z0-9-]+ [^`]+)`", README)
    return [shlex.split(part)[1:] for part in parts if part.startswith("sparsenmt ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands(words: list[str]) -> None:
    command: click.Command = importlib.import_module(f"sparsenmt.commands.{COMMANDS[words[0]].module}").command
    command.make_context(words[0], words[1:])  # parsed, not run
    for word in words:
        assert not word.startswith("recipes/") or (ROOT / word).is_file(), word
