"""A filter before a site where compaction is not exact: it works, and the commands say that it saves no time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands.conftest import RECIPE
from tests.commands.support import Run
from tests.toys import registered

SECTION = "encoder_layers: 1, decoder_layers: 1"
FILTERED = SECTION + ", memory: [{name: l0drop}]"
NOTE = (
    "warning: model.memory.0 (l0drop): dropped outputs stay as zeros, no time is saved: cross-attention has a pattern\n"
)


def write_recipe(workspace: Path, section: str) -> None:
    text = RECIPE.replace(SECTION, section).replace("directory: model", "directory: filtered")
    text = text.replace("max_updates: 12", "max_updates: 2") + "losses: {l0: {weight: 0.1}}\n"
    (workspace / "filtered.yaml").write_text(text, encoding="utf-8", newline="\n")


def test_train_and_decode_say_it_once(command: Run, workspace: Path) -> None:
    pattern = ", attention: {cross: {pattern: {name: toy_lookback}}}"
    write_recipe(workspace, FILTERED + pattern)
    with registered():
        trained = command("train", "filtered.yaml")
        decoded = command("decode", "filtered", stdin=b"a house\nthe river\n")
    assert trained.code == 0 and trained.err.count(NOTE) == 1, trained.err
    assert decoded.code == 0 and decoded.err.count(NOTE) == 1 and decoded.out.count(b"\n") == 2


def test_the_share_that_a_filter_without_a_loss_closes_is_logged_and_validated(command: Run, workspace: Path) -> None:
    rule = "{name: freq, top: 3}"
    text = RECIPE.replace(SECTION, f"{SECTION}, memory: [{rule}]").replace("directory: model", "directory: ruled")
    (workspace / "ruled.yaml").write_text(
        text.replace("directory: prepared", "directory: ruled-data"), encoding="utf-8"
    )
    assert command("prepare", "ruled.yaml").code == 0
    trained = command("train", "ruled.yaml", "training.max_updates=2", "training.log_every=1")
    assert trained.code == 0, trained.err
    lines = [json.loads(line) for line in (workspace / "ruled/metrics.jsonl").read_bytes().splitlines()]
    shares = [line["freq_closed"] for line in lines]
    assert {line["kind"] for line in lines} == {"train", "validation"} and all(0 < share < 1 for share in shares)
    assert all(line["freq_partial"] == 0 for line in lines if line["kind"] == "train")
    assert f"freq_closed {shares[-1]:.3f}" in trained.err


def test_nothing_is_said_where_time_is_saved(command: Run, workspace: Path) -> None:
    write_recipe(workspace, FILTERED)
    trained = command("train", "filtered.yaml")
    decoded = command("decode", "filtered", stdin=b"a house\n")
    assert trained.code == decoded.code == 0
    assert "no time is saved" not in trained.err + decoded.err
