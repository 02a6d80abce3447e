"""`sparsenmt compare --explain`: what each method leaves out, and whether that saves time, against counted figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import read_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.sparsity.window import WindowPattern
from sparsenmt.workflows.evaluation.benchmark.flops import count_arithmetic
from sparsenmt.workflows.evaluation.method_gain import DenseTwin, _switched_off, hidden_share
from tests.commands.conftest import RECIPE
from tests.commands.support import Run

TEST = ["--source", "corpus/test.en", "--reference", "corpus/test.de"]
SECTION = "encoder_layers: 1, decoder_layers: 1"
COMPARE = [*TEST, "--explain", "--speed-lines", "2", "--rounds", "2", "--threads", "1", "--json", "out.json"]


def trained(command: Run, name: str, section: str) -> str:
    """Train a model of the section for two updates."""
    text = RECIPE.replace(SECTION, section).replace("directory: model", f"directory: {name}")
    Path(f"{name}.yaml").write_text(text.replace("max_updates: 12", "max_updates: 2"), encoding="utf-8", newline="\n")
    assert command("train", f"{name}.yaml").code == 0
    return name


def rows_of(command: Run, *models: str) -> dict[str, dict[str, Any]]:
    result = command("compare", *models, *COMPARE)
    assert result.code == 0, result.err
    assert "does each method pay here?" in result.lines
    rows = json.loads(Path("out.json").read_text(encoding="utf-8"))["tables"]["methods"]
    return {row["key"]: row for row in rows}


def products(model: str, *, compact: bool = True) -> float:
    """The FLOP of the products along the first references."""
    bundle = open_model(model, device="cpu", dtype=None)
    lines, targets = (list(read_lines(f"corpus/test.{side}"))[:16] for side in ("en", "de"))
    return count_arithmetic(lambda: list(score_pairs(bundle, input_lines(lines), targets, compact=compact))).flop


@pytest.mark.thorough
def test_a_filter_skips_what_is_counted_and_a_model_of_the_list_is_its_twin(command: Run) -> None:
    assert command("finetune-l0", "model", "--updates", "0", "-o", "gated").code == 0
    row = rows_of(command, "model", "gated")["model.memory.0"]
    assert (row["model"], row["twin"]) == ("gated", "model")
    assert row["skipped"] == pytest.approx(1 - products("gated") / products("model"), abs=1e-9)
    assert row["nominal"] is not None and row["speed"] > 0 and row["limit"] > 0
    assert row["turns"] in ("equal", "faster", "slower")
    assert (row["pays"] == "yes") is (row["turns"] == "faster") is (row["reason"] is None)


@pytest.mark.thorough
def test_a_transform_and_a_pattern_say_why_they_save_nothing(command: Run) -> None:
    attention = "attention: {cross: {transform: {name: topk, k: 2}}, encoder_self: {pattern: {name: window, k: 3}}}"
    trained(command, "sparse", f"{SECTION}, {attention}")
    rows = rows_of(command, "sparse")
    transform, pattern = rows["model.attention.cross.transform"], rows["model.attention.encoder_self.pattern"]
    assert transform["twin"] == pattern["twin"] == "same weights, switched off"
    assert transform["skipped"] == 0 and transform["nominal"] > 0.5
    assert transform["reason"] == "the scores of all keys are computed before it decides" or transform["pays"] == "yes"
    assert pattern["skipped"] == 0 and pattern["nominal"] > 0.5
    assert pattern["pays"] == "yes" or "too short for bands" in pattern["reason"]


@pytest.mark.thorough
def test_layers_that_do_not_run_are_skipped(command: Run) -> None:
    section = "encoder_layers: 2, decoder_layers: 2, depth: {name: tied_multi}"
    trained(command, "tied", section)
    row = rows_of(command, "tied")["model.depth"]
    assert row["nominal"] == 0 and row["skipped"] == 0
    assert "name fewer" in (row["reason"] or "name fewer")


def test_dense_models_have_nothing_to_explain(command: Run) -> None:
    result = command("compare", "model", *COMPARE)
    assert result.code == 0 and "explain: the models have no method, so there is nothing to say" in result.lines
    assert not any(line.startswith(("methods:", "does each method")) for line in result.lines)


def test_a_method_that_is_switched_off_leaves_the_options_of_decoding(command: Run) -> None:
    found = open_model("model", device="cpu", dtype=None)
    decoding = found.recipe.decoding.model_copy(update={"batch_tokens": 77, "encoder_layers": 1, "decoder_layers": 1})
    plain = replace(found, recipe=found.recipe.model_copy(update={"decoding": decoding}))
    off = _switched_off(DenseTwin("off", None, found.recipe.model), plain)
    assert off is not None and off.recipe.decoding == decoding


def test_the_share_of_keys_that_a_window_hides() -> None:
    assert hidden_share(WindowPattern(3, causal=False), [4], causal=False) == pytest.approx(1 - 10 / 16)
    assert hidden_share(WindowPattern(2, causal=True), [4, 1], causal=True) == pytest.approx(1 - 8 / 11)
