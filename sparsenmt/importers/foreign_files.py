"""The door for files of other programs: bounded contents, and values whose types and sizes are checked before use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.recipe.errors import show
from sparsenmt.recipe.yaml_tree import parse_plain
from sparsenmt.storage.files import read_json, regular_file, without_mark

COPY_AGAIN = "Copy all files of the model again, from where it comes from."
BEYOND = "If the original says so, too, this program cannot import the model; otherwise copy its files again."
_MOST_TEXT = 1 << 22  # bytes of settings
_MOST_JSON = 1 << 28  # of a tokenizer with a million tokens, and more


def read_content(path: Path, most: int) -> bytes:
    """Read a file.

    Args:
        most: bytes that it may have.

    Raises:
        UserError: it is missing, cannot be read, is empty or larger.
    """
    try:
        with open(path, "rb", opener=regular_file) as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), hint=COPY_AGAIN) from None
    if not data:
        raise UserError("the file is empty", where=str(path), hint=COPY_AGAIN)
    if len(data) > most:
        raise UserError(f"the file is larger than {most:,} bytes", where=str(path), hint=BEYOND)
    return data


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; its values are checked by `check_values`.

    Raises:
        UserError: the file is missing, too large, or holds something else.
    """
    if path.exists() and path.stat().st_size > _MOST_JSON:
        raise UserError(f"the file is larger than {_MOST_JSON:,} bytes", where=str(path), hint=BEYOND)
    values = read_json(path, hint=COPY_AGAIN)
    if not isinstance(values, dict):
        raise UserError("the file does not hold a JSON object", where=str(path), hint=COPY_AGAIN)
    return values


def read_settings(text: bytes, path: Path) -> dict[str, Any]:
    """Read settings in YAML: plain values, without tags, and no more of them than a recipe may have.

    Args:
        path: where the text comes from, for messages.

    Raises:
        UserError: it is something else.
    """
    try:
        if len(text) > _MOST_TEXT:
            raise ValueError(f"more than {_MOST_TEXT:,} bytes")
        values = parse_plain(without_mark(text, str(path)).decode(), name=str(path))
        if not isinstance(values, dict):
            raise ValueError("no keys with values")
    except (UserError, ValueError) as error:
        reason = error.message if isinstance(error, UserError) else str(error)
        where = error.where if isinstance(error, UserError) else str(path)
        raise UserError(f"not settings in YAML: {reason}", where=where, hint=COPY_AGAIN) from None
    return values


@dataclass(frozen=True)
class ValueKind:
    """The values that a key may have.

    Args:
        expected: in words, for messages.
        fits: returns True of such a value.
    """

    expected: str
    fits: Callable[[Any], bool]

    def or_list(self) -> ValueKind:
        """Allow a list of such values, too."""
        return ValueKind(
            f"{self.expected}, or a list of them",
            lambda value: self.fits(value) or (isinstance(value, list) and all(map(self.fits, value))),
        )


def whole_number(least: int, most: int) -> ValueKind:
    """A whole number of this range."""
    return ValueKind(
        f"a whole number from {least:,} to {most:,}", lambda value: type(value) is int and least <= value <= most
    )


def real_number(least: float, most: float) -> ValueKind:
    """A finite number of this range."""
    return ValueKind(
        f"a number from {least:g} to {most:g}", lambda value: type(value) in (int, float) and least <= value <= most
    )


SWITCH = ValueKind("true or false", lambda value: isinstance(value, bool))
TEXT = ValueKind("a text", lambda value: isinstance(value, str) and is_text(value))


def check_values(values: Mapping[str, Any], kinds: Mapping[str, ValueKind], path: Path) -> None:
    """Check the values that a file gives.

    Args:
        kinds: by key; a key may be missing or null.

    Raises:
        UserError: a value is of another kind.
    """
    for key, kind in kinds.items():
        value = values.get(key)
        if value is not None and not kind.fits(value):
            raise UserError(f"{key} is {show(value)}; expected: {kind.expected}", where=f"{path}: {key}", hint=BEYOND)


def is_text(value: str) -> bool:
    """Return True if a text has no half characters (surrogates), which cannot be written."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_tokens(names: Iterable[str], path: Path) -> None:
    """Raise UserError unless all tokens are texts that can be written."""
    for number, name in enumerate(names):
        if not is_text(name):
            raise UserError(f"the token {number:,} is no text: {name!r}", where=str(path), hint=COPY_AGAIN)


def check_weights(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise UserError unless all values are finite floating-point numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise UserError(
                f"{name} is of the type {str(tensor.dtype).removeprefix('torch.')}, and weights are floating-point",
                where=str(path),
                hint="Import the model as it was before it was quantised.",
            )
        # The sum is finite for all but absurd values, and takes no memory.
        if not math.isfinite(float(tensor.sum())) and not bool(tensor.isfinite().all()):
            raise UserError(
                f"{name} has values that are not finite numbers",
                where=str(path),
                hint="Copy the weights again; if they are the same, the training of the model had failed.",
            )
