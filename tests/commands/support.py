"""What the tests of commands share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.native.kernels import kernels

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of the output; every one must be ended by a line end."""
        text = self.out.decode("utf-8")
        assert not text or text.endswith("\n")
        return text.split("\n")[:-1]


Run = Callable[..., Result]


def program(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Start the program in a process of its own, which has no kernels to build: that would be said on stderr."""
    kernels()
    return python("-m", "sparsenmt", *arguments, **options)


def python(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Start Python in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, env=environment, **{**streams, **options})  # type: ignore[call-overload,no-any-return]
