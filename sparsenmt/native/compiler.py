"""The C++ compiler: where it is, and its commands, which run side by side and leave no process behind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.errors import printable
from sparsenmt.process.interrupts import Interrupted, listening

COMPILERS = ("c++", "g++", "clang++")
CHOICE = "CXX"
_MOST_SHOWN = 200  # characters of the compiler's message
_MOST_READ = 1 << 16


class CompilerError(Exception):
    """The compiler fails; the text is its first error.

    Args:
        timed_out: True if it was stopped because it took too long.
    """

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        self.timed_out = timed_out
        super().__init__(reason)


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C++: ``("g++",)``, ``("ccache", "g++", "-m64")``."""

    words: tuple[str, ...]

    def identity(self) -> str:
        """The command, with size and time of every program in it: another version is another compiler."""
        parts = [shlex.join(self.words)]
        for word in self.words:
            path = None if word.startswith("-") else shutil.which(word)
            if path is not None:
                status = os.stat(path)
                parts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
        return "\n".join(parts)


def find_compiler() -> Compiler | None:
    """The compiler that CXX names, with arguments as in ``CXX="ccache g++"``, or the first of the usual ones."""
    try:
        chosen = shlex.split(os.environ.get(CHOICE, ""))
    except ValueError:  # an unclosed quotation mark
        return None
    for words in (chosen,) if chosen else ([name] for name in COMPILERS):
        path = shutil.which(words[0])
        if path is not None:
            return Compiler((path, *words[1:]))
    return None


def compile_library(
    compiler: Compiler,
    sources: Sequence[Path],
    options: Sequence[str],
    folder: Path,
    *,
    at_once: int,
    deadline: float,
    link: Sequence[str] = (),
) -> bytes:
    """Compile C++ files and link them; return the bytes of the shared library.

    Args:
        options: of every compilation; ``link``: of the linker's call.
        folder: for temporary files.
        at_once, deadline: see `run_together`.

    Raises:
        CompilerError: the compiler fails or takes too long.
    """
    made, linked = [folder / f"{path.stem}.o" for path in sources], folder / "library.so"
    commands = [
        [*compiler.words, *options, "-c", str(source), "-o", str(to)] for source, to in zip(sources, made, strict=True)
    ]
    run_together(commands, folder, at_once=at_once, deadline=deadline)
    together = [*compiler.words, *link, "-shared", *map(str, made), "-o", str(linked)]
    run_together([together], folder, at_once=1, deadline=deadline)
    return linked.read_bytes()


def run_together(commands: Sequence[Sequence[str]], folder: Path, *, at_once: int, deadline: float) -> None:
    """Run commands side by side; if one fails, or a signal comes, all are stopped.

    The signal is then handled as the caller handles it. Where that only records it, as training does until the end of
    an update, the commands run again: the caller's results do not depend on the signal.

    Args:
        folder: for their temporary files and messages.
        at_once: how many run at the same time.
        deadline: the value of `time.monotonic` at which all are stopped.

    Raises:
        CompilerError: a command fails or takes too long.
        OSError: a command cannot be started.
    """
    while True:
        try:
            with listening():
                return _run_once(commands, _Processes(folder, deadline), at_once)
        except Interrupted as interrupt:
            number = interrupt.number
        signal.raise_signal(number)


def _run_once(commands: Sequence[Sequence[str]], processes: _Processes, at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for done in as_completed([pool.submit(processes.run, command) for command in commands]):
                done.result()
        except BaseException:
            processes.stop()
            raise


class _Processes:
    """Processes that were started, each with its children in a group of its own.

    They are started by other threads than the main one: an interrupt, which is raised there, cannot come between the
    start of a process and its entry in the list.
    """

    def __init__(self, folder: Path, deadline: float) -> None:
        self._folder, self._deadline = folder, deadline
        self._lock, self._stopped = threading.Lock(), False
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, command: Sequence[str]) -> None:
        """Run a command to its end; nothing is started after `stop`."""
        with self._lock:
            if self._stopped:
                return
            log = self._folder / f"{len(self._started)}.log"
            environment = {**os.environ, "TMPDIR": str(self._folder), "LC_ALL": "C"}
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            self._started.append(process)
        try:
            code = process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._stopped = True
            raise CompilerError("the compiler takes too long", timed_out=True) from None
        if code:
            self._stopped = True
            raise CompilerError(_first_error(log, code))

    def stop(self) -> None:
        """Kill every process that still runs, with its children, and start no other one."""
        with self._lock:
            self._stopped = True
            for process in self._started:
                if process.poll() is None:
                    with suppress(ProcessLookupError, PermissionError):  # it has just ended
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _first_error(log: Path, code: int) -> str:
    """The first line that names an error, without folders."""
    with log.open("rb") as stream:
        lines = stream.read(_MOST_READ).decode(errors="replace").split("\n")
    shown = [line.strip() for line in lines if line.strip()]
    first = next((line for line in shown if re.search(r"\berror\b", line, re.IGNORECASE)), shown[-1] if shown else "")
    message = re.sub(r"\S*/", "", first)
    ended = f"signal {-code}" if code < 0 else f"exit status {code}"
    return printable(message[:_MOST_SHOWN]) or f"the compiler ends with {ended}"
