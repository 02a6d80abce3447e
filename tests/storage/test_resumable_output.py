"""An output that grows beside its place: whatever stops it, the next run ends with the bytes of an undisturbed one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.errors import UserError
from sparsenmt.storage import resumable_output as module
from sparsenmt.storage.resumable_output import ResumableOutput, resumable_output

WORK: dict[str, Any] = {"input": "0" * 64, "decoding": {"alpha": 0.1, "method": "beam"}, "window": 2}
LINES = [f"line {number} ä\u2028" for number in range(7)]
WHOLE = "".join(f"{line}\n" for line in LINES).encode()


class Stop(BaseException):
    """Stands for whatever ends a run."""


def make(output: Path, work: dict[str, Any] | None = WORK, *, stop_at: int | None = None) -> ResumableOutput:
    """What `decode` does: lines in windows of two; ``stop_at`` is the line before which the run is stopped."""
    with resumable_output(output, work, len(LINES)) as file:
        if file.complete:
            return file
        for number in range(file.lines, len(LINES)):
            if number == stop_at:
                raise Stop
            file.write([LINES[number]])
            if (number + 1) % 2 == 0:
                file.commit(number + 1)
        file.finish(len(LINES))
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("work", [WORK, None])
def test_undisturbed(tmp_path: Path, work: dict[str, Any] | None) -> None:
    output = tmp_path / "out"
    for _ in range(2):
        file = make(output, work)
        assert (file.restart_reason, file.complete) == (None, False)
        assert output.read_bytes() == WHOLE
        assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("stop_at", range(len(LINES)))
@pytest.mark.parametrize("old", [None, b"old\n"])
def test_goes_on_after_whole_windows(tmp_path: Path, stop_at: int, old: bytes | None) -> None:
    output, before = tmp_path / "out", ["out"] if old else []
    if old:
        output.write_bytes(old)
    with pytest.raises(Stop):
        make(output, stop_at=stop_at)
    assert (output.read_bytes() if output.exists() else None) == old
    kept = stop_at // 2 * 2
    assert names(tmp_path) == ([".out.journal", ".out.partial", *before] if kept else before)
    with resumable_output(output, WORK, len(LINES)) as file:
        assert (file.lines, file.restart_reason) == (kept, None)
    make(output)
    assert output.read_bytes() == WHOLE
    assert names(tmp_path) == ["out"]


def test_a_chain_of_stops(tmp_path: Path) -> None:
    for stop_at in range(2, len(LINES)):
        with pytest.raises(Stop):
            make(tmp_path / "out", stop_at=stop_at)
    assert make(tmp_path / "out").restart_reason is None
    assert (tmp_path / "out").read_bytes() == WHOLE


def test_bytes_that_the_journal_does_not_know_are_cut_off(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        make(tmp_path / "out", stop_at=4)
    with (tmp_path / ".out.partial").open("ab") as stream:
        stream.write(b"half a li")
    make(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == WHOLE


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", [".out.partial", ".out.journal"])
def test_damaged_remains_are_not_used(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    with pytest.raises(Stop):
        make(tmp_path / "out", stop_at=5)
    damage(tmp_path / name)
    file = make(tmp_path / "out")
    if name == ".out.partial":
        assert file.restart_reason == "the partial output is damaged"
    elif damage is not Path.unlink:
        assert file.restart_reason == "its journal is damaged"
    assert (tmp_path / "out").read_bytes() == WHOLE
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ({**WORK, "decoding": {"alpha": 0.2, "method": "beam"}}, "decoding.alpha is 0.2 instead of 0.1"),
        ({**WORK, "input": "1" * 64}, "the input has changed"),
        ({**WORK, "window": 1, "threads": 2}, "window is 1 instead of 2; threads is 2 instead of null"),
        ({**WORK, "window": 1, "a": 1, "b": 1, "c": 1}, "window is 1 instead of 2; a is 1 instead of null; "),
        (None, "the input cannot be read from the middle"),
    ],
)
def test_other_work_starts_again(tmp_path: Path, work: dict[str, Any] | None, reason: str) -> None:
    with pytest.raises(Stop):
        make(tmp_path / "out", stop_at=5)
    file = make(tmp_path / "out", work)
    assert (file.restart_reason or "").startswith(reason)
    assert (tmp_path / "out").read_bytes() == WHOLE
    assert names(tmp_path) == ["out"]


def test_without_work_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        make(tmp_path / "out", None, stop_at=5)
    assert names(tmp_path) == []


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "out").symlink_to("far/real")
    with pytest.raises(Stop):
        make(tmp_path / "out", stop_at=5)
    make(tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "far/real").read_bytes() == WHOLE
    assert names(tmp_path / "far") == ["real"]


def test_only_one_at_a_time(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with resumable_output(output, WORK, len(LINES)) as file:
        file.write(LINES[:2])
        file.commit(2)
        for other in (WORK, None):
            with pytest.raises(UserError, match="another process is writing this output"):
                make(output, other)
        file.write(LINES[2:])
        file.finish(len(LINES))
    assert output.read_bytes() == WHOLE
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("removed", [False, True])
def test_a_run_that_ends_while_another_waits_for_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """The second must not write into the file that has got its final name, or none."""
    import fcntl

    lock, partial = fcntl.flock, tmp_path / ".out.partial"
    calls = []

    def late(descriptor: int, operation: int) -> None:
        if not calls:
            partial.unlink() if removed else partial.rename(tmp_path / "first")
        calls.append(os.fstat(descriptor).st_ino)
        lock(descriptor, operation)

    partial.write_bytes(b"of the first\n")
    monkeypatch.setattr(fcntl, "flock", late)
    make(tmp_path / "out")
    assert removed or calls[1] != calls[0], "it opened another file"
    assert (tmp_path / "out").read_bytes() == WHOLE
    if not removed:
        assert (tmp_path / "first").read_bytes() == b"of the first\n"


CALLS = ("open", "write", "fsync", "replace", "unlink", "ftruncate", "lseek", "read")


class Faults:
    """Counts the calls that change or read a disk; the one with the given number fails.

    Args:
        error: what it raises. `Stop` stands for SIGKILL: from then on no call does anything any more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None, error: Callable[[], BaseException]) -> None:
        self.count = 0
        self._number, self._error = number, error
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            killed = self._number is not None and self.count > self._number and isinstance(self._error(), Stop)
            if self.count == self._number or killed:
                raise self._error()
            return call(*arguments, **options)

        return wrapped


