"""`tools/compare_revisions.py`: a checkout equals itself, and not one with another length penalty."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def compare(new: Path, work: Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "tools.compare_revisions", str(ROOT), str(new), "--work", str(work), "--quick"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.split("\n")[-2])


def test_the_same_checkout_is_the_same_program(tmp_path: Path) -> None:
    code, summary = compare(ROOT, tmp_path)
    assert (code, summary["different"], summary["ok"]) == (0, [], True)
    assert summary["cases"] > 20


def test_another_length_penalty_is_found(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "sparsenmt", other / "sparsenmt")
    scores = other / "sparsenmt" / "decoding" / "scores.py"
    text = scores.read_bytes()
    assert text.count(b"(5.0 + lengths)") == 1
    scores.write_bytes(text.replace(b"(5.0 + lengths)", b"(5.001 + lengths)"))
    code, summary = compare(other, tmp_path / "work", "--only", "beam --json|greedy, stdin|score --target")
    assert (code, summary["different"], summary["ok"]) == (1, ["decode beam --json"], False)
