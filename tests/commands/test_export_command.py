"""``sparsenmt export``: directories for other programs. What they compute, tests/export compares."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.support import Run


def test_a_model_for_transformers(command: Run, workspace: Path) -> None:
    result = command("export", "model", "--to", "safetensors-hf", "out")
    assert result.code == 0 and result.out == b""
    assert "out: 1 encoder and 1 decoder layers" in result.err and "README.md" in result.err
    ranks = (
        "note: the recipe ranks by log-probability / ((5 + length) / 6)^0.6, the exported model by log-probability /"
    )
    assert ranks in result.err
    assert {"README.md", "config.json", "model.safetensors", "sparsenmt.json", "source.spm"} <= {
        path.name for path in Path("out").iterdir()
    }


def test_what_is_refused(refused: Callable[..., str], command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("taken").mkdir()
    assert "the directory exists" in refused("export", "model", "--to", "safetensors-hf", "taken")
    assert "no such model directory" in refused("export", "nowhere", "--to", "safetensors-hf", "out")
    ours = ("export", "model", "--to", "safetensors-hf")
    assert "the encoder has 1 layer" in refused(*ours, "out", "--encoder-layers", "2")
    assert "cannot be created" in refused(*ours, "small.yaml/out")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refused("export", "model", "--to", "ctranslate2", "out")
    assert "ctranslate2 is not installed" in message and "sparsenmt[export]" in message


def test_a_model_with_gates_is_refused(command: Run, workspace: Path, refused: Callable[..., str]) -> None:
    changes = ("directory=gated", "model.memory=[{name: l0drop}]", "losses={l0: {weight: 0.1}}")
    trained = command("train", "small.yaml", *changes, "training.max_updates=1")
    assert trained.code == 0, trained.err
    message = refused("export", "gated", "--to", "safetensors-hf", "out")
    assert "does not compute the memory l0drop" in message and "model.memory.0" in message
