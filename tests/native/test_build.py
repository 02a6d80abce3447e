"""The build of the kernels: what is missing or stale is compiled; what is said where that fails."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from sparsenmt.native import build, instruction_sets
from sparsenmt.native.build import CompilerError, build_here, compile_library, find_compiler, main
from sparsenmt.native.instruction_sets import InstructionSet
from sparsenmt.native.sources import DECODING, LIBRARIES, SourceFiles, is_intact
from tests.native.libraries import SETS, compiler_or_skip

ROOT = Path(__file__).resolve().parents[2]
SOURCE = 'extern "C" int sparsenmt_answer() { return 42; }\n'
FIRST, SECOND = (InstructionSet(name, (platform.machine(),), frozenset(), ()) for name in ("first", "second"))


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).sparsenmt_answer())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceFiles:
    """A library of one function in the place of the package's own, for two instruction sets, and an empty folder."""
    (tmp_path / "answer.cpp").write_text(SOURCE, encoding="utf-8", newline="\n")
    found = SourceFiles("answer", str(tmp_path), ("answer.cpp",), ())
    monkeypatch.setattr(build, "LIBRARIES", (found,))
    monkeypatch.setattr(build, "usable_sets", lambda: [FIRST, SECOND])
    for module in (build, instruction_sets):
        monkeypatch.setattr(module, "sets_of_machine", lambda: [FIRST, SECOND])
    monkeypatch.setenv("SPARSENMT_NATIVE_FOLDER", str(tmp_path / "kernels"))
    monkeypatch.delenv("SPARSENMT_NATIVE_FLAGS", raising=False)
    return found


@pytest.fixture
def in_place_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write a shell script that takes the compiler's place; `$REAL` is the compiler."""

    def write(script: str) -> None:
        monkeypatch.setenv("REAL", compiler_or_skip()[0])
        path = tmp_path / "fake-compiler"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8", newline="\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return write


def test_what_is_missing_or_stale_is_built(files: SourceFiles, tmp_path: Path) -> None:
    compiler_or_skip()
    said: list[str] = []
    build_here(said.append)
    (path,) = (tmp_path / "kernels").iterdir()
    assert said == ["building kernels: answer for first"] and is_intact(path) and answer(path) == 42
    build_here(said.append)
    assert len(said) == 1, "it is up to date"
    build_here(said.append, [FIRST, SECOND])
    assert said[1:] == ["building kernels: answer for second"] and len(list((tmp_path / "kernels").iterdir())) == 2
    (tmp_path / "answer.cpp").write_text(SOURCE.replace("42", "43"), encoding="utf-8", newline="\n")
    assert not list(files.built(FIRST)) and len(files.others()) == 2
    build_here(said.append)
    (path,) = (tmp_path / "kernels").iterdir()
    assert answer(path) == 43, "those of other sources are removed"


@pytest.mark.parametrize("damage", ["changed", "foreign"])
def test_a_damaged_or_foreign_file_is_replaced(files: SourceFiles, tmp_path: Path, damage: str) -> None:
    compiler_or_skip()
    build_here(str)
    (path,) = (tmp_path / "kernels").iterdir()
    data = path.read_bytes()
    path.unlink()
    if damage == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        path.with_name(f"{path.stem[:-1]}.so").write_bytes(data)
    build_here(str)
    assert is_intact(path) and path in files.built(FIRST)


