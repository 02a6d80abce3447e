"""Atomic, durable and checked files: written under a temporary name, flushed to disk, renamed; hashed; locked.

A file or directory that has its final name is complete. A killed process or a full disk leaves at most something under
the name that `partial_path` gives; the next run removes it or, where it can, resumes from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from sparsenmt.errors import UserError

_BLOCK = 1 << 20
_SEAL = "seal"  # key of the hash of all other keys in a sealed JSON object
_TEXT_SEAL = "# sha256 of the lines above: "
_INCOMPLETE = "The directory is incomplete: create it again."


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
    return path.with_name(f".{path.name}.partial")


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

    Raises:
        OSError: with ``path`` as its file name.
    """
    partial = partial_path(path)
    with name_file_in_errors(path):
        try:
            with partial.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            publish_file(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


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


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A new directory that replaces ``directory`` when the block ends without an exception.

    Until then it has a temporary name; an exception removes it.

    Raises:
        UserError: it cannot be created.
    """
    partial = partial_path(directory)
    try:
        with explain_directory_errors(directory):
            recover_directory(directory)
            shutil.rmtree(partial, ignore_errors=True)
            make_directories(partial)
        yield partial
        publish_directory(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def publish_directory(partial: Path, directory: Path) -> None:
    """Flush a temporary directory, and rename it to its final name, replacing any older directory."""
    sync_tree(partial)
    old = _old(directory)
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    sync(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_directory(directory: Path) -> None:
    """Repair an interrupted `publish_directory`: restore or remove the old directory that it left."""
    old = _old(directory)
    if not old.exists():
        return
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(directory)


def has_leftovers(directory: Path) -> bool:
    """True if an interrupted process left a temporary or old version beside a directory."""
    return partial_path(directory).exists() or _old(directory).exists()


def _old(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.old")


@contextmanager
def directory_lock(directory: Path, activity: str, *, wait: bool = False) -> Iterator[None]:
    """Lock an existing directory for this process; the system releases the lock when the process ends.

    Args:
        activity: what the process does, for the error message of a second process.
        wait: True to wait until the other process releases it.

    Raises:
        UserError: another process holds the lock.
    """
    if os.name != "posix":  # where a directory cannot be opened
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        lock(descriptor, f"another process {activity}", directory, another="directory", wait=wait)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, message: str, path: Path, *, another: str, wait: bool = False) -> None:
    """Lock an open file or directory; nothing happens where the system has no locks.

    Raises:
        UserError: another process holds the lock.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(message, where=str(path), hint=f"Wait until it ends, or name another {another}.") from None
    except (ImportError, OSError):  # no POSIX, or a file system without locks
        pass


# --- reading -----------------------------------------------------------------------------------------------------


def read_json(path: Path, *, hint: str = _INCOMPLETE) -> Any:
    """Read a JSON file.

    Args:
        hint: what the user can do about a damaged file.

    Raises:
        UserError: the file is missing, cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DamagedFileError("no such file", where=str(path), hint=hint) from None
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", where=str(path), hint="Check its permissions and the disk."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"not valid JSON: {error}", where=str(path), hint=hint) from None


def changed_values(old: Any, new: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """The differences between two nested settings: key such as ``a.b[0]``, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        values = [(f"{key}.{name}" if key else str(name), old.get(name), new.get(name)) for name in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        values = [(f"{key}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return [] if old == new else [(key, old, new)]
    return [change for inner, a, b in values for change in changed_values(a, b, inner)]


def describe_changes(old: Any, new: Any, key: str = "") -> list[str]:
    """The differences between two nested settings as text: ``a.b is 1 instead of 2``, the new value first."""
    return [describe_change(*change) for change in changed_values(old, new, key)]


def describe_change(key: str, old: Any, new: Any) -> str:
    """One of `changed_values` as text."""
    return f"{key} is {json.dumps(new)} instead of {json.dumps(old)}"


# --- hashes and seals --------------------------------------------------------------------------------------------


def sha256_text(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: Path, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; ``advance`` is called with the number of bytes of each read."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def list_files(directory: Path) -> dict[str, Path]:
    """All files below a directory by relative path; names that begin with a dot are left out."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(directory).as_posix(): path for path in found}


def file_entries(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of every file that `list_files` names."""
    return {name: file_entry(path) for name, path in list_files(directory).items()}


def file_entry(path: Path, advance: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Size and hash of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path, advance)}


def check_file_entries(
    directory: Path, recorded: Mapping[str, Any], *, hint: str, advance: Callable[[int], object] | None = None
) -> None:
    """Compare the files of a directory with what `file_entries` recorded: first all sizes, then the hashes.

    Raises:
        DamagedFileError: a file is missing or has changed.
    """
    for name, entry in recorded.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise DamagedFileError("the file is missing", where=str(path), hint=hint)
        if size != entry["bytes"]:
            raise DamagedFileError(f"damaged: {size:,} bytes instead of {entry['bytes']:,}", where=str(path), hint=hint)
    for name, entry in recorded.items():
        path = directory / name
        try:
            digest = sha256_file(path, advance)
        except OSError as error:
            raise DamagedFileError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from None
        if digest != entry["sha256"]:
            raise changed_file(path, hint)


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its own hash, atomically."""
    write_json(path, {**value, _SEAL: _seal(value)})


def read_sealed(path: Path, *, hint: str = _INCOMPLETE) -> dict[str, Any]:
    """Read and verify an object that `write_sealed` wrote; see `read_json`.

    Raises:
        DamagedFileError: the file is missing or has changed.
    """
    value = read_json(path, hint=hint)
    if not isinstance(value, dict) or _SEAL not in value:
        raise DamagedFileError("damaged, or not written by this version of the program", where=str(path), hint=hint)
    # The seal does not cover white space.
    same_bytes = path.read_bytes() == _as_json(value).encode("utf-8", "surrogatepass")
    seal = value.pop(_SEAL)
    if seal != _seal(value) or not same_bytes:
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
