"""Records: JSON objects that this program wrote, with the names and types that their readers rely on.

A seal proves that a file was not damaged, not that this program wrote it: whoever makes a file can seal it. So the
types are checked before a value is used, and names of files before they are joined to a directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from sparsenmt.storage.files import DamagedFileError, changed_file, sha256_file, write_bytes

T = TypeVar("T")
Count = Annotated[int, Field(ge=0)]

_LONGEST_PART, _LONGEST_NAME = 255, 1024  # bytes
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def typed(value: Any, kind: type[T], path: Path, *, hint: str) -> T:
    """Return a value that was read from JSON as an object of a type, such as a dataclass with fields of its keys.

    Nothing is converted, keys without a field are ignored.

    Args:
        path: the file, for the error.

    Raises:
        DamagedFileError: a key is missing, or a value has another type.
    """
    try:
        found: T = _adapter(kind).validate_json(json.dumps(value), strict=True)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ()
        key = ".".join(map(str, first))[:200] or "a value"
        raise DamagedFileError(
            f"damaged, or not written by this program: {key} is missing or of another type", where=str(path), hint=hint
        ) from None
    return found


@dataclass(frozen=True)
class _FileList:
    files: dict[str, _FileEntry]


@dataclass(frozen=True)
class _FileEntry:
    bytes: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def file_entries_of(record: Mapping[str, Any], path: Path, *, names: str, hint: str) -> dict[str, dict[str, Any]]:
    """Return ``files`` of a record: relative path -> size and hash, as `file_entries` made them.

    Args:
        path: the file of the record, for the error.
        names: pattern of the names that may occur.

    Raises:
        DamagedFileError: it is something else, or a name leads elsewhere.
    """
    typed(record, _FileList, path, hint=hint)
    files: dict[str, dict[str, Any]] = record["files"]
    for name in files:
        if not is_plain_name(name) or not re.fullmatch(names, name):
            raise DamagedFileError(
                f"names a file that does not belong to the directory: {name[:200]!r}", where=str(path), hint=hint
            )
    return files


def is_plain_name(name: str) -> bool:
    """True for a relative path of plain names: joined to a directory, it leads to a file below it on every system."""
    try:
        parts = [os.fsencode(part) for part in name.split("/")]
    except UnicodeError:
        return False
    return len(parts) + sum(map(len, parts)) <= _LONGEST_NAME and all(
        0 < len(part) <= _LONGEST_PART and part[:1] not in b".~" and not set(part) & set(b"\\:\0") for part in parts
    )


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
    directory: Path,
    recorded: Mapping[str, Mapping[str, Any]],
    *,
    hint: str,
    advance: Callable[[int], object] | None = None,
    links: bool = False,
) -> None:
    """Compare the files of a directory with what `file_entries` recorded: first all sizes, then the hashes.

    Args:
        recorded: as `file_entries_of` returns it.
        links: True to allow symbolic links inside the directory.

    Raises:
        DamagedFileError: a file is missing or has changed.
    """
    for name, entry in recorded.items():
        path = directory / name
        if not links:
            check_no_links(directory, name, hint)
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


def copy_files(source: Path, target: Path, recorded: Mapping[str, Mapping[str, Any]], *, hint: str) -> None:
    """Copy files that `file_entries` recorded into a new directory; the bytes that are written are those checked.

    Args:
        recorded: as `file_entries_of` returns it.

    Raises:
        DamagedFileError: a file is missing or has changed, or is reached through a symbolic link.
    """
    for name, entry in recorded.items():
        check_no_links(source, name, hint)
        try:
            data = (source / name).read_bytes()
        except OSError as error:
            raise DamagedFileError(f"cannot be read: {error.strerror}", where=str(source / name), hint=hint) from None
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise changed_file(source / name, hint)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target / name, data)


def check_no_links(directory: Path, name: str, hint: str) -> None:
    """Check that neither a file nor a folder between it and its directory is a symbolic link."""
    path = directory
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise DamagedFileError("is a symbolic link, which is not followed here", where=str(path), hint=hint)
