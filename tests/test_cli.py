"""The command line: start-up, help, messages and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from sparsenmt import __version__, cli
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import Interrupted, listening
from sparsenmt.process.runtime import check_thread_variable

ROOT = Path(__file__).resolve().parents[1]
BEGINS_AGAIN = "  No file is half-written: the same command begins again, and uses what is complete."


def program(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_idle_threads_sleep_soon_unless_the_environment_says_otherwise(given: dict[str, str], spins: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = (
        "import os, sys; from sparsenmt import cli; sys.argv = ['sparsenmt', '--version']\n"
        "try: cli.main()\nfinally: print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    assert program(code, env=kept | given).stdout.split("\n")[-2] == f"{spins} False"


def test_few_kernels_are_kept_unless_the_environment_says_otherwise() -> None:
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    kept = {name: value for name, value in os.environ.items() if name not in names} | {names[1]: "7"}
    code = (
        "import os, sys; from sparsenmt import cli; sys.argv = ['sparsenmt', '--version']\n"
        f"try: cli.main()\nfinally: print(*(os.environ.get(name) for name in {names}))"
    )
    assert program(code, env=kept).stdout.split("\n")[-2] == "16 7"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[], object]], int]:
    """Runs `sparsenmt train` with a body of the test's own, in an empty folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(body: Callable[[], object]) -> int:
        module = SimpleNamespace(command=click.Command("train", callback=body))
        monkeypatch.setattr(importlib, "import_module", lambda name: module)
        return cli.run(["train"])

    return run


