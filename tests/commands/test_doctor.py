"""``sparsenmt doctor``: the kernels that are in use, and a plain message where they are not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sparsenmt.engine import machine
from sparsenmt.native.choice import Choices
from sparsenmt.native.library import SWITCH
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.workflows import doctor
from tests.commands.support import Run
from tests.native.libraries import compiler_or_skip


def test_kernels_in_use(command: Run, tmp_path: Path) -> None:
    compiler_or_skip()
    done = command("doctor", "--threads", "1", "--json", str(tmp_path / "doctor.json"))
    assert done.code == 0 and b"instruction sets: " in done.out and b"C++ compiler: " in done.out
    assert b"choices: those of " in done.out and b"measured on " in done.out
    tables = json.loads((tmp_path / "doctor.json").read_bytes())["tables"]
    assert [each["library"] for each in tables["libraries"]] == ["decoding", "training", "simplex"]
    assert all(each["deviation"] <= 1 and Path(each["file"]).is_file() for each in tables["libraries"])
    assert any(each["kernel"].startswith("product ") and each["gain"] > 0 for each in tables["gains"])
    assert "choices" not in tables


def test_the_table_is_compared_with_this_machine(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is named where another choice is clearly faster here."""
    compiler_or_skip()
    known = {"a": 0.9, "b": 0.9, "c": 2.0, "d": 2.0, "e": math.inf}
    monkeypatch.setattr(Choices, "ratio", lambda self, name: known.get(name, 0.5))
    here = {"a": 1.0, "b": 1.1, "c": 0.9, "d": 0.5, "e": 0.1}
    monkeypatch.setattr(machine, "every_class", lambda: [(name, name) for name in here])
    monkeypatch.setattr(machine, "measured_ratio", lambda name, seconds: here[name])
    done = command("doctor", "--measure", "--threads", "1", "--json", str(tmp_path / "doctor.json"))
    assert done.code == 0 and b"choices: 3 of 5 classes are measured on the other side of 0.95 here" in done.out
    rows = json.loads((tmp_path / "doctor.json").read_bytes())["tables"]["choices"]
    assert [each["class"] for each in rows if each["choice"] == "other"] == ["b", "d", "e"]
    assert [each["table"] for each in rows] == [0.9, 0.9, 2.0, 2.0, None]


def test_kernels_that_are_turned_off(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    done = command("doctor")
    assert done.code == 0 and b"kernels are turned off: SPARSENMT_NATIVE=0" in done.out


def test_missing_kernels(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("decoding", "searches", None, "PyTorch's operators"),)
    table = Table(
        "libraries", "Compiled kernels", columns("text library used_for", "number deviation", "text file"), rows
    )
    found = Report("doctor", (table,), ("C++ compiler: none",))
    monkeypatch.setattr(doctor, "examine", lambda threads, measure: found)
    monkeypatch.setenv(SWITCH, "1")
    done = command("doctor")
    assert done.code == 2 and b"C++ compiler: none" in done.out
    assert "compiled kernels are not in use: decoding" in done.err and "Traceback" not in done.err


def test_an_unknown_instruction_set(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE_ISA", "sse9")
    done = command("doctor")
    assert done.code == 2 and "'sse9' is no instruction set of this architecture" in done.err
