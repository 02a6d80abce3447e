"""Files that survive: what stands under its name is complete, and one process at a time writes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.errors import UserError
from sparsenmt.storage.files import (
    DamagedFileError,
    atomic_writer,
    directory_lock,
    emptied,
    locked_partial,
    make_directories,
    new_directory,
    partial_path,
    publish_directory,
    read_json,
    recover_directory,
    write_bytes,
    write_json,
    write_text,
)

ROOT = Path(__file__).resolve().parents[1]


def tree(directory: Path) -> dict[str, bytes]:
    """All files, with what is in them."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def fails(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


class Trace:
    """Notes which functions of `os` were called, in order, and calls them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.calls: list[str] = []
        for name in names:
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            # A descriptor says by its link what is brought to the disk.
            place = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else str(arguments[0])
            self.calls.append(f"{name} {Path(place).name}")
            return function(*arguments, **named)

        return call


# --- files -------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_writer(path) as stream:
        stream.write(b"new ")
        assert path.read_bytes() == b"old"
        assert partial_path(path).parent == tmp_path, "on the same file system"
        stream.write(b"content")
    assert tree(tmp_path) == {"file": b"new content"}
    write_bytes(path, b"\x00\r\n\xff")
    assert path.read_bytes() == b"\x00\r\n\xff"
    write_text(path, "ä\r\n\u2028")
    assert path.read_bytes() == "ä\r\n\u2028".encode()


@pytest.mark.parametrize("before", [b"old", None])
@pytest.mark.parametrize(
    ("step", "how"),
    [
        ("write", fails),
        ("write", interrupted),
        ("os.fsync", fails),
        ("os.fsync", interrupted),
        ("os.replace", fails),
        ("os.replace", interrupted),
    ],
)
def test_a_file_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, how: Callable[..., None], before: bytes | None
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    if step != "write":
        monkeypatch.setattr(step, how)
    with pytest.raises((OSError, KeyboardInterrupt)) as caught, atomic_writer(path) as stream:
        stream.write(b"half")
        if step == "write":
            how()
    monkeypatch.undo()
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path), "the file that is wanted, not the one aside"
    assert tree(tmp_path) == ({} if before is None else {"file": before})


def test_the_bytes_are_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch, "fsync", "replace")
    write_bytes(tmp_path / "file", b"x")
    assert trace.calls == ["fsync .file.partial", "replace .file.partial", f"fsync {tmp_path.name}"]


def test_a_left_over_file_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "file"
    partial_path(path).write_bytes(b"a much longer text that a killed process left")
    write_bytes(path, b"new")
    assert tree(tmp_path) == {"file": b"new"}


def test_the_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_bytes(tmp_path / "no/file", b"x")
    assert caught.value.filename == str(tmp_path / "no/file")


def test_equal_values_give_equal_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": ["ü"]})
    write_json(tmp_path / "b", {"a": ["ü"], "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"a": ["ü"], "b": 1}


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        read_json(path)
    assert caught.value.where == str(path) and caught.value.hint


def test_a_folder_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path)


# --- directories -------------------------------------------------------------------------------------------------


@contextmanager
def replaced(place: Path) -> Iterator[Path]:
    """A new directory in place of an older one, as a checkpoint or prepared data are."""
    with locked_partial(place, "is a test") as partial, emptied(partial):
        yield partial
        publish_directory(partial, place)


def test_a_directory_takes_its_place_at_once(tmp_path: Path) -> None:
    place = tmp_path / "one/two"
    for content in (b"first", b"second"):
        with replaced(place) as partial:
            (partial / "sub").mkdir()
            (partial / "sub/file").write_bytes(content)
            assert tree(place) == ({} if content == b"first" else {"sub/file": b"first"})
        assert tree(tmp_path) == {"one/two/sub/file": content}
        assert [path.name for path in place.parent.iterdir()] == ["two"]


@pytest.mark.parametrize("how", [fails, interrupted])
@pytest.mark.parametrize("there", [True, False])
def test_a_directory_stays_as_it_was(tmp_path: Path, how: Callable[..., None], there: bool) -> None:
    place = tmp_path / "place"
    if there:
        place.mkdir()
        (place / "file").write_bytes(b"old")
    with pytest.raises((OSError, KeyboardInterrupt)), replaced(place) as partial:
        (partial / "file").write_bytes(b"half")
        how()
    assert tree(tmp_path) == ({"place/file": b"old"} if there else {})
    assert [path.name for path in tmp_path.iterdir()] == (["place"] if there else [])


def test_an_interrupt_while_the_directory_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as there is something to remove, it is removed."""
    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "place"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_left_over_directory_is_not_used(tmp_path: Path) -> None:
    place = tmp_path / "place"
    partial_path(place).mkdir()
    (partial_path(place) / "left").write_bytes(b"half")
    with new_directory(place) as partial:
        (partial / "file").write_bytes(b"new")
    assert tree(tmp_path) == {"place/file": b"new"}


