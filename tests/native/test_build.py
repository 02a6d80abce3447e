"""Libraries that are built, kept and checked; what is said where that fails."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import math
import os
import platform
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sparsenmt.native import build, cache, compiler
from sparsenmt.native.build import Library
from sparsenmt.native.compiler import CompilerError, compile_library
from sparsenmt.native.instruction_sets import CAP, usable_sets
from sparsenmt.native.sources import DECODING, FLAGS
from sparsenmt.process import interrupts
from sparsenmt.storage.files import directory_lock
from tests.native.libraries import SETS, compiler_or_skip

SOURCE = 'extern "C" int sparsenmt_answer() { return 42; }\n'


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).sparsenmt_answer())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(cache, "_said", set())


@pytest.fixture
def library(tmp_path: Path) -> Library[int]:
    if build.find_compiler() is None:
        pytest.skip("no compiler")
    source = tmp_path / "answer.cpp"
    source.write_text(SOURCE, encoding="utf-8", newline="\n")
    return Library("answer", [source], answer)


@pytest.fixture
def in_place_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a shell script that takes the compiler's place; `$REAL` is the compiler, `$TESTS` a folder for notes."""

    def write(script: str) -> Path:
        real, notes = build.find_compiler(), tmp_path / "notes"
        notes.mkdir()
        monkeypatch.setenv("REAL", "" if real is None else real.words[0])
        monkeypatch.setenv("TESTS", str(notes))
        path = tmp_path / "fake-compiler"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8", newline="\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return notes

    return write


def kept_files(pattern: str) -> list[Path]:
    return sorted(cache.folder().glob(pattern))


def in_a_new_process(library: Library[int]) -> int | None:
    """The kernels that the next command finds, which has printed nothing yet."""
    cache._said.clear()
    return library.find()


def no_compiling(*_: object) -> bytes:
    pytest.fail("compiled again")


