"""The control that sees nothing of the source: every gate closed, from the first update to the last."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sparsenmt.data.text import write_lines
from tests.commands.support import Run

CHANGES = ["directory=blind", "model.memory=[{name: l0drop, init_log_alpha: -30}]", "losses={l0: {weight: 0}}"]
# The decoder's output must not depend on the source's length either.
LENGTHS = ["decoding.max_length_factor=0", "decoding.max_length_offset=12"]


@pytest.mark.parametrize("limit", [None, 1], ids=["whole sources", "sources of one piece"])
def test_a_blind_model_trains_and_decodes(limit: int | None, command: Run, workspace: Path) -> None:
    data = ["data.directory=cut", f"data.filters.max_source_length={limit}"] if limit is not None else []
    if data:
        assert command("prepare", "small.yaml", *data).code == 0
    trained = command("train", "small.yaml", *CHANGES, *LENGTHS, *data)
    assert trained.code == 0, trained.err
    metrics = [json.loads(line) for line in Path("blind/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    validated = [each for each in metrics if each["kind"] == "validation"]
    assert validated
    for each in validated:
        assert each["l0_closed"] == 1 and math.isfinite(each["loss"]) and math.isfinite(each["bleu"])

    write_lines("in", ["a man sees a dog", "the", "she reads"])
    decoded = command("decode", "blind", "-i", "in").lines
    assert len(set(decoded)) == 1 and len(decoded) == 3
    write_lines("out", ["ein Hund"] * 3)
    scored = command("score", "--model", "blind", "--source", "in", "--target", "out").lines
    assert len(set(scored)) == 1 and math.isfinite(float(scored[0].split("\t")[0]))
    shown = command("score", "--model", "blind", "--source", "in", "-r", "out", "-m", "rougeL", "--json")
    assert json.loads(shown.out)["sparsity"] == 1