def test_more_options_make_another_library(files: SourceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler_or_skip()
    build_here(str)
    monkeypatch.setenv("SPARSENMT_NATIVE_FLAGS", "-O0")
    assert not list(files.built(FIRST))


def test_without_a_compiler(
    files: SourceFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for named in ("no-such-compiler", "c++ 'a quotation"):
        monkeypatch.setenv("CXX", named)
        assert main([]) == 2
        said = capsys.readouterr().err
        assert said == f"error: CXX: it names no program: {named}\n  Install GCC (g++), or name it in CXX.\n"
    monkeypatch.setenv("CXX", " ")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main([]) == 2
    assert "no C++ compiler is found (g++, c++)\n  Install GCC (g++), or name it in CXX." in capsys.readouterr().err


def test_a_compiler_may_be_a_command_with_arguments(
    files: SourceFiles, in_place_of_the_compiler: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_place_of_the_compiler('exec "$@"')
    words = [str(tmp_path / "fake-compiler"), compiler_or_skip()[0], *compiler_or_skip()[1:], "-DNEVER"]
    monkeypatch.setenv("CXX", shlex.join([*words[:1], "g++", "-DNEVER"]))
    assert find_compiler() == [words[0], "g++", "-DNEVER"]
    build_here(str)
    assert list(files.built(FIRST))


GCC_11 = """echo 'In file included from /usr/lib/few.cpp:3:' >&2
printf "/home/someone/few.h:23:12: error: '__builtin_shuffle' was not \\033[31mdeclared in this scope\\n" >&2
echo '   23 |     a[i] = __builtin_shuffle(v[2 * i]' >&2
exit 1"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (GCC_11, r"few.h:23:12: error: '__builtin_shuffle' was not \x1b[31mdeclared in this scope"),
        ("exit 3", "ends with status 3"),
    ],
)
def test_a_compiler_that_fails(
    script: str,
    reason: str,
    files: SourceFiles,
    in_place_of_the_compiler: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Every set is tried; nothing half-written is left."""
    in_place_of_the_compiler(script)
    assert main([]) == 2
    out, err = capsys.readouterr()
    where = tmp_path / "fake-compiler"
    assert out.splitlines()[1::2] == [
        f"warning: kernels for {name} are left out: {where}: {reason}" for name in ("first", "second")
    ]
    assert err.startswith("error: kernels: no library could be compiled\n") and "no products in bf16 and int8" in err
    assert not list((tmp_path / "kernels").iterdir())


def test_a_compiler_that_lacks_the_best_set(
    files: SourceFiles,
    in_place_of_the_compiler: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = InstructionSet("best", (platform.machine(),), frozenset(), ("-mno-such-option",))
    monkeypatch.setattr(build, "usable_sets", lambda: [best, SECOND])
    compiler_or_skip()
    said: list[str] = []
    build_here(said.append)
    assert "kernels for best are left out" in said[1] and list(files.built(SECOND)) and not list(files.built(best))


def test_a_processor_without_a_set(files: SourceFiles, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(build, "usable_sets", list)
    assert main([]) == 2
    assert "kernels: there are none for this processor, which lacks first or second" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(files: SourceFiles, tmp_path: Path, capsys: Any) -> None:
    compiler_or_skip()
    (tmp_path / "kernels").write_bytes(b"")
    assert main([]) == 2
    assert f"error: {tmp_path / 'kernels'}: cannot be written: File exists" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_compiler_must_be_gcc(tmp_path: Path) -> None:
    """clang's OpenMP is another one than PyTorch's."""
    for library in LIBRARIES:
        with pytest.raises(CompilerError, match="kernels need GCC"):
            compile_library(compiler_or_skip(), library, ["-D__clang__", "-fsyntax-only"])


def test_a_processor_without_avx2_is_refused() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("for other processors")
    with pytest.raises(CompilerError, match="kernels need AVX2 with FMA"):
        compile_library(compiler_or_skip(), DECODING, ["-march=x86-64", "-fsyntax-only"])


@pytest.mark.parametrize("flags", [("-mamx-int8",), ("-mamx-tile", "-mamx-int8", "-mamx-bf16", "-mavx512f")], ids=str)
def test_tiles_without_the_panels_that_they_multiply_are_refused(flags: tuple[str, ...]) -> None:
    """As in a virtual machine that hides AVX-512 and shows AMX."""
    if platform.machine() != "x86_64":
        pytest.skip("for other processors")
    products = SourceFiles("products", DECODING.folder, ("products.cpp",), ())
    with pytest.raises(CompilerError, match="AMX is used beside AVX-512 with VNNI and bf16 only"):
        compile_library(compiler_or_skip(), products, [*SETS["avx2"].flags, *flags, "-fsyntax-only"])


# The build hook


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook, without the package that calls it; its messages are in `said`."""
    interface = SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.KernelHook()
    found.root, found.said = str(ROOT), []
    found.app = SimpleNamespace(display_info=found.said.append, display_warning=found.said.append)
    monkeypatch.delenv(module.SWITCH, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return found


def test_an_editable_install_builds_into_the_folder(files: SourceFiles, hook: Any) -> None:
    compiler_or_skip()
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("editable", data)
    assert [path.name.split("-")[1] for path in files.built(FIRST)] == ["first"] and not list(files.built(SECOND))
    assert data == {"force_include": {}}


def test_a_wheel_gets_every_set(files: SourceFiles, hook: Any, tmp_path: Path) -> None:
    compiler_or_skip()
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    assert sorted(name.split("-")[1] for name in data["force_include"].values()) == ["first", "second"]
    assert all(Path(path).is_file() for path in data["force_include"]) and not (tmp_path / "kernels").exists()
    assert data["pure_python"] is False and data["tag"].startswith("py3-none-")
    hook.finalize("standard", data, "")
    assert not any(Path(path).exists() for path in data["force_include"])


@pytest.mark.parametrize("version", ["editable", "standard"])
def test_an_install_without_a_compiler_says_what_is_lost(
    files: SourceFiles, hook: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize(version, data)
    (said,) = hook.said
    assert "CXX: it names no program: no-such-compiler" in said and "decoding is slower" in said
    assert "To build them later: python -m sparsenmt.native.build" in said and not data["force_include"]
    with (
        mock.patch.dict("os.environ", {"SPARSENMT_WHEEL_KERNELS": "1"}),
        pytest.raises(RuntimeError, match="no program"),
    ):
        hook.initialize(version, data)
    with mock.patch.dict("os.environ", {"SPARSENMT_WHEEL_KERNELS": "0"}):
        hook.initialize(version, data)
    assert len(hook.said) == 1
