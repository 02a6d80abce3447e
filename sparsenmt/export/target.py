"""A format for which a model is exported: what it needs, what is written, and how it is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.errors import UserError
from sparsenmt.export.plain_transformer import PlainTransformer
from sparsenmt.export.table import TARGETS
from sparsenmt.recipe import schema


@dataclass(frozen=True)
class FileChoices:
    """The choices of a format with several kinds of files.

    Args:
        file: ``npz``, ``bin`` or ``int8``; None: as the model was imported, otherwise ``npz``.
        text: lines in the source language, of which the ranges of inputs of products are taken (8 bits).
    """

    file: str | None = None
    text: Path | None = None


NO_CHOICES = FileChoices()


@dataclass(frozen=True)
class ExportTarget:
    """A format for which a model is exported.

    Args:
        name: of the program, for messages.
        check: raises UserError if the package that writes the files is missing.
        write: writes the model of a bundle into a directory, which has SentencePiece models if the last argument is
            True.
        usage: returns the code that runs the model, for the README; arguments as for ``write``.
        notes: returns what a user must know of the model.
        copies_unknown: says how the program replaces unknown tokens; "": it does not.
        computes: methods beside those of a plain Transformer, as socket and name.
        searches: keys and methods of `decoding`, beside beams and their penalties, that the code has.
        own_vocabularies: True if ``write`` writes the vocabularies, too.
        choose: returns the format with choices; None: it has none.
    """

    name: str
    check: Callable[[], None]
    write: Callable[[PlainTransformer, Bundle, Path, bool], None]
    usage: Callable[[PlainTransformer, Bundle, bool], str]
    notes: Callable[[PlainTransformer], list[str]]
    copies_unknown: str = ""
    computes: frozenset[tuple[str, str]] = frozenset()
    searches: frozenset[str] = frozenset()
    own_vocabularies: bool = False
    choose: Callable[[FileChoices], ExportTarget] | None = None


def load_target(name: str, choices: FileChoices = NO_CHOICES) -> ExportTarget:
    """The format of a name in `TARGETS`, with choices.

    Raises:
        UserError: it has no such choices.
    """
    target: ExportTarget = importlib.import_module(TARGETS[name].module).TARGET
    if choices == NO_CHOICES:
        return target
    if target.choose is None:
        key = "file" if choices.file is not None else "text"
        raise UserError(f"--to {name} has one kind of files", where=f"--{key}", hint="Leave it out.")
    return target.choose(choices)


def longest_output(plain: PlainTransformer, decoding: schema.Decoding) -> int:
    """The longest output, EOS included; one that depends on the source: as many tokens as there are positions."""
    return plain.max_positions if decoding.max_length_factor else decoding.max_length_offset


def length_penalty(decoding: schema.Decoding) -> float:
    """The exponent of the length in the length penalty; 1 if the recipe uses another penalty."""
    return {"average": decoding.alpha, "none": 0.0}.get(decoding.length_penalty, 1.0)
