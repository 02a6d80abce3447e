"""The private folder of compiled kernels and of records about them: files of this user alone.

Its files are loaded into the process. So a file is used only if no other user can have put it there or can change it:
the folder has mode 0700, folder and files belong to the effective user, and no symbolic link is followed. The parent
folders, in which the folder could be exchanged for another, must belong to the user or to root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify
from sparsenmt.storage.files import DamagedFileError, read_sealed, sync, write_bytes, write_sealed

_PRIVATE = 0o700
_FILE = 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_LIBRARY_BYTES = 1 << 22
_MOST_BYTES = 1 << 26  # of a file
_CHOOSE_ANOTHER = "Name a folder of your own in XDG_CACHE_HOME, or turn the kernels off with SPARSENMT_NATIVE=0."

_said: set[str] = set()


def say_once(message: str) -> None:
    """Print a warning on stderr, unless this process has printed it before."""
    if message not in _said:
        _said.add(message)
        notify(f"warning: {message}")


def place() -> Path:
    """The path of the folder, which may not exist.

    Raises:
        UserError: the user has no home directory.
    """
    return _cache_home() / "sparsenmt" / "kernels"


def folder() -> Path:
    """The folder that is written, which is created if it is missing.

    Where the user's cache is read-only, it is a folder among temporary files: otherwise every command would build the
    kernels again.

    Raises:
        UserError: another user could write to it or replace it.
        OSError: it cannot be created.
    """
    path = place()
    with suppress(OSError):
        _create(path)
        if os.access(path, os.W_OK | os.X_OK):
            return path
    path = _temporary_place()
    _create(path)
    return path


def read_record(name: str) -> dict[str, Any] | None:
    """Read what `write_record` wrote under a bare name; None if it is missing, damaged or not safe to use."""
    try:
        path = _checked_file(name)
        return None if path is None else read_sealed(path)
    except DamagedFileError:
        return None
    except UserError as refused:
        say_once(f"{refused}")
    except OSError:
        pass
    return None


def write_record(name: str, value: Mapping[str, Any]) -> bool:
    """Keep a JSON object under a bare name; False if the folder cannot be written."""
    try:
        _check_name(name)
        path = folder() / name
        write_sealed(path, value)
        path.chmod(_FILE)
    except (OSError, UserError):
        return False
    return True


def read_file(name: str) -> tuple[Path, bytes] | None:
    """The path and the bytes of a file under a bare name; None if it is missing.

    Raises:
        UserError: another user could have changed it.
        OSError: it cannot be read.
    """
    path = _checked_file(name)
    return None if path is None else (path, path.read_bytes())


def write_file(name: str, data: bytes) -> Path:
    """Write a file under a bare name, atomically.

    Raises:
        UserError: another user could write to the folder or replace it.
        OSError: the file cannot be written.
    """
    _check_name(name)
    path = folder() / name
    write_bytes(path, data)
    path.chmod(_FILE)
    return path


def check_space() -> None:
    """Check that the disk has space for a library, before time is spent on building one.

    Raises:
        OSError: the disk or the quota is full.
    """
    write_file("space", bytes(_LIBRARY_BYTES)).unlink()


def _cache_home() -> Path:
    """The user's cache directory; a relative XDG_CACHE_HOME is ignored, as its specification says."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise UserError("there is no home directory for a cache of kernels", where="HOME", hint=_CHOOSE_ANOTHER)
    return home / ".cache"


def _temporary_place() -> Path:
    named = Path(os.environ.get("TMPDIR", ""))
    return (named if named.is_absolute() else Path("/tmp")) / f"sparsenmt-{os.geteuid()}" / "kernels"


def _create(path: Path) -> None:
    home = path.parent.parent
    for parent in (home.parent, home):
        if parent.exists():
            _check_parent(parent)
    home.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    for each in (path.parent, path):
        with suppress(FileExistsError):
            each.mkdir(mode=_PRIVATE)
            sync(each.parent)
        _check_folder(each)


def _check_parent(path: Path) -> None:
    """Raise UserError for a folder in which others could replace the cache; the user's own group is trusted."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise UserError("kernels are not kept here: it is not a folder", where=str(path), hint=_CHOOSE_ANOTHER)
    shared = stat.S_IWOTH if status.st_gid == os.getegid() else _OTHERS_WRITE
    if status.st_uid not in (os.geteuid(), 0):
        raise UserError(
            f"kernels are not kept here: the folder belongs to user {status.st_uid}",
            where=str(path),
            hint=_CHOOSE_ANOTHER,
        )
    if status.st_mode & shared and not status.st_mode & stat.S_ISVTX:
        raise UserError(
            "kernels are not kept here: other users may write to the folder", where=str(path), hint=_CHOOSE_ANOTHER
        )


def _check_folder(path: Path) -> None:
    status = path.lstat()
    _check_owner(path, status)
    if not stat.S_ISDIR(status.st_mode):
        raise UserError("kernels are not kept here: it is not a folder", where=str(path), hint=_CHOOSE_ANOTHER)


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Raise UserError for a file or folder that is not the user's alone."""
    if stat.S_ISLNK(status.st_mode):
        raise UserError("not used for kernels: it is a symlink", where=str(path), hint="Remove it.")
    if status.st_uid != os.geteuid():
        hint = f"Remove it. {_CHOOSE_ANOTHER}"
        raise UserError(f"not used for kernels: it belongs to user {status.st_uid}", where=str(path), hint=hint)
    if status.st_mode & _OTHERS_WRITE:
        hint = f"Remove it if another user may have written to it. If not, run: chmod go-w {path}"
        raise UserError("not used for kernels: other users may write to it", where=str(path), hint=hint)


def _check_name(name: str) -> None:
    if not name or name.startswith(".") or name != os.path.basename(name):
        raise UserError(
            f"not used for kernels: {name!r} is not a bare file name", where=str(place()), hint="Remove it."
        )


def _checked_file(name: str) -> Path | None:
    """The path of a file that is the user's alone; None if it is missing."""
    _check_name(name)
    return next((path for each in _folders() if _is_usable(path := each / name)), None)


def _folders() -> Iterator[Path]:
    """The folders that are read: the one that is written, and the user's cache if that is read-only."""
    written, path = folder(), place()
    yield written
    if path != written and path.exists():
        _check_folder(path.parent)
        _check_folder(path)
        yield path


def _is_usable(path: Path) -> bool:
    """Return False if there is no such file.

    Raises:
        UserError: it is not the user's alone.
    """
    status = None
    while status is None or status.st_nlink == 0:  # another process has replaced it since it was opened
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # opening a pipe does not wait
        except FileNotFoundError:
            return False
        except OSError:
            _check_owner(path, path.lstat())  # a symlink cannot be opened
            raise
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    _check_owner(path, status)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > _MOST_BYTES:
        raise UserError(
            "not used for kernels: it is not a regular file, has hard links, or is too large",
            where=str(path),
            hint="Remove it.",
        )
    return True
