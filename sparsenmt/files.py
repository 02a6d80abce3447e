"""Files that survive: written aside, brought to the disk, renamed; sealed against silent change; locked while in use.

What stands under its name is complete: a process that is killed, or a disk that is full, leaves at most something with
the name that `aside` gives, which the next run removes or, where it knows how, goes on with.
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
_SEAL = "seal"  # key, in a sealed JSON object, of the hash of all others
_TEXT_SEAL = "# sha256 of the lines above: "
_AGAIN = "The directory is incomplete: make it again."


class Damaged(UserError):
    """A file is not what was written: missing, cut, or changed."""


# --- writing -----------------------------------------------------------------------------------------------------


def aside(path: Path) -> Path:
    """The name under which a file or a directory is made before it takes its place."""
    return path.with_name(f".{path.name}.partial")


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Bring a directory and everything in it to the disk."""
    for path in sorted(directory.rglob("*")):
        sync(path)
    sync(directory)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file ``path``, complete and on the disk, if the block ends without an exception.

    Raises:
        OSError: with the name of the file that is wanted.
    """
    partial = aside(path)
    with naming(path):
        try:
            with partial.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            place(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


def place(partial: Path, path: Path) -> None:
    """Give what was made aside, and is on the disk, its name: instead of the file that has it, if there is one."""
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of writing name the file: those of a stream do not by themselves."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def writing(path: str | os.PathLike[str], *, another: str = "place") -> Iterator[None]:
    """What a block cannot write is told as the user's to mend. A pipe that nobody reads any more is passed on.

    Args:
        path: the file that the user wants.
        another: what the user may name instead.

    Raises:
        UserError: it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}",
            where=os.fspath(path),
            hint=f"Free space there, or check its permissions, or name another {another}.",
        ) from None


@contextmanager
def making(directory: str | os.PathLike[str], *, another: str = "place") -> Iterator[None]:
    """`writing`, for a directory that a block makes."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot be made: {error.strerror}",
            where=os.fspath(directory),
            hint=f"Name another {another}, or free this one.",
        ) from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, complete or not at all."""
    with replacing(path) as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, complete or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys, so that equal values give equal bytes."""
    write_text(path, _as_json(value))


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# --- directories -------------------------------------------------------------------------------------------------


def make_directories(directory: Path) -> None:
    """Make a directory and those that it lies in, with their names on the disk."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A new directory that takes the place of ``directory`` when the block ends without an exception.

    Until then everything is written into a sibling, which an exception removes again.

    Raises:
        UserError: the place cannot be written.
    """
    partial = aside(directory)
    try:
        with making(directory):
            recover(directory)
            shutil.rmtree(partial, ignore_errors=True)
            make_directories(partial)
        yield partial
        publish(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def publish(partial: Path, directory: Path) -> None:
    """Bring a directory made aside to the disk, and let it take its place; what stood there goes."""
    sync_tree(partial)
    old = _old(directory)
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    sync(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(directory: Path) -> None:
    """Undo a `publish` that stopped between its two renames, and remove what one that stopped after them left."""
    old = _old(directory)
    if not old.exists():
        return
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(directory)


def has_leftovers(directory: Path) -> bool:
    """Whether something stands beside a directory that was left there when a process that made it was stopped."""
    return aside(directory).exists() or _old(directory).exists()


def _old(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.old")


@contextmanager
def locked(directory: Path, what: str) -> Iterator[None]:
    """Only one process at a time: a lock on an existing directory, which the system takes back when the process ends.

    Args:
        what: what the process does, for the message to the second one.

    Raises:
        UserError: another process has it.
    """
    try:
        import fcntl
    except ImportError:  # no POSIX
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process {what}", where=str(directory), hint="Wait until it ends, or name another directory."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


# --- reading -----------------------------------------------------------------------------------------------------


def read_json(path: Path, *, hint: str = _AGAIN) -> Any:
    """Read a JSON file.

    Args:
        hint: what the user can do if it is damaged.

    Raises:
        UserError: it is missing or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Damaged("no such file", where=str(path), hint=hint) from None
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", where=str(path), hint="Check its permissions and the disk."
        ) from None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not valid JSON: {error}", where=str(path), hint=hint) from None