ERRORS: list[Callable[[], BaseException]] = [
    Stop,
    lambda: OSError(errno.ENOSPC, "No space left on device"),
    lambda: OSError(errno.EIO, "Input/output error"),
]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("begun", [0, 4, len(LINES)])
def test_a_fault_at_every_call(tmp_path: Path, error: Callable[[], BaseException], begun: int) -> None:
    """From nothing, from a stopped run, and over an output of old."""

    def fresh(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "out").write_bytes(b"old\n")
        if begun:
            with pytest.raises(Stop):
                make(folder / "out", {**WORK, "window": 3}, stop_at=3)  # of other work
            with pytest.raises(Stop):
                make(folder / "out", stop_at=begun if begun < len(LINES) else 6)
        return folder / "out"

    output = fresh("count")
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, None, error)
        make(output)
    assert faults.count > 10
    for number in range(1, faults.count + 1):
        output = fresh(str(number))
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, number, error)
            try:
                make(output)
            except (Stop, UserError) as caught:
                assert isinstance(caught, Stop) or f"{output}: cannot be written" in str(caught)
        assert output.read_bytes() in (b"old\n", WHOLE)
        make(output)
        assert output.read_bytes() == WHOLE
        assert names(output.parent) == ["out"]


def test_killed_after_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is there, and so is the journal: nothing is done twice."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_remove", lambda *paths: (_ for _ in ()).throw(Stop()) if WHOLE in contents() else None)

        def contents() -> list[bytes]:
            return [path.read_bytes() for path in tmp_path.iterdir() if path.name == "out"]

        with pytest.raises(Stop):
            make(tmp_path / "out")
    assert names(tmp_path) == [".out.journal", "out"]
    assert make(tmp_path / "out").complete
    assert (tmp_path / "out").read_bytes() == WHOLE
    assert names(tmp_path) == ["out"]


def test_an_output_that_was_replaced_since_is_made_again(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        with resumable_output(tmp_path / "out", WORK, len(LINES)) as file:
            file.write(LINES)
            file.commit(len(LINES))
            raise Stop
    (tmp_path / ".out.partial").unlink()
    (tmp_path / "out").write_bytes(WHOLE[:-1])
    file = make(tmp_path / "out")
    assert not file.complete and file.restart_reason == "the partial output is damaged"
    assert (tmp_path / "out").read_bytes() == WHOLE


def test_a_disk_that_takes_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    make(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == WHOLE


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    for output in (tmp_path / "out", tmp_path / "missing/out", tmp_path / ("long" * 100)):
        with pytest.raises(UserError, match="cannot be written"):
            make(output)


def test_a_line_end_inside_a_line_is_an_error(tmp_path: Path) -> None:
    with resumable_output(tmp_path / "out", WORK) as file, pytest.raises(ValueError, match="line end"):
        file.write(["a\nb"])
