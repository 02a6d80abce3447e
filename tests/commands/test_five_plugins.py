"""Five plugins, each with entmax and L0Drop: trained, decoded with, and scored, as their users would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests import outside
from tests.commands.support import Run

ATTENTION = "model.attention"
ENTMAX = "{name: entmax15}"
L0DROP = ("model.memory=[{name: l0drop}]", "losses={l0: {weight: 0.1}}")
RECIPES: dict[str, tuple[str, ...]] = {
    "longformer": (
        f"{ATTENTION}.encoder_self={{pattern: {{name: longformer, window: 5, first: 2}}, transform: {ENTMAX}}}",
        f"{ATTENTION}.decoder_self.pattern={{name: longformer, window: 4, first: 1}}",
        *L0DROP,
    ),
    "softmax_sink": (
        f"{ATTENTION}.cross.transform={{name: softmax_sink, start: 0.5}}",
        f"{ATTENTION}.decoder_self.transform={{name: softmax_sink}}",
        f"{ATTENTION}.encoder_self.transform={ENTMAX}",
        *L0DROP,
    ),
    "sigmoid": (
        f"{ATTENTION}.cross.transform={{name: sigmoid}}",
        f"{ATTENTION}.encoder_self.transform={{name: sigmoid}}",
        f"{ATTENTION}.decoder_self.transform={ENTMAX}",
        *L0DROP,
    ),
    "norm_quantile": (
        "model.memory=[{name: norm_quantile, keep: 0.6}, {name: l0drop}]",
        L0DROP[1],
        f"{ATTENTION}.cross.transform={ENTMAX}",
    ),
}
# Weights that are learned, and a key of the log.
LEARNED = {"softmax_sink": ".transform.sinks", "sigmoid": ".transform.bias"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_method_trains_decodes_and_scores(command: Run, workspace: Path, name: str) -> None:
    with outside.registered():
        trained = command("train", "small.yaml", f"directory={name}", "training.max_updates=3", *RECIPES[name])
        decoded = command("decode", name, "--input", "corpus/test.en", "--output", "out.de")
        diverse = command("decode", name, "--input", "corpus/test.en", "--method", "diverse_beam", "--json")
    assert trained.code == decoded.code == diverse.code == 0, trained.err + decoded.err + diverse.err
    assert "no time is saved" not in trained.err
    scored = command("score", "out.de", "-r", "corpus/test.de", "--json")
    assert scored.code == 0 and len(json.loads(scored.out)["scores"]) == 3
    log = [json.loads(line) for line in (workspace / name / "metrics.jsonl").read_bytes().splitlines()]
    assert all("l0_closed" in line for line in log)
    weights = load_file(workspace / name / "weights.safetensors")
    if name in LEARNED:
        own = {key: value for key, value in weights.items() if key.endswith(LEARNED[name])}
        assert len(own) == 2 and all(bool((value - value.round(decimals=1)).any()) for value in own.values())
    if name == "norm_quantile":
        assert all(0 < line["norm_quantile_closed"] <= 0.4 for line in log)
    rows = [json.loads(line)["hypotheses"] for line in diverse.out.decode().splitlines()]
    assert len(rows) == 20 and all(1 <= len(row) <= 2 for row in rows)
