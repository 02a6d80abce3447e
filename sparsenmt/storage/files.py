"""Atomic, durable and checked files: written under a temporary name, flushed to disk, renamed; hashed; locked.

A file or directory that has its final name is complete. A killed process or a full disk leaves at most something under
the name that `partial_path` gives; the next run removes it or, where it can, resumes from it.

Temporary names can be guessed: a link that has one is never followed, and a file is locked while a process writes it.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify

_BLOCK = 1 << 20
_SEAL = "seal"  # key of the hash of all other keys in a sealed JSON object
_TEXT_SEAL = "# sha256 of the lines above: "
_INCOMPLETE = "The directory is incomplete: create it again."
_LONGEST_NAME = 255  # bytes, of Linux and macOS
_WAIT = 10.0  # seconds, for another process that writes the same file
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


class DamagedFileError(UserError):
    """A file is missing, truncated or changed since it was written."""


def changed_file(path: Path, hint: str) -> DamagedFileError:
    """The error of a file whose hash is not the recorded one."""
    return DamagedFileError("damaged: its contents changed after it was written", where=str(path), hint=hint)


def invalid_file(path: Path, message: str) -> UserError:
    """The error of a file in prepared data or in a model directory that cannot be used."""
    return UserError(message, where=str(path), hint="Restore the directory from a copy, or create it again.")


# --- writing -----------------------------------------------------------------------------------------------------


def partial_path(path: Path) -> Path:
    """The temporary name, beside ``path``, under which a file or a directory is written."""
    return hidden_path(path, "partial")


def hidden_path(path: Path, suffix: str) -> Path:
    """``.NAME.SUFFIX`` beside ``path``; where that is too long, NAME is its beginning and its hash."""
    name = f".{path.name}.{suffix}"
    if len(os.fsencode(name)) > _LONGEST_NAME >= len(os.fsencode(path.name)):
        digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()
        name = f".{path.name[:40]}-{digest[:16]}.{suffix}"
    return path.with_name(name)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Flush a directory and everything in it to disk."""
    for path in sorted(directory.rglob("*")):
        sync(path)
    sync(directory)


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes replace the file ``path``, complete and flushed, if the block ends without an exception.

    A device, such as /dev/null, is not replaced: the bytes are written to it.

    Raises:
        UserError: another process is writing the file, or something else has its temporary name.
        OSError: with ``path`` as its file name.
    """
    partial = partial_path(path)
    with name_file_in_errors(path):
        if path.is_char_device():
            with path.open("wb") as stream:
                yield stream
            return
        try:
            with _create(partial, path) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                if not is_at(stream.fileno(), partial):
                    raise _busy(path)
                publish_file(partial, path)
        except BaseException:
            with suppress(OSError, UserError):
                _remove_leftover(partial)
            raise


def _create(partial: Path, path: Path) -> BinaryIO:
    """Create and lock a temporary file; remove a leftover, and wait for another process that writes ``path``."""
    end = time.monotonic() + _WAIT
    while True:
        try:
            stream: BinaryIO = open(partial, "xb", opener=no_follow)  # noqa: SIM115
        except FileExistsError:
            if not _remove_leftover(partial):
                if time.monotonic() > end:
                    raise _busy(path) from None
                time.sleep(0.01)
            continue
        # Until it is locked, another process may take it for a leftover, and remove it.
        if _try_lock(stream.fileno()) and is_at(stream.fileno(), partial):
            return stream
        stream.close()


def _remove_leftover(partial: Path) -> bool:
    """Remove the temporary file of a process that has ended; False if a process is writing it.

    Raises:
        UserError: it is a link, a directory or another user's file.
    """
    try:
        found = os.lstat(partial)
        check_own_file(found, partial)
        descriptor = os.open(partial, os.O_RDWR | _NO_FOLLOW)
    except FileNotFoundError:
        return True
    try:
        if not _try_lock(descriptor):
            return False
        if is_at(descriptor, partial):
            check_own_file(os.fstat(descriptor), partial)
            partial.unlink()
        return True
    finally:
        os.close(descriptor)


def check_own_file(found: os.stat_result, path: Path) -> None:
    """Raise UserError unless a temporary name belongs to a regular file of this user without hard links."""
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not _is_own(found):
        raise UserError(
            "a temporary file needs this name, but a link, a directory or another user's file has it",
            where=str(path),
            hint="Remove it, or name another place.",
        )


def _is_own(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def is_at(descriptor: int, path: Path) -> bool:
    """True if an open file or directory is the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _busy(path: Path) -> UserError:
    return UserError(
        "another process is writing this file", where=str(path), hint="Wait until it ends, or name another file."
    )


