"""``sparsenmt doctor``: the kernels that are in use, and a plain message where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsenmt.native import build
from sparsenmt.native.choice import Choice
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.workflows import doctor
from tests.commands.support import Run
from tests.native.libraries import compiler_or_skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are called once, not timed."""

    def ratio(self: Choice, name: str, trial: object) -> float:
        self._ratios.setdefault(1, {})[name] = 0.5
        return 0.5

    monkeypatch.setattr(Choice, "ratio", ratio)


def test_kernels_in_use(command: Run, tmp_path: Path) -> None:
    compiler_or_skip()
    done = command("doctor", "--threads", "1", "--json", str(tmp_path / "doctor.json"))
    assert done.code == 0 and b"instruction sets: " in done.out and b"C++ compiler: " in done.out
    tables = json.loads((tmp_path / "doctor.json").read_bytes())["tables"]
    assert [each["library"] for each in tables["libraries"]] == ["decoding", "training", "simplex"]
    assert all(each["deviation"] <= 1 and Path(each["file"]).is_file() for each in tables["libraries"])
    assert any(each["kernel"].startswith("product ") and each["gain"] == 2 for each in tables["gains"])


def test_kernels_that_are_turned_off(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.SWITCH, "0")
    done = command("doctor")
    assert done.code == 0 and b"kernels are turned off: SPARSENMT_NATIVE=0" in done.out


def test_missing_kernels(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("decoding", "searches", "PyTorch's operators", None, ""),)
    table = Table(
        "libraries", "Compiled kernels", columns("text library used_for from", "number deviation", "text file"), rows
    )
    monkeypatch.setattr(doctor, "examine", lambda threads: Report("doctor", (table,), ("C++ compiler: none",)))
    monkeypatch.setenv(build.SWITCH, "1")
    done = command("doctor")
    assert done.code == 2 and b"C++ compiler: none" in done.out
    assert "compiled kernels are not in use: decoding" in done.err and "Traceback" not in done.err


def test_an_unknown_instruction_set(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE_ISA", "sse9")
    done = command("doctor")
    assert done.code == 2 and "'sse9' is no instruction set of this architecture" in done.err
