"""Small files of settings, hashes of files, and directories that appear only when they are complete."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError

_BLOCK = 1 << 20


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys, so that equal values give equal bytes."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: it is missing or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError("no such file", where=str(path), hint="The directory is incomplete: make it again.") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise UserError(f"not valid JSON: {error}", where=str(path), hint="Make the directory again.") from None


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """What differs between two nested settings: ``a.b is 1 instead of 2`` with the new value first."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]
        return [line for name, a, b in pairs for line in differences(a, b, f"{key}.{name}" if key else str(name))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in differences(a, b, f"{key}[{i}]")
        ]
    return [] if old == new else [f"{key} is {json.dumps(new)} instead of {json.dumps(old)}"]


def make_readable(path: Path) -> None:
    """Give a file the permissions of any other: some libraries write files that only their owner may read."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


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


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A new directory that takes the place of ``directory`` when the block ends without an exception.

    Until then everything is written into a sibling, which an exception removes again.

    Raises:
        UserError: the place cannot be written.
    """
    partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
    old = directory.with_name(f".{directory.name}.old-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror}", where=str(directory)) from None
    try:
        yield partial
        if directory.exists():
            directory.rename(old)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
