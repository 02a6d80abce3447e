"""The best library that the processor runs and that is right is used; a warning says why if there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.native import instruction_sets, library, sources
from sparsenmt.native.build import compile_library
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS, InstructionSet, sets_of_machine, usable_sets
from sparsenmt.native.library import Library
from sparsenmt.native.sources import LIBRARIES, SourceFiles, set_of
from tests.native.libraries import compiler_or_skip

OLD = "flags\t\t: fpu sse2"
AVX2 = "flags\t\t: fpu avx2 fma f16c bmi1 bmi2"
AVX512 = f"{AVX2} avx512f avx512cd avx512bw avx512dq avx512vl"
BF16 = f"{AVX512} avx512_vnni avx512_bf16"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of kernels."""
    monkeypatch.setenv("SPARSENMT_NATIVE_FOLDER", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir()
    return tmp_path / "kernels"


@pytest.fixture
def on_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let this be an x86-64 processor with other features."""

    def be(line: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n", encoding="utf-8", newline="\n")
        monkeypatch.setattr(instruction_sets, "_CPU_INFO", tmp_path / "cpuinfo")
        monkeypatch.setattr("platform.machine", lambda: "x86_64")

    return be


@pytest.mark.parametrize(
    ("line", "best"),
    [
        *((OLD, None), (AVX2, "avx2"), (f"{AVX2} avx_vnni", "avx_vnni"), (AVX512, "avx512")),
        *((f"{AVX512} avx512_vnni", "avx512_vnni"), (f"{AVX512} avx512_vnni avx_vnni", "avx512_vnni")),
        *((BF16, "avx512_bf16"), (f"{BF16} amx_tile amx_bf16 amx_int8", "amx"), (f"{BF16} amx_tile", "avx512_bf16")),
    ],
)
def test_the_best_set_that_the_processor_has(
    on_processor: Callable[[str], None], line: str, best: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor(line)
    assert next((each.name for each in usable_sets()), None) == best
    monkeypatch.setenv(instruction_sets.CAP, "AVX2")
    assert [each.name for each in usable_sets()] == (["avx2"] if best else [])


def test_an_unknown_set_is_refused(on_processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    on_processor(AVX512)
    monkeypatch.setenv(instruction_sets.CAP, "sse9")
    with pytest.raises(UserError, match="'sse9' is no instruction set") as refused:
        usable_sets()
    assert "amx, avx512_bf16, avx512_vnni, avx512, avx_vnni, avx2" in str(refused.value)


def answering(number: int, tmp_path: Path) -> bytes:
    """A shared library whose function returns a number."""
    (tmp_path / "number.cpp").write_text(f'extern "C" int sparsenmt_answer() {{ return {number}; }}\n')
    return compile_library(compiler_or_skip(), SourceFiles("number", str(tmp_path), ("number.cpp",), ()), ())


def put(files: SourceFiles, made_for: InstructionSet, data: bytes) -> Path:
    path = sources.kernel_folder() / files.file_name(made_for, data)
    path.write_bytes(data)
    return path


def load(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).sparsenmt_answer())


def error(answer: int) -> float:
    return 1.0 if answer == 42 else 1.01


@pytest.fixture
def files(tmp_path: Path) -> SourceFiles:
    (tmp_path / "answer.cpp").write_text('extern "C" int sparsenmt_answer() { return 0; }\n')
    return SourceFiles("answer", str(tmp_path), ("answer.cpp",), ())


def test_they_are_tried_from_the_best_on(
    files: SourceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged one, no library, one with wrong results and one of other sources are passed over, with the reason."""
    first, second, third, fourth = (InstructionSet(name, ("any",), frozenset(), ()) for name in "abcd")
    monkeypatch.setattr(library, "usable_sets", lambda: [first, second, third, fourth])
    damaged = put(files, first, answering(7, tmp_path))
    damaged.write_bytes(damaged.read_bytes() + b"x")
    put(SourceFiles("answer", str(tmp_path), ("answer.cpp",), (), ("-O1",)), first, right := answering(42, tmp_path))
    foreign = put(files, second, b"no library")
    wrong, kept = put(files, third, answering(1, tmp_path)), put(files, fourth, right)
    assert Library(files, load, error).find() == 42
    origin = library.origins["answer"]
    assert origin.path == kept and [path.partition(":")[0] for path in origin.refused] == [
        *map(str, (damaged, foreign, wrong))
    ]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        f"warning: {damaged}: not used: damaged, its contents changed after it was built; "
        "remove it and run python -m sparsenmt.native.build"
    )
    assert f"{foreign}: not used: it cannot be loaded" in said[1] and "its results differ from PyTorch's" in said[2]
    assert len(said) == 3 and set_of(kept) == "d" and set_of(tmp_path / "x.so") == "avx2"


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("none", "{folder} has none for this processor"),
        ("stale", "those in {folder} are built from other sources"),
        ("refused", "the lines above say why"),
        ("old", "this processor lacks amx or avx512_bf16 or avx512_vnni or avx512 or avx_vnni or avx2"),
    ],
)
def test_without_one_a_warning_says_why(
    case: str,
    why: str,
    files: SourceFiles,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_processor: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = InstructionSet("only", ("any",), frozenset(), ())
    if case == "old":
        on_processor(OLD)
    else:
        monkeypatch.setattr(library, "usable_sets", lambda: [only])
    if case in ("stale", "refused"):
        put(files, only, b"no library")
    if case == "stale":
        (tmp_path / "answer.cpp").write_text("// other\n")
    assert Library(files, load, error).find() is None
    *others, said = capsys.readouterr().err.splitlines()
    assert len(others) == (case == "refused")
    assert said.startswith(
        f"warning: compiled kernels are not in use: {why.format(folder=folder)}. PyTorch's operators"
    )
    assert ("To build them, run python -m sparsenmt.native.build" in said) == (case != "old")


def test_the_table_names_every_file() -> None:
    """Every C++ file and header of a library's folder is in it: libraries are compiled from the table alone."""
    listed = {path for each in LIBRARIES for path in (*each.paths(), *each.paths(headers=True))}
    folders = {path.parent for path in listed}
    there = {path for each in folders for suffix in ("cpp", "h") for path in each.glob(f"*.{suffix}")}
    assert listed == there
    assert len({each.name for each in INSTRUCTION_SETS}) == len(INSTRUCTION_SETS) and sets_of_machine()