def fails_with(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


@pytest.mark.parametrize("words", [["--help"], ["analyze", "--help"], ["analyze", "maps", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        f"import sys; from sparsenmt import cli; code = cli.run({words});"
        "heavy = {'torch', 'numpy', 'pydantic', 'yaml', 'sentencepiece', 'sacrebleu', 'matplotlib'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    result = program(code)
    assert result.returncode == 0, result.stderr
    assert words != ["--help"] or all(name in result.stdout for name in cli.COMMANDS)


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "sparsenmt"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (shown.returncode, shown.stdout) == (0, f"sparsenmt {__version__}\n")
    assert subprocess.run([*command, "nonsense"], capture_output=True, cwd=ROOT).returncode == 2


@pytest.mark.parametrize(("name", "meant"), [("trian", "train"), ("Decode", "decode"), ("scores", "score")])
def test_an_unknown_command_suggests_the_nearest(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name]) == 2
    assert f"There is no command '{name}'. Did you mean '{meant}'?" in capsys.readouterr().err


def test_an_unknown_command_that_is_like_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["xyz"]) == 2
    assert "Commands: prepare, train," in capsys.readouterr().err


def test_unknown_options_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err


def test_every_command_of_the_table_is_there() -> None:
    for name, entry in cli.COMMANDS.items():
        module = importlib.import_module(f"sparsenmt.commands.{entry.module}")
        assert isinstance(module.command, click.Command), name
        assert module.command.get_short_help_str(limit=200), name


def test_a_users_mistake(command: Callable[[Callable[[], object]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(fails_with(UserError("is empty", where="a.txt, line 3", hint="Fill it."))) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: a.txt, line 3: is empty\n  Fill it.\n")


def test_a_full_disk(command: Callable[[Callable[[], object]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(fails_with(OSError(errno.ENOSPC, "No space left on device", "out.bin"))) == 2
    assert capsys.readouterr().err == (
        "error: out.bin: No space left on device\n"
        "  Free disk space, and run the same command again: completed work is kept.\n"
    )


def test_an_interrupt(command: Callable[[Callable[[], object]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(fails_with(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.strip() == f"interrupted\n{BEGINS_AGAIN}"


@pytest.mark.parametrize(
    ("interrupt", "code", "shown"),
    [
        (Interrupted(signal.SIGINT), 130, f"interrupted\n{BEGINS_AGAIN}\n"),
        (Interrupted(signal.SIGTERM), 143, f"terminated\n{BEGINS_AGAIN}\n"),
        (Interrupted(signal.SIGTERM, "m: saved"), 143, f"terminated; m: saved\n{BEGINS_AGAIN}\n"),
        (
            Interrupted(signal.SIGINT, "m: saved", resumable=True),
            130,
            "interrupted; m: saved\n  Resume with: sparsenmt train\n",
        ),
    ],
)
def test_a_signal_says_what_is_kept_and_how_to_go_on(
    command: Callable[[Callable[[], object]], int],
    interrupt: Interrupted,
    code: int,
    shown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(fails_with(interrupt)) == code
    assert capsys.readouterr().err.lstrip("\n") == shown


def test_a_real_signal(command: Callable[[Callable[[], object]], int], capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was not heard")

    with listening():
        assert command(body) == 143
    assert capsys.readouterr().err.strip() == f"terminated\n{BEGINS_AGAIN}"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EDQUOT, "Free disk space"),
        (errno.EFBIG, "Free disk space"),
        (errno.EACCES, "Change the permissions"),
        (errno.EROFS, "Change the permissions"),
        (errno.EIO, "Check the disk"),
    ],
)
def test_what_the_system_refuses(
    command: Callable[[Callable[[], object]], int], number: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(fails_with(OSError(number, "x", "out.bin"))) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: out.bin: {os.strerror(number)}\n  {advice}")


def test_too_little_memory(command: Callable[[Callable[[], object]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(fails_with(MemoryError("no\nroom"))) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: out of memory (no room)\n  Lower training.batch_tokens")


@pytest.mark.parametrize("error", [ZeroDivisionError("by\nzero"), EOFError("ended"), FileNotFoundError(2, "no", "x")])
def test_a_bug_leaves_a_log(
    command: Callable[[Callable[[], object]], int], error: Exception, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command(fails_with(error)) == 1
    (log,) = tmp_path.glob("sparsenmt-error-*.log")
    text = log.read_text(encoding="utf-8")
    assert "Traceback" in text and type(error).__name__ in text and __version__ in text and "['train']" in text
    shown = capsys.readouterr().err.strip()
    assert "\n" not in shown and "Traceback" not in shown
    assert shown.startswith(f"error: unexpected {type(error).__name__}: ") and str(log) in shown


def test_the_log_goes_elsewhere_where_the_folder_is_closed(
    command: Callable[[Callable[[], object]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(cli.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cli.Path, "cwd", lambda: tmp_path / "nothing")
    assert command(fails_with(ValueError("x"))) == 1
    (log,) = tmp_path.glob("sparsenmt-error-*.log")
    assert str(log) in capsys.readouterr().err


def test_the_log_goes_elsewhere_where_the_folder_is_gone(
    command: Callable[[Callable[[], object]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def gone() -> Path:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(cli.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cli.Path, "cwd", gone)
    assert command(fails_with(ValueError("x"))) == 1
    (log,) = tmp_path.glob("sparsenmt-error-*.log")
    assert str(log) in capsys.readouterr().err


def test_the_codes_of_commands(command: Callable[[Callable[[], object]], int]) -> None:
    assert command(lambda: None) == 0
    assert command(lambda: click.get_current_context().exit(3)) == 3
    assert command(fails_with(click.UsageError("no"))) == 2


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import importlib, sys, types, click; from sparsenmt import cli\n"
        "def body():\n"
        "    for i in range(100000): click.echo('line')\n"
        "module = types.SimpleNamespace(command=click.Command('decode', callback=body))\n"
        "importlib.import_module = lambda name: module\n"
        "sys.argv = ['sparsenmt', 'decode']\n"
        "cli.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=30), errors) == (141, "")


def started(body: str, redirection: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the program with a body of the test's own in place of `decode`, its streams redirected by a shell."""
    code = (
        "import contextlib, importlib, logging, os, sys, types, warnings\n"
        "import click, tqdm; from sparsenmt import cli\nfrom sparsenmt.process import progress\n"
        f"def body():\n{textwrap.indent(body, '    ')}\n"
        "module = types.SimpleNamespace(command=click.Command('decode', callback=body))\n"
        "importlib.import_module = lambda name: module\n"
        "sys.argv = ['sparsenmt', 'decode']\n"
        "cli.main()"
    )
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", code]
    return subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


MESSAGES = """\
progress.notify("a note")
warnings.warn("a warning")
logging.error("an error")
print("a line", file=sys.stderr, flush=True)
for _ in tqdm.tqdm(range(3), mininterval=0): pass
with open("opened", "w"), contextlib.suppress(OSError):
    click.echo("another line", err=True)
    os.write(2, b"a line of a library")
click.echo("done")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_messages_that_cannot_be_printed_end_nothing(redirection: str, tmp_path: Path) -> None:
    body = MESSAGES.replace('"opened"', repr(str(tmp_path / "opened")))
    done = started(body, redirection)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert (tmp_path / "opened").read_bytes() == b"", "a message got into a file that took the descriptor"


def test_a_reader_of_messages_that_goes_away_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "sparsenmt", "trian"], stderr=writing, stdout=subprocess.PIPE, cwd=ROOT, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_is_lost_is_an_error(redirection: str, reason: str, unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = started("click.echo('42')", redirection, env=environment)
    assert done.returncode == 2
    first, hint, *rest = done.stderr.split("\n")
    assert first == f"error: standard output: cannot be written: {reason}"
    assert hint.startswith("  Send it to another place") and rest == [""]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_help_that_is_lost_is_an_error() -> None:
    shell = ["sh", "-c", 'exec "$@" >/dev/full', "sh", sys.executable, "-m", "sparsenmt", "--help"]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output: cannot be written: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_gets_everything(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = started("os.set_blocking(1, False); click.echo('x' * 1_000_000)", "", env=environment)
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 1_000_001, "")


def test_an_error_after_which_the_same_command_resumes(
    command: Callable[[Callable[[], object]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    error = UserError("has ended", where="process 1", hint="Look there.", resumable=True)
    assert command(fails_with(error)) == 2
    assert capsys.readouterr().err == ("error: process 1: has ended\n  Look there.\n  Resume with: sparsenmt train\n")


def test_failures_in_one_second_have_a_report_each(
    command: Callable[[Callable[[], object]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [command(fails_with(RuntimeError(str(number)))) for number in range(4)] == [1] * 4
    assert len(list(tmp_path.glob("sparsenmt-error-*.log"))) == 4
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-3", "abc", "1e9", "2,0", "99999999999"])
def test_a_wrong_number_of_threads_is_refused(value: str) -> None:
    """OpenMP would ignore it, and take all cores."""
    environment = {**os.environ, "OMP_NUM_THREADS": value}
    command = [sys.executable, "-m", "sparsenmt", "doctor"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 2 and not found.stdout
    assert found.stderr.startswith(f"error: OMP_NUM_THREADS: the environment variable is '{value}', not a whole number")
    assert "libgomp" not in found.stderr


@pytest.mark.parametrize("value", ["", " ", "3", "2,1"])
def test_numbers_of_threads(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    check_thread_variable()
    assert os.environ.get("OMP_NUM_THREADS") == (value if value.strip() else None)
