"""The texts that a recipe names: read and checked once before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.data.documents import check_id_count, read_document_ids
from sparsenmt.data.prepare.survey import TextSurvey, survey_text
from sparsenmt.data.text import check_aligned, check_readable
from sparsenmt.errors import UserError
from sparsenmt.progress import Bars, notify
from sparsenmt.recipe import schema

TAGS, DOCUMENTS = "tags", "documents"
_BESIDE = (f".{TAGS}", f".{DOCUMENTS}")


def input_files(data: schema.Data, *, tags: bool = False) -> list[tuple[str, str]]:
    """Role and path of every file: source and target of the training corpora and of `dev`; then their tags, if wanted;
    then the document ids of corpora that are packed, and of `dev`.
    """
    roles = [(f"train-{number}", corpus) for number, corpus in enumerate(data.train)] + [("dev", data.dev)]
    texts = [
        (f"{role}.{side}", path)
        for role, corpus in roles
        for side, path in (("source", corpus.source), ("target", corpus.target))
    ]
    tagged = [(f"{role}.{TAGS}", corpus.tags) for role, corpus in roles if tags and corpus.tags is not None]
    packed = roles if data.documents is not None else roles[-1:]
    ids = [(f"{role}.{DOCUMENTS}", corpus.documents) for role, corpus in packed if corpus.documents is not None]
    return texts + tagged + ids


def corpus_names(corpora: Sequence[schema.Corpus]) -> list[str]:
    """The names of the corpora in reports.

    Raises:
        UserError: two are the same.
    """
    names = [corpus.name or Path(corpus.source).name for corpus in corpora]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"two training corpora are called {repeated[0]!r}",
            where="data.train",
            hint="Give each a `name` of its own.",
        )
    return names


@dataclass(frozen=True)
class CorpusFiles:
    """The files of `input_files` and what was found in them, in the same order."""

    files: list[tuple[str, str]]
    surveys: list[TextSurvey]
    stamps: list[tuple[int, int]]
    """Size and modification time of every file when it was read."""

    @classmethod
    def read(cls, data: schema.Data, bars: Bars, *, tags: bool = False) -> CorpusFiles:
        """Read and check all texts, and their tags if wanted.

        Raises:
            UserError: a file cannot be read, is invalid, or does not fit the others.
        """
        files = input_files(data, tags=tags)
        for _, path in files:
            check_readable(path)
        stamps = [_stamp(path) for _, path in files]
        with bars.counting("reading", total=sum(size for size, _ in stamps), unit="B") as bar:
            surveys = [survey_text(path, bar.update) for _, path in files]
        inputs = cls(files, surveys, stamps)
        inputs._check_alignment()
        inputs._check_documents()
        inputs._check_duplicates(corpus_names(data.train))
        inputs._check_dev()
        return inputs

    @property
    def entries(self) -> list[dict[str, Any]]:
        """JSON values for the manifest: role, path, size, number of lines and text hash of each file."""
        return [
            {"role": role, "path": path, "bytes": found.bytes, "lines": found.lines, "sha256": found.sha256}
            for (role, path), found in zip(self.files, self.surveys, strict=True)
        ]

    @property
    def pairs(self) -> list[int]:
        """The number of pairs of each corpus; `dev` is the last."""
        return [found.lines for found in self.surveys[: self._texts : 2]]

    @property
    def _texts(self) -> int:
        """The number of texts, which come first."""
        return sum(not role.endswith(_BESIDE) for role, _ in self.files)

    def warn(self) -> None:
        """Warn about unusual line ends."""
        for (_, path), found in zip(self.files, self.surveys, strict=True):
            if found.returns:
                message = f"warning: {path}: {found.returns:,} lines end in \\r (as in Windows), which is kept as text"
                notify(message)

    def check_unchanged(self) -> None:
        """Check that no text has changed since it was read.

        Raises:
            UserError: one has.
        """
        for (_, path), stamp in zip(self.files, self.stamps, strict=True):
            if _stamp(path) != stamp:
                raise UserError(
                    "the text changed while it was prepared",
                    where=path,
                    hint="Start the command again when the file is complete.",
                )

    def _check_alignment(self) -> None:
        for first in range(0, self._texts, 2):
            paths = [path for _, path in self.files[first : first + 2]]
            lines = [found.lines for found in self.surveys[first : first + 2]]
            check_aligned(paths, lines)
            if not lines[0]:
                raise UserError(
                    "the corpus is empty", where=f"{paths[0]} and {paths[1]}", hint="Check the paths in the recipe."
                )

    def _check_documents(self) -> None:
        """Check that ids are as many as lines, and that the lines of each document are consecutive."""
        numbers = {role: number for number, (role, _) in enumerate(self.files)}
        for role, path in self.files:
            name, _, kind = role.partition(".")
            if kind == DOCUMENTS:
                source = numbers[f"{name}.source"]
                count = sum(1 for _ in read_document_ids(path))
                check_id_count(path, count, self.files[source][1], self.surveys[source].lines)

    def _check_duplicates(self, names: Sequence[str]) -> None:
        seen: dict[tuple[str, str], str] = {}
        for number, name in enumerate(names):
            text = (self.surveys[2 * number].sha256, self.surveys[2 * number + 1].sha256)
            if text in seen:
                raise UserError(
                    f"the corpora {seen[text]!r} and {name!r} contain the same text",
                    where="data.train",
                    hint="Name it once; `weight: 2` uses it twice in an epoch.",
                )
            seen[text] = name

    def _check_dev(self) -> None:
        dev = slice(self._texts - 2, self._texts)
        for (_, path), found in zip(self.files[dev], self.surveys[dev], strict=True):
            if found.blank:
                raise UserError(
                    "every line of the validation text is blank",
                    where=path,
                    hint="Name validation text with words on both sides in data.dev.",
                )


def _stamp(path: str) -> tuple[int, int]:
    stat = Path(path).stat()
    return stat.st_size, stat.st_mtime_ns
