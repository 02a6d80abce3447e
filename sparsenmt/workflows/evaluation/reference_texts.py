"""Texts that models are evaluated on: those of a recipe, or files named by options.

Of a translation model a source with its reference, of a language model one text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

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

    def digests(self) -> dict[str, str | None]:
        """Return the hashes of the files, by role.

        Raises:
            UserError: a file cannot be read.
        """
        found: dict[str, str | None] = {}
        for role in ("source", "reference", "tags", "documents"):
            path: Path | None = getattr(self, role)
            if path is not None:
                check_readable(path)
            found[role] = None if path is None else sha256_file(path)
        return found

    def read(self) -> tuple[list[str], list[str]]:
        """Return sources and references.

        Raises:
            UserError: they are not line-aligned, or there are none.
        """
        rows = list(read_parallel([self.source, self.reference]))
        if not rows:
            raise UserError("the file has no lines", where=str(self.source), hint="Name a text with sentences.")
        return [row[0] for row in rows], [row[1] for row in rows]

    def ids(self, lines: Sequence[str]) -> list[str] | None:
        """Return the document ids of the first lines; None if the text has no documents."""
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
        """Return the hash of the file, by role.

        Raises:
            UserError: it cannot be read.
        """
        check_readable(self.path)
        return {"text": sha256_file(self.path)}


AnyText = TypeVar("AnyText", TestText, PlainText)


def evaluation_text(recipe: Recipe, kind: str) -> TestText | PlainText | None:
    """Return the recipe's ``dev`` or ``test`` text, if it has one, whatever its task."""
    return (plain_text if recipe.data.is_language_model else recipe_text)(recipe, kind)


def plain_text(recipe: Recipe, kind: str) -> PlainText | None:
    """Return the ``dev`` or ``test`` text of a language model's recipe, if it has one."""
    corpus = recipe.data.dev if kind == "dev" else recipe.data.test
    return PlainText(kind, Path(corpus.text)) if corpus is not None and recipe.data.is_language_model else None


def recipe_text(recipe: Recipe, kind: str) -> TestText | None:
    """Return the recipe's ``dev`` or ``test`` text, if it has one."""
    corpus = recipe.data.dev if kind == "dev" else recipe.data.test
    if corpus is None:
        return None
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


def shared_text(models: Mapping[str, Path], kind: str) -> TestText:
    """Return the ``dev`` or ``test`` text that the recipes of all models name.

    Args:
        models: label -> directory.

    Raises:
        UserError: a recipe names none, or they name different ones, or a model does not translate.
    """
    for directory in models.values():
        check_translates(read_recipe(directory), directory)
    found = _texts_of(models, kind, recipe_text, "Name a text with --source and --reference.")
    documents = next((text.documents for text in found if text.documents is not None), None)
    tags = next((text.tags for text in found if text.tags is not None), None)
    return replace(found[0], documents=documents, tags=tags)


def shared_plain_text(models: Mapping[str, Path], kind: str) -> PlainText:
    """Return the text that the recipes of all language models name; arguments and errors are those of `shared_text`."""
    return _texts_of(models, kind, plain_text, "Name a text with --text.")[0]


def _texts_of(
    models: Mapping[str, Path], kind: str, text_of: Callable[[Recipe, str], AnyText | None], hint: str
) -> list[AnyText]:
    """Return the text of every model; UserError if one has none, or not the text of the first one."""
    found: list[AnyText] = []
    expected: Mapping[str, str | None] = {}
    for directory in models.values():
        text = text_of(read_recipe(directory), kind)
        if text is None:
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
    return found
