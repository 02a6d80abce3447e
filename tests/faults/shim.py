"""The preloaded library of `shim.c`: built with the machine's compiler, armed in a process, and its log."""

from __future__ import annotations

import ctypes
import enum
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
KILLED = -1
"""What the log has instead of an errno where the process was killed in a call."""


class Action(enum.IntEnum):
    """What happens at the chosen call; the same numbers as in `shim.c`."""

    LOG = 0
    KILL = 1
    KILL_AFTER = 2
    TORN = 3
    FAIL = 4
    FULL = 5
    DEAD = 6
    SIGNAL = 7


@dataclass(frozen=True)
class Call:
    """One call that changed a file, or would have."""

    number: int
    name: str
    inode: int
    bytes: int
    """That are to be written; of fsync: the size of the file."""
    error: int
    """0: it succeeded; `KILLED`; else the errno that it returned."""
    path: str
    other: str
    """The second path of a rename, else empty."""


def unavailable() -> str | None:
    """Why faults cannot be injected on this machine; None if they can."""
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return "faults are injected on Linux with the GNU C library only"
    if shutil.which("cc") is None:
        return "there is no C compiler (cc)"
    return None


def build(folder: Path) -> Path:
    """Compile the library into ``folder``."""
    library = folder / "shim.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return library


def arm(root: Path, log: Path, action: Action, number: int, error: int = 0) -> None:
    """In a process that has the library preloaded: count calls under ``root`` from now on, and act at ``number``."""
    library = ctypes.CDLL(None)
    function = library.faults_arm
    function.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    if function(os.fsencode(root), descriptor, int(action), error, number) != 0:
        raise ValueError(f"{root}: the path is too long")


def read_log(log: Path) -> list[Call]:
    """The calls that a process made while it was armed."""
    calls = []
    for line in log.read_bytes().decode("utf-8", "surrogateescape").split("\n")[:-1]:
        number, name, inode, size, error, path, other = line.split("\t")
        calls.append(Call(int(number), name, int(inode), int(size), int(error), path, other))
    return calls


def fast_folder() -> str | None:
    """Where files are in memory, if there is such a place: nothing here has to outlive the machine."""
    folder = "/dev/shm"
    return folder if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 1 << 28 else None