def test_it_is_built_once(
    library: Library[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert library.find() == 42
    assert capsys.readouterr().err == "building kernels (answer), once; this takes about 15 s\n"
    assert [path.suffix for path in kept_files("*")] == [".so", ".json"]
    monkeypatch.setattr(Library, "_compile", no_compiling)
    assert in_a_new_process(library) == 42
    assert capsys.readouterr().err == ""


def test_another_source_is_another_library(library: Library[int]) -> None:
    assert library.find() == 42
    library.sources[0].write_text(SOURCE.replace("42", "43"), encoding="utf-8", newline="\n")
    assert library.find() == 43


def test_damage_is_mended(library: Library[int]) -> None:
    assert library.find() == 42
    (kept,) = kept_files("answer-*.so")
    kept.unlink()
    kept.write_bytes(b"no library")
    assert library.find() == 42


@pytest.mark.parametrize("source", ["this is no C++\n", "int nothing() { return 0; }\n"])
def test_what_cannot_be_built_or_lacks_a_function_is_none(library: Library[int], source: str) -> None:
    library.sources[0].write_text(source, encoding="utf-8", newline="\n")
    assert library.find() is None


# A stranger's library


def loads_of(library: Library[int]) -> tuple[Library[int], list[Path]]:
    """The library, and the paths that it loads."""
    loaded: list[Path] = []

    def load(path: Path) -> int:
        loaded.append(path)
        return answer(path)

    return Library(library.name, library.sources, load), loaded


@pytest.mark.parametrize("named", ["absolute", "../other.so", "other.so", 7, None])
def test_a_record_that_names_another_file_is_not_followed(
    library: Library[int], tmp_path: Path, named: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert library.find() == 42
    (own,), (record,) = kept_files("*.so"), kept_files("*.json")
    planted = {"absolute": tmp_path / "other.so", "../other.so": own.parent.parent / "other.so"}.get(
        str(named), own.with_name("other.so")
    )
    shutil.copy(own, planted)
    digest = hashlib.sha256(planted.read_bytes()).hexdigest()
    assert cache.write_record(record.name, {"file": str(planted) if named == "absolute" else named, "sha256": digest})
    capsys.readouterr()
    again, loaded = loads_of(library)
    assert again.find() == 42 and loaded == [own]
    assert str(record) in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["owner", "symlink", "others write"])
def test_a_library_of_another_user_is_not_loaded(
    library: Library[int], tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert library.find() == 42
    (own,) = kept_files("*.so")
    if fault == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(own, 12345, 12345)
    elif fault == "symlink":
        own.rename(tmp_path / "planted.so")
        own.symlink_to(tmp_path / "planted.so")
    else:
        own.chmod(0o666)
    capsys.readouterr()
    again, loaded = loads_of(library)
    assert again.find() == 42 and loaded == [own]
    assert f"warning: {own}: not used for kernels" in capsys.readouterr().err
    status = own.lstat()
    assert status.st_uid == os.geteuid() and status.st_mode & 0o777 == 0o600, "it was built again, in its place"


@pytest.mark.parametrize("fault", ["owner", "others write"])
def test_a_folder_of_another_user_is_not_used(
    library: Library[int], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert library.find() == 42
    folder = cache.folder()
    if fault == "others write":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        pytest.skip("only root can give a folder away")
    capsys.readouterr()
    again, loaded = loads_of(library)
    assert again.find() is again.find() is None and not loaded
    told = capsys.readouterr().err
    assert told.count(f"{folder}: not used") == 1 and "PyTorch's operators are used instead" in told


def test_the_bytes_that_were_built_are_those_that_are_recorded(
    library: Library[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes while it is checked is not recorded as checked."""
    built: list[bytes] = []
    compile_ = Library._compile
    monkeypatch.setattr(Library, "_compile", lambda *given: built.append(compile_(*given)) or built[-1])

    def load(path: Path) -> int:
        found = answer(path)
        path.unlink()  # not overwritten: it is loaded
        path.write_bytes(b"another library")
        path.chmod(0o600)
        return found

    changed: Library[int] = Library("answer", library.sources, load)
    assert changed.find() == 42
    (record,) = kept_files("*.json")
    kept = cache.read_record(record.name)
    assert kept is not None and kept["sha256"] == hashlib.sha256(built[0]).hexdigest()
    assert library.find() == 42 and len(built) == 2


def test_what_other_modules_have_refused_is_built_again(tmp_path: Path, library: Library[int]) -> None:
    """A library is kept for the modules that check it: others may lay out its data in another way."""
    check = tmp_path / "check.py"
    check.write_text("refuses", encoding="utf-8")
    refusing: Library[int] = Library("answer", library.sources, lambda path: None, callers=[check])
    assert refusing.find() is None
    check.write_text("accepts", encoding="utf-8")
    assert Library("answer", library.sources, answer, callers=[check]).find() == 42


# What fails is said, once


def test_without_a_compiler_there_is_none(
    library: Library[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for named in ("no-such-compiler", "no-such-compiler", "c++ 'a quotation", "c++ 'a quotation"):
        monkeypatch.setenv("CXX", named)
        assert in_a_new_process(library) is None
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in told] == ["warning: no C++ compiler for kernels"] * 2
    assert "CXX names none: no-such-compiler). PyTorch's operators are used instead" in told[0]
    monkeypatch.setenv("CXX", " ")
    assert library.find() == 42


GCC_11 = """echo x >> "$TESTS/calls"
echo 'In file included from /usr/lib/few.cpp:3:' >&2
printf "/home/someone/few.h:23:12: error: '__builtin_shufflevector' was not \\033[31mdeclared in this scope\\n" >&2
echo '   23 |     a[i] = __builtin_shufflevector(v[2 * i]' >&2
exit 1"""


def test_a_compiler_that_fails_is_said_and_remembered(
    library: Library[int], in_place_of_the_compiler: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = in_place_of_the_compiler(GCC_11)
    assert in_a_new_process(library) is None
    (record,) = kept_files("*")
    reason = r"few.h:23:12: error: '__builtin_shufflevector' was not \x1b[31mdeclared in this scope"
    assert capsys.readouterr().err.splitlines() == [
        "building kernels (answer), once; this takes about 15 s",
        f"warning: kernels (answer) cannot be built: {reason}. PyTorch's operators are used instead, which are slower. "
        f"To try again, delete {record}.",
    ]
    calls = (notes / "calls").read_text()
    assert in_a_new_process(library) is None
    assert capsys.readouterr().err == "" and (notes / "calls").read_text() == calls
    library.sources[0].write_text(SOURCE + "\n", encoding="utf-8", newline="\n")
    assert in_a_new_process(library) is None, "another source is tried"
    assert len((notes / "calls").read_text()) > len(calls)


@pytest.mark.parametrize("fault", ["refused", "not loaded"])
def test_what_gives_wrong_results_is_said_and_remembered(
    library: Library[int], fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> int | None:
        return None if fault == "refused" else int(ctypes.CDLL(str(path)).no_such_function())

    wrong: Library[int] = Library("answer", library.sources, load)
    assert in_a_new_process(wrong) is None
    assert not kept_files("answer-*.so")
    expected = "its results differ from PyTorch's" if fault == "refused" else "cannot be loaded: undefined symbol"
    if fault == "refused" or os.uname().sysname == "Linux":
        assert expected in capsys.readouterr().err
    monkeypatch.setattr(Library, "_compile", no_compiling)
    assert in_a_new_process(wrong) is None
    assert capsys.readouterr().err == ""


def test_the_loss_of_threads_is_said(
    library: Library[int], in_place_of_the_compiler: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    in_place_of_the_compiler(
        'for word; do case "$word" in -fopenmp) echo "error: no OpenMP here"; exit 1;; -march=*) march=1;; esac; done\n'
        'exec "$REAL" "$@"'
    )
    assert in_a_new_process(library) == 42
    warning = "warning: kernels (answer) run on one thread only: error: no OpenMP here"
    assert capsys.readouterr().err.splitlines()[1:] == [warning]
    assert in_a_new_process(library) == 42
    assert capsys.readouterr().err == ""
    (record,) = kept_files("*.json")
    again = f"; to build it again, delete {record}"
    assert f"warning: {build.origins['answer'].lost}" == warning + again, "`sparsenmt doctor` shows it"


def test_a_compiler_may_be_a_command_with_arguments(
    library: Library[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = build.find_compiler()
    assert real is not None
    tool = tmp_path / "my tool"
    tool.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8", newline="\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CXX", shlex.join([str(tool), *real.words, "-DNEVER"]))
    found = build.find_compiler()
    assert found is not None and found.words == (str(tool), *real.words, "-DNEVER")
    assert library.find() == 42
    stem = library._stem(found)
    assert stem != library._stem(build.Compiler(found.words[:-1])), "every word counts"
    tool.write_text('#!/bin/sh\nexec "$@" # another version\n', encoding="utf-8", newline="\n")
    assert stem != library._stem(found)


@pytest.mark.parametrize("which", ["missing", "there"])
def test_where_the_cache_is_read_only_another_folder_is_used(
    library: Library[int],
    tmp_path: Path,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = cache.folder()
    if which == "missing":
        shutil.rmtree(place.parent)
        mkdir = Path.mkdir

        def read_only(path: Path, *given: object, **named: object) -> None:
            if path == place.parent:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            mkdir(path, *given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(Path, "mkdir", read_only)
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place)
    other = tmp_path / f"sparsenmt-{os.geteuid()}" / "kernels"
    assert in_a_new_process(library) == 42 and cache.folder() == other
    warning = f"warning: {place}: cannot be written; kernels are kept in {other}"
    assert capsys.readouterr().err.splitlines()[1:] == [warning]
    monkeypatch.setattr(Library, "_compile", no_compiling)
    assert in_a_new_process(library) == 42
    assert capsys.readouterr().err == ""


def test_a_read_only_cache_is_read(library: Library[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = cache.folder()
    assert library.find() == 42
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place)
    monkeypatch.setattr(Library, "_compile", no_compiling)
    assert library.find() == 42 and cache.folder() != place


def test_where_nothing_can_be_kept_nothing_is_built(
    library: Library[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(cache, "write_bytes", full)
    monkeypatch.setattr(Library, "_compile", no_compiling)
    assert library.find() is library.find() is None
    assert capsys.readouterr().err.count("cannot be built or kept: [Errno 28] No space left on device") == 1


def test_another_process_that_builds_is_waited_for(
    library: Library[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(build, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    monkeypatch.setattr(build, "_WAITS", 3)
    folder = cache.folder()
    with directory_lock(folder, "builds"):
        assert library.find() is None and len(slept) == 3
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"{folder}: another process builds kernels; this one waits for it"
    assert told[1].startswith(f"warning: {folder}: another process still builds kernels") and len(told) == 2
    assert library.find() == 42, "this is not remembered"


# No compiler is left behind

# Notes its own process and that of a child, as a compiler's driver has, and ends only by a signal.
HANGS = 'sleep 1000 & echo "$$ $!" > "$TESTS/.$$"; mv "$TESTS/.$$" "$TESTS/$$"; {then}; wait'


def assert_none_runs(notes: Path) -> None:
    processes = [int(word) for path in notes.iterdir() for word in path.read_text().split()]
    assert processes, "no compiler was started"
    until = time.monotonic() + 10
    while running := [one for one in processes if runs(one)]:
        assert time.monotonic() < until, f"{running} still run"
        time.sleep(0.01)


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # ended, not waited for
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it has just ended, or there is no /proc
        return os.uname().sysname != "Linux"


def test_compilers_that_take_too_long_are_stopped_and_not_tried_again(
    library: Library[int],
    in_place_of_the_compiler: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = in_place_of_the_compiler(HANGS.format(then=":"))
    monkeypatch.setattr(build, "_BUILD_SECONDS", 1.0)
    assert in_a_new_process(library) is None
    assert_none_runs(notes)
    assert len(list(notes.iterdir())) == 1, "no other variant is tried, and one at a time where there is one thread"
    assert "cannot be built: the compiler takes too long. PyTorch's" in capsys.readouterr().err
    monkeypatch.setattr(Library, "_compile", no_compiling)
    assert in_a_new_process(library) is None


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_an_interrupt_stops_the_compilers(
    library: Library[int],
    in_place_of_the_compiler: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler itself sends the signal, when it and its child run."""
    monkeypatch.setenv("THIS_PROCESS", str(os.getpid()))
    notes = in_place_of_the_compiler(HANGS.format(then=f'kill -{name} "$THIS_PROCESS"'))
    number = getattr(signal, f"SIG{name}")
    before = signal.signal(number, signal.default_int_handler)  # it may be ignored, as under nohup
    try:
        with pytest.raises(interrupts.Interrupted), interrupts.listening():
            library.find()
    finally:
        signal.signal(number, before)
    assert_none_runs(notes)
    assert not kept_files("answer-*"), "an interrupted build is no failure"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("sparsenmt-")], "temporary files are left"


def test_a_signal_that_the_caller_defers_does_not_change_its_results(
    library: Library[int],
    in_place_of_the_compiler: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compilers end with the first signal all the same: a second one ends this process at once."""
    monkeypatch.setenv("THIS_PROCESS", str(os.getpid()))
    hangs = HANGS.format(then='kill -INT "$THIS_PROCESS"')
    notes = in_place_of_the_compiler(f'if [ -n "$(ls "$TESTS")" ]; then exec "$REAL" "$@"; fi\n{hangs}')
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts.listening() as signals, signals.deferred():
            assert library.find() == 42 and signals.number == signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert_none_runs(notes)


def test_a_failure_stops_the_other_compilers(in_place_of_the_compiler: Callable[[str], Path], tmp_path: Path) -> None:
    wait = 'while [ -z "$(ls "$TESTS")" ]; do sleep 0.01; done'
    script = f'if [ "$1" = fails ]; then {wait}; echo "fatal error: none"; exit 3; fi\n{HANGS.format(then=":")}'
    notes = in_place_of_the_compiler(script)
    fake = os.environ["CXX"]
    with pytest.raises(compiler.CompilerError, match="fatal error: none"):
        compiler.run_together([[fake], [fake, "fails"], [fake]], tmp_path, at_once=2, deadline=time.monotonic() + 100)
    assert_none_runs(notes)
    assert len(list(notes.iterdir())) == 1, "two at once, and no other one after the failure"


def test_a_compiler_without_a_message_or_killed_is_named_by_its_end(tmp_path: Path) -> None:
    for command, expected in (("exit 3", "exit status 3"), ("kill -9 $$", "signal 9")):
        with pytest.raises(compiler.CompilerError, match=f"the compiler ends with {expected}"):
            compiler.run_together([["sh", "-c", command]], tmp_path, at_once=1, deadline=time.monotonic() + 100)


# clang's OpenMP

# A parallel loop as clang compiles it: shared variables come as pointers.
AS_CLANG = """
#include <cstdint>
extern "C" {
void __kmpc_push_num_threads(void*, int32_t, int32_t);
void __kmpc_fork_call(void*, int32_t, void*, ...);
void __kmpc_for_static_init_8(void*, int32_t, int32_t, int32_t*, int64_t*, int64_t*, int64_t*, int64_t, int64_t);
void __kmpc_for_static_fini(void*, int32_t);
void __kmpc_barrier(void*, int32_t);
}
static void loop(int32_t* thread, int32_t*, int64_t* count, int64_t* seen, int64_t* who, int64_t* lasts) {
  int32_t last = 0;
  int64_t begin = 0, end = *count - 1, stride = 1;
  __kmpc_for_static_init_8(nullptr, *thread, 34, &last, &begin, &end, &stride, 1, 1);
  for (int64_t i = begin; i <= end; ++i) {
    ++seen[i];
    who[i] = *thread;
  }
  __kmpc_for_static_fini(nullptr, *thread);
  if (last) __atomic_fetch_add(lasts, 1, __ATOMIC_RELAXED);
  __kmpc_barrier(nullptr, *thread);
}
extern "C" int64_t sparsenmt_loop(int64_t count, int64_t* seen, int64_t* who, int threads) {
  int64_t lasts = 0;
  __kmpc_push_num_threads(nullptr, 0, threads);
  __kmpc_fork_call(nullptr, 4, reinterpret_cast<void*>(loop), &count, seen, who, &lasts);
  return lasts;
}
"""


def test_what_clang_compiles_runs_on_the_threads_of_gnus_openmp(tmp_path: Path) -> None:
    real = build.find_compiler()
    if real is None or os.uname().sysname != "Linux":
        pytest.skip("no compiler, or no Linux")
    source = tmp_path / "loop.cpp"
    source.write_text(AS_CLANG, encoding="utf-8", newline="\n")
    wanted: Library[ctypes.CDLL] = Library("loop", [source], lambda path: ctypes.CDLL(str(path)), flags=["-D__clang__"])
    found = wanted.find()
    assert found is not None
    found.sparsenmt_loop.restype = ctypes.c_int64
    found.sparsenmt_loop.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    for count in (0, 1, 2, 3, 7, 100):
        for threads in (1, 2, 3, 5):
            seen, who = torch.zeros(2, count + 1, dtype=torch.long).unbind()
            lasts = found.sparsenmt_loop(count, seen.data_ptr(), who.data_ptr(), threads)
            assert seen.tolist() == [1] * count + [0] and lasts == (count > 0)
            parts = [sum(who[:count] == i).item() if count else 0 for i in range(threads)]
            assert max(parts) - min(parts) <= 1 and who[:count].equal(who[:count].sort().values), (count, threads)


@pytest.mark.parametrize("flags", [("-mamx-int8",), ("-mamx-tile", "-mamx-int8", "-mamx-bf16", "-mavx512f")], ids=str)
def test_tiles_without_the_panels_that_they_multiply_are_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    """As in a virtual machine that hides AVX-512 and shows AMX."""
    if platform.machine() != "x86_64":
        pytest.skip("for other processors")
    options = [*FLAGS, *SETS["avx2"].flags, *flags]
    products = [path for path in DECODING.source_paths if path.name == "products.cpp"]
    with pytest.raises(CompilerError, match="AMX is used beside AVX-512 with VNNI and bf16 only"):
        compile_library(compiler_or_skip(), products, options, tmp_path, at_once=1, deadline=math.inf)


def test_a_set_of_the_processor_is_tried_where_all_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the options of this processor, before those that lose something."""
    monkeypatch.delenv(CAP, raising=False)
    losses = [lost for _, lost in build._variants()]
    assert losses == sorted(losses, key=bool)
    if usable_sets():
        assert ((*usable_sets()[0].flags, "-fopenmp"), "") in build._variants()
