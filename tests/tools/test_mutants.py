"""The table of mutants fits the sources and the tests."""

from __future__ import annotations

import ast
import multiprocessing
import shutil
from pathlib import Path

import pytest

from tools.mutants import trials
from tools.mutants.mutant import Mutant
from tools.mutants.trials import MUTANTS, ROOT, main, try_all


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_changes_one_place_and_has_tests(mutant: Mutant) -> None:
    before = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert before.count(mutant.old) == 1
    assert mutant.new != mutant.old
    if mutant.file.endswith(".py"):
        ast.parse(before.replace(mutant.old, mutant.new))
    assert mutant.tests
    for test in mutant.tests:
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8") if function else (ROOT / path).is_file()


def test_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_list_has_every_mutant_that_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "l0drop.py"]) == 0
    listed = capsys.readouterr().out
    chosen = [mutant for mutant in MUTANTS if "l0drop.py" in mutant.file]
    assert chosen and listed.count("killed by tests/sparsity/test_l0drop.py") == len(chosen)
    with pytest.raises(SystemExit, match="2"):
        main(["--list", "no such mutant"])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one module and its tests; it takes the place of the project."""
    (tmp_path / "half.py").write_text("def half(x: int) -> float:\n    return x / 2\n")
    (tmp_path / "test_half.py").write_text("from half import half\n\ndef test_it():\n    assert half(4) == 2\n")
    monkeypatch.setattr(trials, "copy_checkout", lambda to: shutil.copytree(tmp_path, to))
    monkeypatch.setattr(trials, "SERVER", multiprocessing.get_context("spawn"))  # without a server that loads PyTorch
    return tmp_path


@pytest.mark.thorough
def test_a_mutant_that_survives_is_told(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = Mutant("doubles", "half.py", "x / 2", "x * 2", ["test_half.py"])
    alive = Mutant("is wrong elsewhere", "half.py", "x / 2", "2 if x == 4 else 0", ["test_half.py::test_it"])
    assert try_all([killed, alive]) == 1
    out = capsys.readouterr().out
    assert "killed  doubles" in out and "1 of 2 mutants are killed" in out
    assert out.endswith("alive: is wrong elsewhere\n")
    assert "return x / 2" in (toy / "half.py").read_text(), "mutants are made in a copy"


@pytest.mark.thorough
def test_what_is_no_mutant_ends_the_run(toy: Path) -> None:
    with pytest.raises(SystemExit, match="is there 0 times"):
        try_all([Mutant("of another text", "half.py", "y / 2", "y", ["test_half.py"])])
    with pytest.raises(SystemExit, match="pytest ended with 2, which says nothing"):
        try_all([Mutant("of the syntax", "half.py", "x / 2", "x /", ["test_half.py"])])
    (toy / "half.py").write_text("def half(x):\n    return x\n")
    with pytest.raises(SystemExit, match=r"the tests fail without a mutant: FAILED test_half\.py::test_it"):
        try_all([Mutant("of what fails anyway", "half.py", "return x", "return 0", ["test_half.py"])])


def test_the_copy_has_what_tests_need_and_one_build(tmp_path: Path) -> None:
    trials.copy_checkout(tmp_path)
    assert (tmp_path / "tests/conftest.py").is_file() and (tmp_path / "sparsenmt/cli.py").is_file()
