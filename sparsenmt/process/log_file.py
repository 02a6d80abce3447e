"""The log file of a command: its messages as plain lines, each with the time."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from sparsenmt.errors import UserError, printable

OPTION = "--log-file"
_STAMP = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d ")
_LENGTH = 26  # bytes, of a stamp


class LogFile:
    """Appends lines to a file, each at once. Those that cannot be written are lost: they must not end hours of work.

    Raises:
        UserError: the file cannot be opened, or holds something else than such lines.
    """

    def __init__(self, path: Path) -> None:
        self._cut = not _ends_with_line(path)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise _unwritable(path, error) from None
        if _is_standard_stream(self._descriptor):
            self.close()
            raise UserError(
                f"standard output or standard error goes to {path} already",
                where=OPTION,
                hint="Name another file, or leave it out: progress is plain lines where there is no terminal.",
            )

    def write(self, lines: Sequence[str]) -> None:
        """Append lines with the time in front of each, and control characters as escapes."""
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        data = b"".join(f"{stamp} {printable(line)}".encode("utf-8", "backslashreplace") + b"\n" for line in lines)
        data = b"\n" + data if self._cut else data
        with suppress(OSError):
            self._cut = os.write(self._descriptor, data) < len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _is_standard_stream(descriptor: int) -> bool:
    """Return True for the file that standard output or error is written to: each would overwrite the other's lines."""
    own = os.fstat(descriptor)
    if not stat.S_ISREG(own.st_mode):
        return False
    for other in (1, 2):
        with suppress(OSError):
            if os.path.samestat(own, os.fstat(other)):
                return True
    return False


def _ends_with_line(path: Path) -> bool:
    """Return True unless a file ends within a line, as after a full disk; refuse one that is no log."""
    if not path.is_file():
        return True
    try:
        with path.open("rb") as stream:
            if not (beginning := stream.read(_LENGTH)):
                return True
            if not _STAMP.fullmatch(beginning):
                raise UserError(
                    f"{path} exists and is no log of this program",
                    where=OPTION,
                    hint="Name a new file, or the log of an earlier command, which is continued.",
                )
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path} cannot be written: {error.strerror}", where=OPTION, hint="Name a file in a folder of your own."
    )
