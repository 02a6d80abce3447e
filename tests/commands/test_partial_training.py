"""``training.freeze`` and ``training.lora`` by commands: what is refused, what is said, and models of such runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from sparsenmt.assemble.bundle import open_model
from tests.commands.support import Run

SHORT = (
    "training.max_updates=2",
    "training.warmup_updates=0",
    "training.save_every=1",
    "training.average_last=2",
    "training.choose_average=none",
)
ALL = "training.freeze=[encoder, decoder, embeddings]"
GATES = ("model.memory=[{name: l0drop}]", "losses={l0: {weight: 0.1}}")


def test_what_trains_nothing_is_refused(refused: Callable[..., str]) -> None:
    train = ("train", "small.yaml", "--from", "model", "directory=part")
    assert "training.freeze: every parameter is frozen" in refused(*train, ALL)
    adapters = "training.lora={rank: 2, targets: [encoder]}"
    assert "training.freeze: every parameter is frozen" in refused(*train, adapters, "training.freeze=[encoder]")
    message = refused(*train, *GATES, "training.freeze=[memory, encoder, embeddings]")
    assert "training.freeze: the loss 'l0' trains only what is frozen" in message
    assert "set losses.l0 to {weight: 0}" in message
    finetune = ("finetune-l0", "model", "--restart", "--updates", "2", "--target", "0.4", "-o", "gated", ALL)
    message = refused(*finetune, "--baseline")
    assert "--baseline: without gates, every parameter is frozen" in message and "Leave it out" in message


def test_runs_say_what_they_train(command: Run) -> None:
    parts = command("train", "small.yaml", "directory=part", *SHORT, "training.freeze=[embeddings]")
    assert parts.code == 0, parts.err
    assert "parameters are trained\n" in parts.err
    assert "(model.tie_embeddings: all): it is frozen, too\n" in parts.err
    assert "warning: what is frozen keeps its random initial weights" in parts.err
    adapters = command("train", "small.yaml", "--from", "model", "directory=low", *SHORT, "training.lora={rank: 2}")
    assert adapters.code == 0 and "parameters are trained\n" in adapters.err, adapters.err
    assert "warning" not in adapters.err and "it is frozen, too" not in adapters.err
    again = ("training.lora={rank: 3}", "training.warmup_updates=0")
    other = command("finetune-l0", "low", "--updates", "1", "--target", "0.4", "-o", "gated", *again)
    assert other.code == 2 and "Give the `training.lora` of its run" in other.err
    assert command("average", "low", "-o", "mean").code == 0
    base, low, mean = (open_model(Path(name), dtype=None).model.state_dict() for name in ("model", "low", "mean"))
    changed = {name for name in base if not torch.equal(base[name], low[name])}
    assert changed and all(name.endswith((".q.weight", ".v.weight")) for name in changed)
    assert base.keys() == low.keys() and all(torch.equal(low[name], mean[name]) for name in base)
