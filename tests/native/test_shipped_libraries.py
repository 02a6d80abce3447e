"""Libraries that a wheel brings along: the best one that the processor runs and that is right is used."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.native import build, cache, instruction_sets, sources
from sparsenmt.native.build import Library
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS, InstructionSet, sets_of_machine, usable_sets
from sparsenmt.native.sources import LIBRARIES, digest, is_intact, shipped_name
from tests.native.libraries import compiler_or_skip

OLD = "flags\t\t: fpu sse2"
AVX2 = "flags\t\t: fpu avx2 fma f16c bmi1 bmi2"
AVX512 = f"{AVX2} avx512f avx512cd avx512bw avx512dq avx512vl"
BF16 = f"{AVX512} avx512_vnni avx512_bf16"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.delenv(build.MORE_FLAGS, raising=False)
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setattr(sources, "SHIPPED", tmp_path / "_kernels")
    (tmp_path / "_kernels").mkdir()


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
    source = tmp_path / "number.cpp"
    source.write_text(f'extern "C" int sparsenmt_answer() {{ return {number}; }}\n', encoding="utf-8", newline="\n")
    library = Library("number", [source], lambda path: 0)
    return library._compile(compiler_or_skip(), (), tmp_path, float("inf"))


def ship(library: Library[int], made_for: InstructionSet, data: bytes) -> Path:
    name = shipped_name(library.name, made_for, digest(library.sources, library.headers, library.flags), data)
    path = sources.SHIPPED / name
    path.write_bytes(data)
    return path


def test_they_are_tried_from_the_best_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged one, one with wrong results and one of other sources are passed over, with the reason."""
    first, second, third = (InstructionSet(name, ("any",), frozenset(), ()) for name in ("first", "second", "third"))
    monkeypatch.setattr(build, "usable_sets", lambda: [first, second, third])
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int sparsenmt_answer() { return 0; }\n', encoding="utf-8", newline="\n")

    def load(path: Path) -> int | None:
        found = int(ctypes.CDLL(str(path)).sparsenmt_answer())
        return found if found > 1 else None

    library = Library("answer", [source], load)
    damaged, wrong, right = (
        ship(library, first, answering(7, tmp_path)),
        answering(1, tmp_path),
        answering(42, tmp_path),
    )
    damaged.write_bytes(damaged.read_bytes() + b"x")
    ship(library, second, wrong)
    assert not is_intact(damaged)
    other = Library("answer", [source], load, flags=("-O1",))
    ship(other, first, right)  # made from something else
    kept = ship(library, third, right)
    assert library.find() == 42
    origin = build.origins["answer"]
    assert (origin.way, origin.path) == ("wheel", kept) and len(origin.refused) == 2
    said = capsys.readouterr().err
    assert "damaged" in said and "its results differ from PyTorch's" in said and "building" not in said


def test_building_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler_or_skip()
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int sparsenmt_answer() { return 5; }\n', encoding="utf-8", newline="\n")
    library = Library("answer", [source], lambda path: int(ctypes.CDLL(str(path)).sparsenmt_answer()))
    best = usable_sets()[0]
    ship(library, best, answering(6, tmp_path))
    assert library.find() == 6
    monkeypatch.setenv(build.SWITCH, build.BUILD)
    assert library.find() == 5 and build.origins["answer"].way == "built"


def test_the_table_names_every_file() -> None:
    """Every C++ file and header of a library's folder is in it: a wheel is compiled from the table alone."""
    listed = {path for library in LIBRARIES for path in (*library.source_paths, *library.header_paths)}
    folders = {path.parent for path in listed}
    there = {path for folder in folders for suffix in ("cpp", "h") for path in folder.glob(f"*.{suffix}")}
    assert listed | {sources.OPENMP} == there
    assert len({each.name for each in INSTRUCTION_SETS}) == len(INSTRUCTION_SETS) and sets_of_machine()
