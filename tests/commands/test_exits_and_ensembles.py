"""`sparsenmt decode` with drafts, early exits and ensembles: outputs, records and mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.support import Run

LINES = b"a dog\nthe black cat sees two birds\n\nwe sing\n"
SIZES = "preset: tiny, dimension: 32, feed_forward: 64, heads: 2, encoder_layers: 1"
TIED = f"model: {{{SIZES}, decoder_layers: 3, depth: {{name: tied_multi}}}}"


def train(command: Run, name: str, *changes: tuple[str, str]) -> None:
    """Train another small model for two updates, in the directory of its name."""
    text = Path("small.yaml").read_text(encoding="utf-8")
    usual = [("directory: model", f"directory: {name}"), ("max_updates: 12", "max_updates: 2"), ("save_every: 4", "")]
    for old, new in (*usual, *changes):
        assert old in text
        text = text.replace(old, new)
    Path(f"{name}.yaml").write_text(text, encoding="utf-8", newline="\n")
    assert command("train", f"{name}.yaml").code == 0


@pytest.fixture
def tied(command: Run) -> str:
    line = next(each for each in Path("small.yaml").read_text(encoding="utf-8").split("\n") if each[:6] == "model:")
    train(command, "tied", (line, TIED))
    return "tied"


def test_drafts_change_no_output(command: Run, tied: str) -> None:
    expected = command("decode", tied, "--method", "greedy", stdin=LINES)
    found = command("decode", tied, "--method", "speculative", "--draft-tokens", 3, "--draft-layers", 2, stdin=LINES)
    assert (found.code, found.lines) == (0, expected.lines)


def test_early_exits_tell_how_many_layers_ran(command: Run, tied: str) -> None:
    found = command("decode", tied, "--method", "early_exit", "--exit-confidence", 0, "--json", stdin=LINES)
    assert "decoder layers of a token: 1.00 on average" in found.err
    best = [json.loads(line)["hypotheses"][0] for line in found.lines]
    assert [each.get("decoder_layers") for each in best] == [1.0, 1.0, None, 1.0]
    shallow = command("decode", tied, "--method", "greedy", "--decoder-layers", 1, stdin=LINES)
    plain = command("decode", tied, "--method", "early_exit", "--exit-confidence", 0, stdin=LINES)
    assert plain.lines == shallow.lines
    deepest = command("decode", tied, "--method", "early_exit", "--exit-confidence", 1, stdin=LINES)
    assert deepest.lines == command("decode", tied, "--method", "greedy", stdin=LINES).lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model", "--draft-tokens", "2"], "--draft-tokens: has no meaning for the method beam"),
        (["model", "--method", "greedy", "--exit-confidence", "0.5"], "has no meaning for the method greedy"),
        (["model", "--method", "speculative"], "1 decoder layers cannot draft for 1"),
        (["model", "--method", "early_exit"], "the model has no trained exit before decoder layer 1"),
        (["model", "--ensemble-average", "linear"], "--ensemble-average: changes nothing"),
        (["model", "--ensemble-weights", "1,2"], "2 weights are given, and there is no ensemble"),
        (["model", "--ensemble", "model", "--ensemble-weights", "1"], "1 weight is given, and there are 2 members"),
        (["model", "--ensemble", "model", "--ensemble-weights", "1,0"], "must be numbers above 0"),
        (["model", "--ensemble", "model", "--ensemble-weights", "1,x"], "'1,x' is not a list of numbers"),
        (["model", "--ensemble", "corpus"], "corpus"),
        (["model", "--ensemble-depth", "2"], "--ensemble-depth 2: is no depth"),
        (["model", "--ensemble-depth", "1,2"], "the decoder has 1 layer: 2 cannot run"),
        (["model", "--ensemble", "model", "--depth", "auto"], "--depth: is given beside an ensemble"),
        (["model", "--ensemble", "model", "--method", "early_exit"], "cannot stop at exits of their own"),
    ],
)
def test_what_is_refused(refused: Callable[..., str], arguments: list[str], said: str) -> None:
    assert said in refused("decode", *arguments, stdin=LINES)


def test_another_target_vocabulary_is_refused(command: Run, refused: Callable[..., str], workspace: Path) -> None:
    changes = ("directory: prepared", "directory: other-data"), ("vocabulary_size: 150", "vocabulary_size: 120")
    train_with_data = [("directory: model", "directory: other"), *changes, ("max_updates: 12", "max_updates: 2")]
    text = Path("small.yaml").read_text(encoding="utf-8")
    for old, new in train_with_data:
        text = text.replace(old, new)
    Path("other.yaml").write_text(text, encoding="utf-8", newline="\n")
    assert command("prepare", "other.yaml").code == command("train", "other.yaml").code == 0
    said = refused("decode", "model", "--ensemble", "other", stdin=LINES)
    assert "other: its target vocabulary has" in said and "tokens, that of model" in said


def test_an_ensemble_of_copies_is_the_model(command: Run, workspace: Path) -> None:
    shutil.copytree("model", "copy")
    expected = command("decode", "model", stdin=LINES)
    for average in ("log", "linear"):
        found = command("decode", "model", "--ensemble", "copy", "--ensemble-average", average, stdin=LINES)
        assert (found.code, found.lines) == (0, expected.lines)


def test_depths_of_one_model_are_an_ensemble(command: Run, tied: str, workspace: Path) -> None:
    (workspace / "in").write_bytes(LINES)
    given = "decode", tied, "-i", "in", "--ensemble-depth", "1,1", "--ensemble-depth", "1,2"
    found = command(*given, "--ensemble-weights", "1,1,2", "-o", "out")
    assert found.code == 0 and (workspace / "out").read_bytes().count(b"\n") == 4
    alone = command("decode", tied, "--decoder-layers", 1, stdin=LINES)
    nearly = command("decode", tied, "--ensemble-depth", "1,1", "--ensemble-weights", "0.000001,1", stdin=LINES)
    assert nearly.lines == alone.lines
