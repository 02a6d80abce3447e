"""A complaint about keys of a recipe that do not fit one another."""

from __future__ import annotations

from typing import NamedTuple

from sparsenmt.recipe.errors import Complaint
from sparsenmt.recipe.key_paths import KeyPath, key_path


class Contradiction(NamedTuple):
    """A complaint about several keys; it is shown at the first of them that the recipe contains."""

    keys: tuple[KeyPath, ...]
    complaint: Complaint


def named_keys(*dotted: str) -> tuple[KeyPath, ...]:
    """Return the places of keys that are written with dots."""
    return tuple(map(key_path, dotted))
