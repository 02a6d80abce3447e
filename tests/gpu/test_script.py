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
    arguments = ["--device", "cpu", "--no-tests", "--no-scripts", *TINY, "--output", str(tmp_path / "table.md")]
    assert gpu.main(arguments) == 0
    *table, line = capsys.readouterr().out.strip().split("\n")
    result = json.loads(line)
    assert (result["name"], result["device"], result["bars"], result["ok"]) == ("gpu", "CPU", {}, True)
    assert "decoding, 2 sentences, fp32: share of the device's rate" in result["ratios"]
    assert (tmp_path / "table.md").read_text().strip() == "\n".join(table)
    assert "| training, 64 tokens: peak memory | not measured | MB | only of a CUDA device |" in table


@pytest.mark.thorough
def test_other_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ratios are rows; the message of one that cannot run is its note."""
    work = ["400", "--without-peer"]
    for change in ("source_length=9", "target_length=3", "batches=1", "batch_sentences=2", "dimension=32", "heads=2"):
        work += ["--set", change]
    broken = ["400", "--without-peer", "--set", "heads=7"]
    rows = []
    for arguments in (work, broken):
        monkeypatch.setattr(gpu, "SCRIPTS", {"l0drop_decode.py": arguments})
        given = argparse.Namespace(batch_tokens=[64], repeats=1, smoke=False)
        rows.append(gpu.scripts(torch.device("cpu"), given))
    assert {row.what for row in rows[0]} > {"l0drop_decode.py: after_encoder_400", "l0drop_decode.py: keys_read_400"}
    (row,) = rows[1]
    assert row.value is None and "heads" in row.note


def rows_of(decoding: float, training: float) -> list[gpu.Row]:
    parts = {"decoding, 256 sentences, bf16": decoding, "training, 25,000 tokens, bf16": training}
    return [gpu.Row(f"{part}: share of the device's rate", share, "") for part, share in parts.items()]


@pytest.mark.parametrize(
    ("share", "ratio", "ok"),
    [(0.5, 2.0, True), (0.5, 1.3, False), (0.42, 2.0, False), (0.5, None, False)],
)
def test_bars(
    share: float, ratio: float | None, ok: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bar must be reached, and a ratio that was not measured misses its own."""
    monkeypatch.setattr(gpu, "pick_device", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(gpu, "speed", lambda *_: rows_of(share, share))
    monkeypatch.setattr(gpu, "graphs", lambda *_: [])
    monkeypatch.setattr(gpu, "scripts", lambda *_: [])

    def compare(*_: object) -> float:
        if ratio is None:
            raise SystemExit("no such program")
        return ratio

    monkeypatch.setattr(gpu, "compare", compare)
    assert gpu.main(["--no-tests"]) == (0 if ok else 1)
    result = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert (result["bars"], result["ok"]) == (gpu.BARS, ok)
    missing = ["decode_over_ctranslate2", "train_over_transformers"] if ratio is None else []
    assert result["missing"] == missing


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    message = capsys.readouterr().err
    assert "no CUDA device" in message and message.count("\n") <= 2