def no_follow(path: str, flags: int) -> int:
    """An opener for `open`; raises UserError for a symbolic link."""
    try:
        return os.open(path, flags | _NO_FOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError("is a symbolic link, which is not followed here", where=path, hint="Remove it.") from None


def publish_file(partial: Path, path: Path) -> None:
    """Rename a flushed temporary file to its final name, replacing any older file."""
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Put the file's name into every OSError of the block; errors of a stream have none."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def explain_write_errors(path: str | os.PathLike[str], *, another: str = "place") -> Iterator[None]:
    """Turn an OSError of the block into a UserError about ``path``; a broken pipe is passed on.

    Args:
        path: the file that the user wants.
        another: what the user may name instead.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        hint = f"Free disk space, check the permissions, or name another {another}."
        raise UserError(f"cannot be written: {error.strerror}", where=os.fspath(path), hint=hint) from None


@contextmanager
def explain_directory_errors(directory: str | os.PathLike[str], *, another: str = "place") -> Iterator[None]:
    """Turn an OSError of a block that creates ``directory`` into a UserError; see `explain_write_errors`."""
    try:
        yield
    except OSError as error:
        hint = f"Name another {another}, or remove what is in the way."
        raise UserError(f"cannot be created: {error.strerror}", where=os.fspath(directory), hint=hint) from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_writer(path) as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys, so that equal values give equal bytes."""
    write_text(path, _as_json(value))


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- directories -------------------------------------------------------------------------------------------------


def make_directories(directory: Path) -> None:
    """Create a directory and its parents, and flush their entries to disk."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def check_absent(directory: Path) -> None:
    """Raise UserError if a file or directory of this name exists."""
    if os.path.lexists(directory):
        raise UserError("the directory exists", where=str(directory), hint="Name another one, or remove it.")


@contextmanager
def locked_partial(directory: Path, activity: str) -> Iterator[Path]:
    """The temporary directory of ``directory``, locked; it may hold what an interrupted process left.

    The lock is held until the block ends, also if the block renames the directory.

    Args:
        activity: what the process does, for the error message of a second process.

    Raises:
        UserError: another process has locked it; or a link, a file or another user's directory has its name.
        OSError: it cannot be created.
    """
    partial = partial_path(directory)
    make_directories(partial.parent)
    try:
        os.mkdir(partial)
        sync(partial.parent)
    except FileExistsError:
        _check_own_directory(partial)
    except BaseException:
        with suppress(OSError):
            partial.rmdir()
        raise
    gone = UserError(
        "another process has just written this directory", where=str(directory), hint="Start the command again."
    )
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(directory_lock(partial, activity))
        except FileNotFoundError:
            raise gone from None
        if descriptor is not None and not is_at(descriptor, partial):
            raise gone
        yield partial


def _check_own_directory(path: Path) -> None:
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or not _is_own(found):
            raise UserError(
                "a temporary directory needs this name, but a link, a file or another user's directory has it",
                where=str(path),
                hint="Remove it, or name another place.",
            )


@contextmanager
def emptied(partial: Path) -> Iterator[None]:
    """Empty the directory of `locked_partial`, and remove it in the end if the block did not rename it."""
    made = os.lstat(partial)
    try:
        for path in partial.iterdir():
            remove_tree(path)
        yield
    finally:
        # If the block renamed it, another process may have made its own under this name.
        with suppress(OSError):
            if os.path.samestat(made, os.lstat(partial)):
                remove_tree(partial)


@contextmanager
def staging_directory(directory: Path, activity: str) -> Iterator[Path]:
    """The temporary directory of `locked_partial`; before, `recover_directory` repairs what a killed process left.

    Raises:
        UserError: it cannot be created, or another process has locked it.
    """
    with ExitStack() as stack:
        with explain_directory_errors(directory):
            partial = stack.enter_context(locked_partial(directory, activity))
        recover_directory(directory)
        yield partial


@contextmanager
def new_directory(directory: Path, source: Path | None = None) -> Iterator[Path]:
    """A directory under a temporary name, which becomes ``directory`` if the block ends without an exception.

    Args:
        source: the directory that it is made from, if any; it must not have a temporary name of the new one.

    Raises:
        UserError: ``directory`` exists, cannot be created, or another process is writing it.
    """
    if source is not None and source.resolve() in (partial_path(directory), old_path(directory)):
        raise UserError(
            "has the name under which the copy would be written", where=str(source), hint="Name another output."
        )
    with staging_directory(directory, "is writing this directory") as partial, emptied(partial):
        check_absent(directory)  # no other process of this program can publish it now
        yield partial
        check_absent(directory)
        publish_directory(partial, directory)


def publish_directory(partial: Path, directory: Path) -> None:
    """Flush a temporary directory, and rename it to its final name, replacing any older directory."""
    sync_tree(partial)
    old = old_path(directory)
    remove_tree(old)
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    sync(directory.parent)
    remove_tree(old)


def recover_directory(directory: Path) -> None:
    """Repair an interrupted `publish_directory`: restore or remove the old directory that it left."""
    old = old_path(directory)
    if old.is_symlink() or directory.exists():
        remove_tree(old)
    elif old.exists():
        old.rename(directory)


def remove_tree(path: Path) -> None:
    """Remove a directory with its contents, a file or a symbolic link, but not its target. Errors are ignored."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def has_leftovers(directory: Path) -> bool:
    """True if an interrupted process left a temporary or old version beside a directory."""
    return os.path.lexists(partial_path(directory)) or os.path.lexists(old_path(directory))


def old_path(directory: Path) -> Path:
    """The name that an older directory has while another one takes its place."""
    return hidden_path(directory, "old")


@contextmanager
def directory_lock(directory: Path, activity: str, *, wait: bool = False) -> Iterator[int | None]:
    """Lock an existing directory for this process; the system releases the lock when the process ends.

    Args:
        activity: what the process does, for the error message of a second process.
        wait: True to wait until the other process releases it.

    Returns:
        the open directory; None where a directory cannot be opened.

    Raises:
        UserError: another process holds the lock.
    """
    if os.name != "posix":
        yield None
        return
    descriptor = os.open(directory, os.O_RDONLY | _FOLDER)
    try:
        lock(descriptor, f"another process {activity}", directory, another="directory", wait=wait)
        yield descriptor
    finally:
        os.close(descriptor)


def lock(descriptor: int, message: str, path: Path, *, another: str, wait: bool = False) -> None:
    """Lock an open file or directory; nothing happens where the system has no locks.

    Raises:
        UserError: another process holds the lock.
    """
    if not _try_lock(descriptor, wait=wait):
        raise UserError(message, where=str(path), hint=f"Wait until it ends, or name another {another}.")


def _try_lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file or directory; False if another process holds the lock."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # no POSIX, or a file system without locks
        pass
    return True


# --- reading -----------------------------------------------------------------------------------------------------


def read_json(path: Path, *, hint: str = _INCOMPLETE) -> Any:
    """Read a JSON file.

    Args:
        hint: what the user can do about a damaged file.

    Raises:
        UserError: the file is missing, cannot be read or is not JSON.
    """
    return _parse_json(_read_bytes(path, hint), path, hint)


def regular_file(path: str, flags: int) -> int:
    """An opener for `open` that refuses pipes and devices, instead of waiting for a writer."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # `open` itself refuses a directory
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe or a device", path)
    return descriptor


def _read_bytes(path: Path, hint: str) -> bytes:
    try:
        with open(path, "rb", opener=regular_file) as stream:
            return stream.read()
    except FileNotFoundError:
        raise DamagedFileError("no such file", where=str(path), hint=hint) from None
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", where=str(path), hint="Check its permissions and the disk."
        ) from None


def _parse_json(data: bytes, path: Path, hint: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"not valid JSON: {error}", where=str(path), hint=hint) from None


_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # UTF-32-LE begins as UTF-16-LE


def without_mark(beginning: bytes, name: str) -> bytes:
    """The beginning of a UTF-8 text without its byte order mark, which is no part of the text; a note tells of it.

    Raises:
        UserError: the mark is that of UTF-16 or UTF-32.
    """
    if beginning.startswith(_OTHER_MARKS):
        hint = "Recode it, for instance with `iconv -f UTF-16 -t UTF-8`."
        raise UserError("the text is UTF-16 or UTF-32 by its byte order mark, not UTF-8", where=name, hint=hint)
    if not beginning.startswith(codecs.BOM_UTF8):
        return beginning
    notify(f"{name}: begins with a byte order mark, which is not read as text", once=True)
    return beginning.removeprefix(codecs.BOM_UTF8)


# --- hashes and seals --------------------------------------------------------------------------------------------


def sha256_text(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: Path, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; ``advance`` is called with the number of bytes of each read."""
    digest = hashlib.sha256()
    with open(path, "rb", opener=regular_file) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its own hash, atomically."""
    write_json(path, {**value, _SEAL: _seal(value)})


def read_sealed(path: Path, *, hint: str = _INCOMPLETE) -> dict[str, Any]:
    """Read and verify an object that `write_sealed` wrote; see `read_json`.

    Raises:
        DamagedFileError: the file is missing or has changed.
    """
    data = _read_bytes(path, hint)
    value = _parse_json(data, path, hint)
    if not isinstance(value, dict) or _SEAL not in value:
        raise DamagedFileError("damaged, or not written by this version of the program", where=str(path), hint=hint)
    try:
        # The seal does not cover white space.
        same_bytes = data == _as_json(value).encode("utf-8", "surrogatepass")
    except RecursionError:
        same_bytes = False
    seal = value.pop(_SEAL)
    if not same_bytes or seal != _seal(value):
        raise changed_file(path, hint)
    return value


def _seal(value: Mapping[str, Any]) -> str:
    return sha256_text(json.dumps(value, sort_keys=True))


def seal_text(text: str) -> str:
    """A text such as YAML with its hash in a comment as the last line."""
    return f"{text}{_TEXT_SEAL}{sha256_text(text)}\n"


def unseal_text(text: str) -> str | None:
    """The text without the seal of `seal_text`; None if it has no seal or was changed."""
    content, mark, seal = text.rpartition(_TEXT_SEAL)
    return content if mark and seal == f"{sha256_text(content)}\n" else None
