"""The version of a directory, by which a reader of several files notices that they were replaced meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sparsenmt.errors import UserError

_ATTEMPTS = 5  # readings of a directory that is replaced again and again

T = TypeVar("T")
Version = list[tuple[str, ...] | tuple[int, ...]]


def read_consistently(directory: Path, parts: Sequence[str], read: Callable[[Path], T]) -> T:
    """Read several files of a directory so that all are of one version of it, even if it is replaced at the same time.

    The reading is repeated if the directory or one of the files was replaced or written meanwhile: then their inodes,
    sizes or times differ. Symbolic links in the directory's path are followed only once, before the first reading.

    Args:
        parts: names of the files and folders that ``read`` reads.
        read: is called with the directory.

    Raises:
        UserError: that of ``read``; or the directory is replaced again and again.
    """
    real = Path(os.path.realpath(directory))
    if real == Path(os.path.abspath(directory)):
        real = directory  # messages name the path that the user gave
    for _ in range(_ATTEMPTS):
        before = directory_version(real, parts)
        try:
            found = read(real)
        except Exception:  # of any kind: a mixture of two versions may fail in any way
            if directory_version(real, parts) == before:
                raise
            continue
        if directory_version(real, parts) == before:
            return found
    raise _replaced(directory)


def _replaced(directory: Path) -> UserError:
    return UserError(
        "the directory is being replaced while it is read",
        where=str(directory),
        hint="Start the command again when no other process writes to it.",
    )


def check_version(directory: Path, parts: Sequence[str], version: Version) -> None:
    """Raise UserError if a directory is another one, or was changed, since `directory_version` returned ``version``."""
    if directory_version(directory, parts) != version:
        raise _replaced(directory)


def directory_version(directory: Path, parts: Sequence[str]) -> Version:
    """Names, inodes, sizes and times of a directory and of everything in some of its files and folders."""
    inner = (path for part in parts for path in (directory / part, *sorted((directory / part).rglob("*"))))
    found: Version = []
    for path in (directory, *inner):
        try:
            each = path.stat()
        except OSError:
            continue
        # ctime too: renaming a directory, or giving a file its old time again, changes it.
        found += [(str(path),), (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)]
    return found
