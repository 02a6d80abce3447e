"""Progress, `--quiet` and `--log-file`: plain lines where there is no terminal."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from sparsenmt import cli
from sparsenmt.commands import message_options
from sparsenmt.errors import UserError
from sparsenmt.process import progress
from sparsenmt.process.log_file import LogFile
from tests.commands.support import Run

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d "
EVIL = "name\x1b[31m\r\u202e"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands; the function puts it forward."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(path: Path) -> list[str]:
    """The lines of a log without their stamps, each of which must be there."""
    data = path.read_bytes().decode()
    assert data.endswith("\n") and "\r" not in data
    lines = data.split("\n")[:-1]
    assert all(re.match(STAMP, line) for line in lines), data
    return [re.sub(STAMP, "", line, count=1) for line in lines]


# --- plain lines


def test_long_work_writes_plain_lines_and_short_work_none(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.progress_bar("short", 100) as advance:
        clock(29)
        advance(100)
    with progress.progress_bar("decode", 1000, unit="line") as advance:
        for _ in range(10):
            clock(20)
            advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "decode: 200 of 1,000 lines (20%), 5/s, 2 min 40 s left",
        "decode: 400 of 1,000 lines (40%), 5/s, 2 min left",
        "decode: 600 of 1,000 lines (60%), 5/s, 1 min 20 s left",
        "decode: 800 of 1,000 lines (80%), 5/s, 40 s left",
        "decode: 1,000 lines in 3 min 20 s",
    ]


def test_very_long_work_and_work_of_unknown_size(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError), progress.progress_bar("hashing", 10**12, unit="B", done=10**11) as advance:
        for _ in range(20):
            clock(60)
            advance(10**8)
        raise RuntimeError
    with progress.progress_bar("stdin", None) as advance:
        clock(61)
        advance(5)
    assert capsys.readouterr().err.splitlines() == [
        "hashing: 101.0 GB of 1.0 TB (10%), 1.7 MB/s, 6 d 5 h left",
        "hashing: 102.0 GB of 1.0 TB (10%), 1.7 MB/s, 6 d 5 h left",
        "stdin: 5 sentences, 0.082/s",
        "stdin: 5 sentences in 1 min 1 s",
    ]


def test_a_terminal_has_a_bar_and_a_dumb_one_lines(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    def shown(terminal: str) -> str:
        monkeypatch.setenv("TERM", terminal)
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.progress_bar("work", 2) as advance:
            clock(40)
            advance(1)
        return stream.getvalue()

    assert "\r" in shown("xterm") and "work: 1 of 2" not in shown("xterm")
    assert shown("dumb") == "work: 1 of 2 sentences (50%), 0.025/s, 40 s left\nwork: 1 sentence in 40 s\n"


def test_other_processes_show_no_progress(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with progress.progress_bar("work", 2) as advance:
        clock(40)
        advance(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90061, "1 d 1 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_training_off_a_terminal_prints_a_line_for_each_line_of_its_log(command: Run) -> None:
    """`\\r`, bars and padding are for terminals."""
    result = command("train", "small.yaml", "directory=other", "training.log_every=4")
    assert result.code == 0 and result.out == b""
    assert not re.search(r"[^\n\x20-\x7e]|%\||  \n", result.err), result.err
    rate = r"loss \d\.\d{3}, [\d,]+ target tokens/s"
    assert [line for line in result.err.split("\n") if line.startswith("train: ")] == [
        line
        for line in result.err.split("\n")
        if re.fullmatch(rf"train: \d+ of 12 updates \(\d+%\), {rate}(, .* left)?", line)
    ]
    assert re.findall(r"train: (\d+) of", result.err) == ["4", "8", "12"]


# --- the log file, and quiet commands


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Callable[[], object]]]:
    """The body of every command of a run, in place of its own; the working directory is empty."""
    bodies: list[Callable[[], object]] = []

    class Module:
        @property
        def command(self) -> click.Command:
            return click.Command(
                "x", params=[click.Argument(["path"], required=False)], callback=lambda path: bodies[0]()
            )

    module = Module()
    monkeypatch.setattr(message_options, "_check", lambda path, values: None)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.chdir(tmp_path)
    yield bodies


def tell() -> None:
    progress.notify("a note")
    progress.notify(f"warning: {EVIL}\nits second line")
    with progress.progress_bar("work", 4) as advance:
        advance(1)
    click.echo("a result")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--quiet", "--log-file", "run.log", "train"],
        ["train", "--quiet", "--log-file", "run.log"],
        ["--quiet", "train", "--log-file=run.log"],
    ],
)
def test_the_options_stand_before_or_behind_the_command(
    arguments: list[str], body: list[Callable[[], object]], capsys: pytest.CaptureFixture[str]
) -> None:
    body.append(tell)
    assert cli.run(arguments) == 0
    found = capsys.readouterr()
    assert found.out == "a result\n"
    assert found.err == "warning: name\\x1b[31m\\r\\u202e\nits second line\n"
    head, *others, tail = lines_of(Path("run.log"))
    assert head.startswith("sparsenmt ") and "run.log" in head
    assert others == ["a note", "warning: name\\x1b[31m\\r\\u202e", "its second line"]
    assert tail.startswith("exit code 0 after ")
    progress.notify("behind it")
    assert capsys.readouterr().err == "behind it\n", "the next command is not quiet"


def test_errors_are_shown_and_logged_and_the_log_is_continued(
    body: list[Callable[[], object]], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise UserError("is wrong", where="a file", hint="Mend it.")

    body.append(fail)
    for _ in range(2):
        assert cli.run(["train", "--quiet", "--log-file", "run.log"]) == 2
    assert capsys.readouterr().err == "error: a file: is wrong\n  Mend it.\n" * 2
    lines = lines_of(Path("run.log"))
    assert lines[1:3] == ["error: a file: is wrong", "  Mend it."] and lines[3].startswith("exit code 2 after")
    assert lines[4:7] == lines[:3]


def test_a_terminal_keeps_its_bar_and_the_log_gets_lines(
    body: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    def work() -> None:
        with progress.progress_bar("work", 2) as advance:
            clock(40)
            advance(1)

    body.append(work)
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.run(["train", "--log-file", "run.log"]) == 0
    assert "\r" in terminal.getvalue() and "of 2 sentences" not in terminal.getvalue()
    assert lines_of(Path("run.log"))[1] == "work: 1 of 2 sentences (50%), 0.025/s, 40 s left"


def test_other_processes_write_no_log(
    body: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    body.append(tell)
    assert cli.run(["train", "--log-file", "run.log"]) == 0
    assert not Path("run.log").exists()


def test_a_full_disk_loses_lines_and_ends_nothing(
    body: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, left = os.write, [60, 0, 10**6]

    def limited(descriptor: int, data: bytes) -> int:
        room = left.pop(0) if len(left) > 1 else left[0]
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:room])

    monkeypatch.setattr(os, "write", limited)
    body.append(tell)
    assert cli.run(["train", "--log-file", "run.log"]) == 0
    assert capsys.readouterr().out == "a result\n"
    lines = Path("run.log").read_text().split("\n")
    assert len(lines[0]) == 60 and "a note" not in lines[1]
    assert all(re.match(STAMP, line) for line in lines[:-1])


@pytest.mark.parametrize("content", [b"a text of the user\n", b"\x00\x01", b"2026-01-01 a diary\n"])
def test_a_file_that_is_no_log_is_refused(
    content: bytes, body: list[Callable[[], object]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text").write_bytes(content)
    body.append(tell)
    assert cli.run(["train", "--log-file", "text"]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("error: --log-file: text exists and is no log of this program\n") and not found.out
    assert Path("text").read_bytes() == content


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--log-file: .* cannot be written: No such file or directory") as refusal:
        LogFile(tmp_path / "absent" / "run.log")
    assert refusal.value.hint is not None
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        LogFile(tmp_path)


def test_the_file_of_standard_error_is_refused(tmp_path: Path) -> None:
    """A shell's `2> run.log` does not append: each would overwrite the other's lines."""
    kept = os.dup(2)
    try:
        with (tmp_path / "run.log").open("wb") as stream:
            os.dup2(stream.fileno(), 2)
        with pytest.raises(UserError, match="--log-file: standard output or standard error goes to"):
            LogFile(tmp_path / "run.log")
        LogFile(Path(os.devnull)).close()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_a_log_that_was_cut_is_continued_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    log = LogFile(path)
    log.write(["first", "\x07"])
    log.close()
    path.write_bytes(path.read_bytes()[:-3])
    log = LogFile(path)
    log.write(["later"])
    log.close()
    assert lines_of(path) == ["first", "\\x", "later"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model/metrics.jsonl", "--log-file names a part of the model in"),
        ("model/tokenizers/run.log", "--log-file names a part of the model in"),
        ("out.de", "--log-file names a file that another option names"),
        ("corpus/test.en", "--log-file names a file that another option names"),
        ("small.yaml", "small.yaml exists and is no log of this program"),
        ("corpus", "this is a directory"),
        ("absent/run.log", "there is no such directory"),
    ],
)
def test_a_log_replaces_no_model_input_or_output(name: str, reason: str, refused: Callable[..., str]) -> None:
    message = refused("decode", "model", "-i", "corpus/test.en", "-o", "out.de", "--log-file", name)
    assert message.startswith("error: --log-file") and reason in message
