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


def unfit(path: Path, message: str, hint: str = COPY_AGAIN) -> UserError:
    """The error of a file of another program that is missing, damaged, or does not fit the others."""
    return UserError(message, where=str(path), hint=hint)


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
        raise unfit(path, f"cannot be read: {error.strerror}") from None
    if not data:
        raise unfit(path, "the file is empty")
    if len(data) > most:
        raise unfit(path, f"the file is larger than {most:,} bytes", BEYOND)
    return data


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; its values are checked by `check_values`.

    Raises:
        UserError: the file is missing, too large, or holds something else.
    """
    if path.exists() and path.stat().st_size > _MOST_JSON:
        raise unfit(path, f"the file is larger than {_MOST_JSON:,} bytes", BEYOND)
    values = read_json(path, hint=COPY_AGAIN)
    if not isinstance(values, dict):
        raise unfit(path, "the file does not hold a JSON object")
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
            raise unfit(path, f"the token {number:,} is no text: {name!r}")


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


class ForeignTensors:
    """Tensors by name, each of which must be taken.

    Args:
        place: the file or directory, for messages.
        description: names what says which tensors there are.
    """

    def __init__(self, tensors: Mapping[str, Tensor], place: Path, description: str) -> None:
        self._tensors, self._place, self._description = tensors, place, description
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def rows(self, name: str) -> int | None:
        """The first size of a tensor, if there is one."""
        found = self._tensors.get(name)
        return None if found is None else int(found.shape[0]) if found.dim() else 0

    def ignore(self, *names: str) -> None:
        """Take tensors that are not used, if there are any."""
        self._taken.update(names)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """The tensor of a name, if there is one; UserError if its shape is another one."""
        found = self._tensors.get(name)
        self._taken.add(name)
        if found is not None and tuple(found.shape) != shape:
            expected = f"{_shape(shape)}, as {self._description} says"
            raise unfit(self._place, f"{name} has the shape {_shape(found.shape)}; expected: {expected}")
        return found

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a name; UserError without it, or if its shape is another one."""
        found = self.get(name, shape)
        if found is None:
            raise unfit(self._place, f"{name} is missing; expected: a tensor of the shape {_shape(shape)}")
        return found

    def check_all_taken(self, hint: str) -> None:
        """Raise UserError for tensors that belong to another architecture."""
        if left := sorted(self._tensors.keys() - self._taken):
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            message = f"{left[0]}{more} belong to no part of the model that {self._description} describes"
            raise UserError(message, where=str(self._place), hint=hint)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"
