"""Libraries that are built, kept and checked."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from sparsenmt.native import build
from sparsenmt.native.build import Library

SOURCE = 'extern "C" int sparsenmt_answer() { return 42; }\n'


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library[int]:
    if build._compiler() is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "answer.cpp"
    source.write_text(SOURCE, encoding="utf-8", newline="\n")
    return Library("answer", [source], lambda path: int(ctypes.CDLL(str(path)).sparsenmt_answer()))


def test_it_is_built_once(library: Library[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.find() == 42
    names = {path.suffix for path in build.cache().iterdir() if path.name.startswith("answer-")}
    assert names == {".so", ".json"}
    monkeypatch.setattr(Library, "_build_alone", lambda *_: pytest.fail("built again"))
    assert library.find() == 42


def test_another_source_is_another_library(library: Library[int]) -> None:
    assert library.find() == 42
    library.sources[0].write_text(SOURCE.replace("42", "43"), encoding="utf-8", newline="\n")
    assert library.find() == 43


def test_damage_is_mended(library: Library[int]) -> None:
    assert library.find() == 42
    (kept,) = build.cache().glob("answer-*.so")
    kept.unlink()
    kept.write_bytes(b"no library")
    assert library.find() == 42


def test_without_a_compiler_there_is_none(library: Library[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.find() is None


@pytest.mark.parametrize("source", ["this is no C++\n", "int nothing() { return 0; }\n"])
def test_what_cannot_be_built_or_lacks_a_function_is_none(library: Library[int], source: str) -> None:
    library.sources[0].write_text(source, encoding="utf-8", newline="\n")
    assert library.find() is None


def test_what_gives_wrong_results_is_none(library: Library[int]) -> None:
    refused: Library[int] = Library("answer", library.sources, lambda path: None)
    assert refused.find() is None
    assert not list(build.cache().glob("answer-*.so"))
