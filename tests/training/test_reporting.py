"""metrics.jsonl after a resume."""

from __future__ import annotations

from pathlib import Path

from sparsenmt.training.reporting import METRICS, cut_back


def test_what_will_be_done_again_is_left_out(tmp_path: Path) -> None:
    lines = [f'{{"kind": "train", "update": {update}}}\n' for update in (5, 10, 15)]
    (tmp_path / METRICS).write_bytes("".join(lines).encode() + b'{"kind": "tr')
    cut_back(tmp_path, 10)
    assert (tmp_path / METRICS).read_bytes().decode() == "".join(lines[:2])
    cut_back(tmp_path / "absent", 10)