def changes(old: Any, new: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """What differs between two nested settings: key such as ``a.b[0]``, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]
        return [found for name, a, b in pairs for found in changes(a, b, f"{key}.{name}" if key else str(name))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [found for i, (a, b) in enumerate(zip(old, new, strict=True)) for found in changes(a, b, f"{key}[{i}]")]
    return [] if old == new else [(key, old, new)]


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """What differs between two nested settings: ``a.b is 1 instead of 2`` with the new value first."""
    return [describe_change(*change) for change in changes(old, new, key)]


def describe_change(key: str, old: Any, new: Any) -> str:
    """One of `changes` for people."""
    return f"{key} is {json.dumps(new)} instead of {json.dumps(old)}"


# --- hashes and seals --------------------------------------------------------------------------------------------


def sha256_text(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_file(path: Path, advance: Callable[[int], object] | None = None) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; ``advance`` hears how many bytes were read."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def files_in(directory: Path) -> dict[str, Path]:
    """Every file in a directory, by its path in it; names that begin with a dot are left out."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(directory).as_posix(): path for path in found}


def listing(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of every file in a directory, as `files_in` names them."""
    return {name: entry_of(path) for name, path in files_in(directory).items()}


def entry_of(path: Path, advance: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Size and hash of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path, advance)}


def check_listing(
    directory: Path, recorded: Mapping[str, Any], *, hint: str, advance: Callable[[int], object] | None = None
) -> None:
    """Compare every file of a directory with what `listing` recorded; sizes of all first.

    Raises:
        Damaged: a file is missing, or is not what it was.
    """
    for name, entry in recorded.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise Damaged("the file is missing", where=str(path), hint=hint)
        if size != entry["bytes"]:
            raise Damaged(f"damaged: {size:,} bytes instead of {entry['bytes']:,}", where=str(path), hint=hint)
    for name, entry in recorded.items():
        try:
            digest = sha256_file(directory / name, advance)
        except OSError as error:
            raise Damaged(f"cannot be read: {error.strerror}", where=str(directory / name), hint=hint) from None
        if digest != entry["sha256"]:
            raise Damaged("damaged: its contents changed after it was written", where=str(directory / name), hint=hint)


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object with a hash of itself, complete or not at all."""
    write_json(path, {**value, _SEAL: _seal(value)})


def read_sealed(path: Path, *, hint: str = _AGAIN) -> dict[str, Any]:
    """Read what `write_sealed` wrote.

    Args:
        hint: what the user can do if it is damaged.

    Raises:
        Damaged: it is missing, or is not what was written.
    """
    value = read_json(path, hint=hint)
    if not isinstance(value, dict) or _SEAL not in value:
        raise Damaged("damaged, or not written by this version of the program", where=str(path), hint=hint)
    # A seal says nothing about white space.
    same_bytes = path.read_bytes() == _as_json(value).encode("utf-8", "surrogatepass")
    seal = value.pop(_SEAL)
    if seal != _seal(value) or not same_bytes:
        raise Damaged("damaged: its contents changed after it was written", where=str(path), hint=hint)
    return value


def _seal(value: Mapping[str, Any]) -> str:
    return sha256_text(json.dumps(value, sort_keys=True))


def sealed_text(text: str) -> str:
    """A text (YAML, say) with a last line, a comment, that holds its hash."""
    return f"{text}{_TEXT_SEAL}{sha256_text(text)}\n"


def opened_text(text: str) -> str | None:
    """The text that `sealed_text` sealed; None if it was changed or has no seal."""
    content, mark, seal = text.rpartition(_TEXT_SEAL)
    return content if mark and seal == f"{sha256_text(content)}\n" else None
