"""Texts that models are evaluated on: those of a recipe, or files named by options.

Of a translation model a source with its reference, of a language model one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from sparsenmt.arguments import strings_to_paths
from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.data.documents import read_document_ids
from sparsenmt.data.text import check_readable, read_parallel
from sparsenmt.errors import UserError
from sparsenmt.recipe.model_use import check_translates
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.files import sha256_file


@dataclass(frozen=True)
class TestText:
    """A source text with its reference, as line-aligned files.

    Args:
        name: the name in files and tables.
        tags: part-of-speech tags of the source.
        documents: document ids of the lines, for d-BLEU and for models that read documents.
    """

    __test__ = False  # pytest would take it for a test class

    name: str
    source: Path
    reference: Path
    tags: Path | None = None
    documents: Path | None = None

    def __post_init__(self) -> None:
        strings_to_paths(self)

    def digests(self) -> dict[str, str | None]:
        """Return role -> hash of the file, None if there is none; UserError if a file cannot be read."""
        found: dict[str, str | None] = {}
        for role in ("source", "reference", "tags", "documents"):
            path: Path | None = getattr(self, role)
            if path is not None:
                check_readable(path)
            found[role] = None if path is None else sha256_file(path)
        return found

    def read(self) -> tuple[list[str], list[str]]:
        """Return the lines of source and reference; UserError if they are not aligned, or there are none."""
        rows = list(read_parallel([self.source, self.reference]))
        if not rows:
            raise UserError("the file has no lines", where=str(self.source), hint="Name a text with sentences.")
        return [row[0] for row in rows], [row[1] for row in rows]

    def ids(self, lines: Sequence[str]) -> list[str] | None:
        """Return the document id of each of the first ``lines``; None if the text has no documents."""
        return None if self.documents is None else list(islice(read_document_ids(self.documents), len(lines)))


@dataclass(frozen=True)
class PlainText:
    """A text that language models are evaluated on.

    Args:
        name: the name in files and tables.
    """

    name: str
    path: Path

    def digests(self) -> dict[str, str]:
        """Return role -> hash of the file; UserError if it cannot be read."""
        check_readable(self.path)
        return {"text": sha256_file(self.path)}


AnyText = TypeVar("AnyText", TestText, PlainText)


def evaluation_text(recipe: Recipe, kind: str) -> TestText | PlainText | None:
    """Return the recipe's ``dev`` or ``test`` text, if it has one: of a language model a plain one."""
    corpus = recipe.data.dev if kind == "dev" else recipe.data.test
    if corpus is None:
        return None
    if recipe.data.is_language_model:
        return PlainText(kind, Path(corpus.text))
    tags, documents = (None if path is None else Path(path) for path in (corpus.tags, corpus.documents))
    return TestText(kind, Path(corpus.source), Path(corpus.target), tags, documents)


def given_text(
    source: Path | None, reference: Path | None, documents: Path | None = None, tags: Path | None = None
) -> TestText | None:
    """Return the text that ``--source``, ``--reference`` and further options name; None if they name none.

    Raises:
        UserError: only a part of it is named, or a file cannot be read.
    """
    given = {"--source": source, "--reference": reference, "--documents": documents, "--tags": tags}
    if source is not None and reference is not None:
        for path in given.values():
            if path is not None:
                check_readable(path)
        return TestText(source.name.split(".")[0] or "text", source, reference, tags, documents)
    for option, path in given.items():
        if path is not None:
            missing = "--reference" if source is not None else "--source"
            hint = "Give both, or none to use the text of the recipes."
            raise UserError(f"needs {missing}", where=option, hint=hint)
    return None


def shared_text(models: Mapping[str, Path], kind: str, of: type[AnyText]) -> AnyText:
    """Return the ``dev`` or ``test`` text that the recipes of all models name, with tags and documents that one names.

    Args:
        models: label -> directory.
        of: the kind of text that the models read.

    Raises:
        UserError: a recipe names none, or they name different ones, or a model does not translate.
    """
    hint = "Name a text with --source and --reference." if of is TestText else "Name a text with --text."
    found: list[AnyText] = []
    expected: Mapping[str, str | None] = {}
    for directory in models.values():
        recipe = read_recipe(directory)
        if of is TestText:
            check_translates(recipe, directory)
        text = evaluation_text(recipe, kind)
        if not isinstance(text, of):
            raise UserError(f"the model's recipe has no `data.{kind}`", where=str(directory), hint=hint)
        digests = {role: value for role, value in text.digests().items() if role not in ("tags", "documents")}
        expected = expected or digests
        if digests != expected:
            raise UserError(
                f"`data.{kind}` of its recipe differs from that of {next(iter(models))}",
                where=str(directory),
                hint=hint,
            )
        found.append(text)
    roles = ("tags", "documents") if of is TestText else ()
    beside: dict[str, Any] = {role: next(filter(None, (getattr(each, role) for each in found)), None) for role in roles}
    return replace(found[0], **beside)