def test_what_is_in_a_directory_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_directory(tmp_path / "place") as partial:
        (partial / "sub").mkdir()
        for name in ("a", "sub/b"):
            (partial / name).write_bytes(b"x")
        trace = Trace(monkeypatch, "fsync", "rename")
    assert sorted(trace.calls[:4]) == ["fsync .place.partial", "fsync a", "fsync b", "fsync sub"]
    assert trace.calls[3] == "fsync .place.partial"
    assert trace.calls[4:] == ["rename .place.partial", f"fsync {tmp_path.name}"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with pytest.raises(UserError, match="cannot be created") as caught, new_directory(tmp_path / "file/place"):
        pass
    assert caught.value.where == str(tmp_path / "file/place") and caught.value.hint


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.mark.parametrize("step", range(9))
def test_a_replacement_that_stops_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """`publish_directory`, cut before each system call, then `recover_directory`: the old or the new one, whole."""
    place, partial = tmp_path / "place", partial_path(tmp_path / "place")
    for directory, content in ((place, b"old"), (partial, b"new")):
        directory.mkdir()
        for name in ("a", "b"):
            (directory / name).write_bytes(content)
    left = [step]

    def cut(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return function(*arguments, **named)

        return call

    for name in ("fsync", "rename", "unlink"):
        monkeypatch.setattr(os, name, cut(getattr(os, name)))
    with suppress(Killed):
        publish_directory(partial, place)
    monkeypatch.undo()
    recover_directory(place)
    assert tree(place) in ({"a": b"old", "b": b"old"}, {"a": b"new", "b": b"new"})
    with replaced(place) as again:
        write_bytes(again / "c", b"third")
    assert tree(tmp_path) == {"place/c": b"third"}


def test_nothing_to_recover(tmp_path: Path) -> None:
    recover_directory(tmp_path / "place")
    (tmp_path / "place").mkdir()
    recover_directory(tmp_path / "place")
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_directories_are_made_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch, "fsync")
    make_directories(tmp_path / "a/b")
    make_directories(tmp_path / "a/b")
    assert sorted(trace.calls) == sorted(["fsync a", f"fsync {tmp_path.name}"])


# --- locks -------------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from sparsenmt.storage.files import directory_lock
with directory_lock(Path(sys.argv[1]), "waits here"):
    print("has it", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == b"has it\n"
        with (
            pytest.raises(UserError, match="another process trains here") as caught,
            directory_lock(tmp_path, "trains here"),
        ):
            pytest.fail("two processes have the lock")
        assert caught.value.where == str(tmp_path) and caught.value.hint
        with locked_elsewhere(tmp_path):
            pass
    finally:
        other.kill()  # no chance to give it back: the system takes it
        other.wait()
        other.stdin.close()
        other.stdout.close()
    for _ in range(2):
        with directory_lock(tmp_path, "trains here"):
            pass
    assert not list(tmp_path.glob(".*")), "nothing is left of it"


def locked_elsewhere(directory: Path) -> Any:
    """Another directory has a lock of its own."""
    (directory / "other").mkdir()
    return directory_lock(directory / "other", "trains here")


def test_an_error_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), directory_lock(tmp_path, "trains here"):
        raise ZeroDivisionError
    with directory_lock(tmp_path, "trains here"):
        pass


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    for mask, wanted in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            write_bytes(tmp_path / "file", b"")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == wanted
