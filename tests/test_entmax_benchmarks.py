"""The benchmarks of sparse attention: in a tiny size they run, and their bars are those that were asked for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import attention_training
import entmax_functions
from protocol import EOS, PAD, training_batches


def test_bars_and_sizes() -> None:
    shapes = {name: (work["shape"], work["entmax15_bar"]) for name, work in entmax_functions.CASES.items()}
    assert shapes == {"15": ([256, 8, 15, 15], 3), "64": ([64, 8, 64, 64], 6), "512": ([8, 8, 512, 512], 8)}
    found = entmax_functions.bars_of("64", entmax_functions.CASES["64"], {"adaptive_compiled_64": 9.0})
    assert found == {"entmax15_64": 6, "adaptive_64": 3, "adaptive_compiled_64": 5}
    bars = {case.name: case.bar for case in attention_training.cases()}
    wanted = {"entmax15_16": 0.95, "entmax15_64": 0.95, "adaptive_16": 0.85, "adaptive_64": 0.85}
    assert bars.items() >= wanted.items()


@pytest.mark.skipif(importlib.util.find_spec("entmax") is None, reason="the package entmax is not installed")
def test_functions_beside_the_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entmax_functions, "PAUSE_SECONDS", 0)
    threads = torch.get_num_threads()
    try:
        assert entmax_functions.main(["15", "--repeats", "1", "--set", "shape=[2,2,3,4]", "--set", "threads=1"]) == 0
    finally:
        torch.set_num_threads(threads)
    last = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    assert last["ratios"].keys() >= {"entmax15_15", "adaptive_15"} and last["bars"] == {}


def test_random_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_training, "ROOT", tmp_path)
    work = attention_training.write_batches({"length": 4, "batch_tokens": 12, "steps": 2, "vocabulary": 9})
    batches = training_batches(work)
    assert len(batches) == 2
    for source, _, target in batches:
        assert source.shape == target.shape == (3, 4)
        assert np.all(source[:, -1] == EOS) and not np.any(source == PAD) and int((source == EOS).sum()) == 3


def test_a_method_that_is_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {socket: dict(names) for socket, names in attention_training.methods().items()}
    known["heads"].pop("fixed_token", None)
    monkeypatch.setattr(attention_training, "methods", lambda: known)
    assert not any(case.name.startswith("fixed") for case in attention_training.cases())
    assert "fixed_7f1l: left out, as fixed_token is not registered" in capsys.readouterr().err
