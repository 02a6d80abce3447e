"""A fork server: one process imports everything once, and forks a child for every command line that is to be run.

The process has the library of `shim.c` preloaded and never computes anything itself, so that its children are like
freshly started programs, without the seconds that imports take.

Requests and answers are lines of JSON on standard input and output: see `Request` and `Result`.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.faults import shim
from tests.faults.shim import Action, Call

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 600
"""A command that takes longer hangs, and is killed. Long: a machine with a busy disk has stood still for minutes."""


@dataclass(frozen=True)
class Request:
    """One run of the command line."""

    arguments: list[str]
    folder: str
    """Working directory."""
    root: str
    """Only calls on files in this directory count."""
    output: str
    """Files with this path and the endings .out, .err, .log and .modules are written."""
    action: int = Action.LOG
    number: int = 0
    error: int = 0
    function: str = ""
    """``module:name`` of a function to call with the arguments instead of the program's command line."""


@dataclass(frozen=True)
class Result:
    """How a run ended, and what it did."""

    code: int
    """Exit code; negative: the signal that killed it."""
    out: str
    err: str
    calls: list[Call]


class Server:
    """The client's side: starts the server, and runs command lines in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        environment = {
            **os.environ,
            "LD_PRELOAD": str(shim.build(folder)),
            "OMP_NUM_THREADS": "1",
            "TQDM_DISABLE": "1",
            "PATH": str(folder),  # without git: what is written must not change with a commit
            "SPARSENMT_PLUGINS": "tests.faults.plugin",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)

    def run(
        self,
        arguments: list[str],
        *,
        folder: Path,
        root: Path,
        action: Action = Action.LOG,
        number: int = 0,
        error: int = 0,
        function: str = "",
    ) -> Result:
        """Run a command line in ``folder``, with a fault at the call ``number`` under ``root``."""
        output = self._folder / "run"
        request = Request(arguments, str(folder), str(root), str(output), action, number, error, function)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(request)).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the fork server ended")
        status = int(answer)
        out, err = (Path(f"{output}.{end}").read_bytes().decode("utf-8", "replace") for end in ("out", "err"))
        return Result(os.waitstatus_to_exitcode(status), out, err, shim.read_log(Path(f"{output}.log")))


def serve() -> None:
    """Read requests, and answer each with the status of the child that has done it."""
    import sparsenmt.cli

    for name in sparsenmt.cli.COMMANDS.values():
        importlib.import_module(f"sparsenmt.commands.{name.module}")
    for line in sys.stdin.buffer:
        request = Request(**json.loads(line))
        gc.freeze()
        child = os.fork()
        if child == 0:
            _run(request)
        _, status = os.waitpid(child, 0)
        _import_what_it_imported(Path(f"{request.output}.modules"))
        sys.stdout.buffer.write(f"{status}\n".encode())
        sys.stdout.buffer.flush()


def _run(request: Request) -> None:
    """In the child: run the command line as the program would; never returns."""
    signal.alarm(SECONDS)
    for descriptor, path, flags in (
        (0, "/dev/null", os.O_RDONLY),
        (1, f"{request.output}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, f"{request.output}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(request.folder)
    before = set(sys.modules)
    code = 70
    try:
        if request.function:
            module, name = request.function.split(":")
            function = getattr(importlib.import_module(module), name)
        else:
            function = _program
        shim.arm(
            Path(request.root), Path(f"{request.output}.log"), Action(request.action), request.number, request.error
        )
        code = function(request.arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        Path(f"{request.output}.modules").write_text("\n".join(sorted(set(sys.modules) - before)))
        os._exit(code)


def _program(arguments: list[str]) -> int:
    """The program as a shell starts it."""
    from sparsenmt.cli import main

    sys.argv = ["sparsenmt", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _import_what_it_imported(path: Path) -> None:
    """So that the next child need not: imports inside functions take most of a short command's time."""
    if not path.exists():
        return
    for name in path.read_text().split():
        try:
            importlib.import_module(name)
        except Exception:
            continue
    path.unlink()


if __name__ == "__main__":
    serve()
