"""Parameters that are not trained: the parts of a model that ``training.freeze`` names.

A frozen parameter has no gradient and no optimizer state, is in no norm, and is in every checkpoint as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from sparsenmt.errors import UserError


def in_part(name: str, part: str) -> bool:
    """Return True if a parameter is the part itself, or inside it; ``*`` and ``?`` stand for characters."""
    return fnmatchcase(name, part) or fnmatchcase(name, f"{part}.*")


def freeze(model: nn.Module, parts: Sequence[str]) -> list[str]:
    """Exclude the parameters of some parts from training.

    Args:
        parts: names as in the weights file, such as ``encoder``, ``decoder.layers.0`` or ``*.feed_forward``.

    Returns:
        the names of the frozen parameters.

    Raises:
        UserError: a part has no parameters in this model, or nothing is left to train.
    """
    named = dict(model.named_parameters())
    frozen: dict[str, None] = {}
    for number, part in enumerate(parts):
        found = [name for name in named if in_part(name, part)]
        if not found:
            there = ", ".join(dict.fromkeys(name.partition(".")[0] for name in named))
            raise UserError(
                f"the model has no part {part!r}",
                where=f"training.freeze.{number}",
                hint=f"Its parts are: {there}; or write a pattern of names of weights, as in `encoder.layers.0`.",
            )
        frozen |= dict.fromkeys(found)
    if parts and all(name in frozen or not each.requires_grad for name, each in named.items()):
        raise UserError(
            "every parameter is frozen: nothing is left to train",
            where="training.freeze",
            hint="Remove a part from the list.",
        )
    for name in frozen:
        named[name].requires_grad_(False)
    return list(frozen)
