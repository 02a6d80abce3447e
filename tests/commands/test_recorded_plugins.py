"""Records of plugins in model directories and journals: resume says what has changed, a missing one is explained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sparsenmt.assemble.model_directory import read_manifest
from sparsenmt.plugins import modules
from sparsenmt.sparsity.registry import METHODS
from sparsenmt.storage.files import write_sealed
from sparsenmt.strategy import STRATEGIES
from tests.commands.support import Plugin, Run

METHOD = """\
import torch

from sparsenmt import register, register_strategy
from sparsenmt.decoding.greedy import GreedySearch
from sparsenmt.model.sockets import Transform


@register("transform", "cool")
class Cool(Transform):
    def __init__(self, options, *, site, heads):
        super().__init__()

    def forward(self, scores, keys):
        visible = keys.visible()
        return (0.5 * scores).masked_fill(~visible, -torch.inf).softmax(-1).masked_fill(~visible, 0.0)


@register_strategy("cooler")
class Cooler(GreedySearch):
    pass
"""
KEYS = ("model.attention.encoder_self.transform={name: cool}", "decoding.method=cooler")
TRAIN = ("train", "small.yaml", "directory=cool", *KEYS)
CHANGED = "the plugin cooling has another source"


OTHER = METHOD.replace("0.5", "0.25")


def unload() -> None:
    """Forget the module: the next command loads it, as a new process would."""
    sys.modules.pop("cooling", None)
    METHODS._entries.pop("transform cool", None)
    STRATEGIES._entries.pop("cooler", None)
    modules._attempted.clear()


@pytest.fixture
def cool(plugin: Plugin, command: Run) -> None:
    """A model with a plugin's method, whose run can go on."""
    plugin(METHOD, "cooling")
    assert command(*TRAIN, "training.max_updates=4").code == 0
    unload()


def test_the_manifest_names_module_and_source(cool: None) -> None:
    (found,) = read_manifest(Path("cool"))["plugins"]
    assert found["module"] == "cooling" and found["registers"] == ["method transform cool", "strategy cooler"]
    assert found["package"] is None is found["version"] and len(found["sha256"]) == 64
    assert read_manifest(Path("model"))["plugins"] == []


def test_resume_says_what_has_changed(cool: None, command: Run, workspace: Path) -> None:
    same = command(*TRAIN, "training.max_updates=6")
    assert same.code == 0 and "other code" not in same.err
    unload()
    (workspace / "cooling.py").write_text(OTHER, encoding="utf-8", newline="\n")
    changed = command(*TRAIN, "training.max_updates=8")
    told = f"warning: the run continues with other code than it began with: {CHANGED}"
    assert changed.code == 0 and told in changed.err, changed.err
    assert "other code" not in command(*TRAIN, "training.max_updates=10").err


def test_models_of_earlier_versions_open(cool: None, command: Run, workspace: Path) -> None:
    path = workspace / "cool" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["plugins"], manifest["provenance"]["git_dirty"], manifest["seal"]
    write_sealed(path, manifest)
    assert command("decode", "cool", "-i", "corpus/test.en").code == 0
    resumed = command(*TRAIN, "training.max_updates=6")
    assert resumed.code == 0 and "other code" not in resumed.err
    assert [each["module"] for each in read_manifest(Path("cool"))["plugins"]] == ["cooling"]


@pytest.mark.parametrize(
    "words",
    [
        ("decode", "cool", "-i", "corpus/test.en"),
        ("analyze", "density", "cool", "-i", "corpus/test.en"),
        ("average", "cool", "--output", "mean"),
    ],
    ids=lambda words: words[0],
)
def test_a_missing_plugin_is_explained(
    cool: None, command: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SPARSENMT_PLUGINS", "")
    done = command(*words)
    assert done.code == 2 and "there is no transform method 'cool'" in done.err, done.err
    assert "must be one of beam, greedy, sample, speculative, early_exit; not 'cooler'" in done.err
    told = "It is of the plugin cooling (no package), which this model was made with: install it, or name the module in"
    assert done.err.count(told) == 2


def test_decode_starts_again_with_another_plugin(
    cool: None, command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("decode", "cool", "-i", "corpus/test.en", "-o", "out", "--window", "5")
    with monkeypatch.context() as patch:
        patch.setattr("sparsenmt.storage.resumable_output.ResumableOutput.finish", lambda self, lines: 1 / 0)
        assert command(*words).code == 1
    same = command(*words)
    assert "out: resumes after line 20" in same.err, same.err
    (workspace / "out").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("sparsenmt.storage.resumable_output.ResumableOutput.finish", lambda self, lines: 1 / 0)
        assert command(*words).code == 1
    unload()
    (workspace / "cooling.py").write_text(OTHER, encoding="utf-8", newline="\n")
    changed = command(*words)
    assert changed.code == 0 and "out: starts again: the plugin cooling has changed" in changed.err, changed.err
