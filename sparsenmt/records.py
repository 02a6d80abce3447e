"""Records: JSON objects that this program wrote, with the names and types that their readers rely on.

A seal proves that a file was not damaged, not that this program wrote it: whoever makes a file can seal it. So the
types are checked before a value is used, and names of files before they are joined to a directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from sparsenmt.files import DamagedFileError

T = TypeVar("T")
Count = Annotated[int, Field(ge=0)]

_HASH = re.compile("[0-9a-f]{64}")
_LONGEST_PART, _LONGEST_NAME = 255, 1024  # bytes


def typed(value: Any, kind: type[T], path: Path, *, hint: str) -> T:
    """Return a value that was read from JSON as an object of a type, such as a dataclass with fields of its keys.

    Nothing is converted, keys without a field are ignored.

    Args:
        path: the file, for the error.

    Raises:
        DamagedFileError: a key is missing, or a value has another type.
    """
    try:
        return _adapter(kind).validate_json(json.dumps(value), strict=True)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ()
        key = ".".join(map(str, first)) or "its contents"
        raise DamagedFileError(
            f"damaged, or not written by this program: {key} is missing or of another type", where=str(path), hint=hint
        ) from None


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def file_entries_of(record: Mapping[str, Any], path: Path, *, names: str, hint: str) -> dict[str, dict[str, Any]]:
    """Return ``files`` of a record: relative path -> size and hash, as `files.file_entries` made them.

    Args:
        path: the file of the record, for the error.
        names: pattern of the names that may occur.

    Raises:
        DamagedFileError: it is something else, or a name leads elsewhere.
    """
    files = record.get("files")
    if not isinstance(files, dict):
        raise DamagedFileError(
            "damaged, or not written by this program: files is missing or of another type", where=str(path), hint=hint
        )
    for name, entry in files.items():
        if not is_plain_name(name) or not re.fullmatch(names, name):
            raise DamagedFileError(
                f"names a file that does not belong to the directory: {name[:200]!r}", where=str(path), hint=hint
            )
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or size < 0 or not isinstance(digest, str) or not _HASH.fullmatch(digest):
            raise DamagedFileError(
                f"damaged, or not written by this program: files has no size and hash of {name!r}",
                where=str(path),
                hint=hint,
            )
    return files


def is_plain_name(name: str) -> bool:
    """True for a relative path of plain names: joined to a directory, it leads to a file below it on every system."""
    try:
        parts = [os.fsencode(part) for part in name.split("/")]
    except UnicodeError:
        return False
    return sum(map(len, parts)) < _LONGEST_NAME and all(
        0 < len(part) <= _LONGEST_PART and part[:1] not in b".~" and not set(part) & set(b"\\:\0") for part in parts
    )
