"""The script behind `make gpu`, on the CPU with tiny sizes, so that it works on the day of the first GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

import gpu

TINY = ["--preset", "tiny", "--vocabulary", "40", "--sentences", "2", "--batch-tokens", "64", "--repeats", "1"]


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenmt.workflows.evaluation.benchmark.measurement.square_rate", lambda *_: 1e9)
    monkeypatch.setattr("sparsenmt.workflows.evaluation.benchmark.measurement.product_rate", lambda *_: 1e9)
    monkeypatch.setattr(gpu, "CALLS", 1)
    assert (
        gpu.main(["--device", "cpu", "--no-tests", "--no-scripts", *TINY, "--output", str(tmp_path / "table.md")]) == 0
    )
    *table, line = capsys.readouterr().out.strip().split("\n")
    result = json.loads(line)
    assert (result["name"], result["device"], result["ok"]) == ("gpu", "CPU", True)
    assert "decoding, 2 sentences, fp32: share of the device's rate" in result["ratios"]
    assert (tmp_path / "table.md").read_text().strip() == "\n".join(table)
    assert "| training, 64 tokens: peak memory | not measured | MB | only of a CUDA device |" in table


def test_other_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ratios are rows; the message of one that cannot run is its note."""
    work = ["400", "--without-peer"]
    for change in ("source_length=9", "target_length=3", "batches=1", "batch_sentences=2", "dimension=32", "heads=2"):
        work += ["--set", change]
    broken = ["400", "--without-peer", "--set", "heads=7"]
    rows = []
    for arguments in (work, broken):
        monkeypatch.setattr(gpu, "SCRIPTS", {"l0drop_decode.py": arguments})
        given = argparse.Namespace(batch_tokens=[64], repeats=1)
        rows.append(gpu.scripts(torch.device("cpu"), given))
    assert {row.what for row in rows[0]} > {"l0drop_decode.py: after_encoder_400", "l0drop_decode.py: keys_read_400"}
    (row,) = rows[1]
    assert row.value is None and "heads" in row.note


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    message = capsys.readouterr().err
    assert "no CUDA device" in message and message.count("\n") <= 2
