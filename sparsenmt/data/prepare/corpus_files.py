"""The texts that a recipe names: read and checked once before any work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.data.documents import check_id_count, read_document_ids
from sparsenmt.data.prepare.survey import TextSurvey, check_no_pipe, survey_text
from sparsenmt.data.text import LONGEST_LINE, check_aligned, check_readable, read_parallel
from sparsenmt.data.word_links import parse_links, words_of
from sparsenmt.errors import UserError
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe import schema

TAGS, DOCUMENTS, ALIGNMENTS = "tags", "documents", "alignments"


def input_files(data: schema.Data, *, tags: bool = False) -> list[tuple[str, str]]:
    """Role and path of every file: source and target, or text, of the training corpora and of `dev`; then their tags,
    if wanted; then the document ids of corpora that are packed, and of `dev`; then the alignments of training corpora.
    """
    roles = [(f"train-{number}", corpus) for number, corpus in enumerate(data.train)] + [("dev", data.dev)]
    texts = [(f"{role}.{side}", path) for role, corpus in roles for side, path in corpus.files.items()]
    tagged = [(f"{role}.{TAGS}", corpus.tags) for role, corpus in roles if tags and corpus.tags is not None]
    packed = roles if data.documents is not None else roles[-1:]
    ids = [(f"{role}.{DOCUMENTS}", corpus.documents) for role, corpus in packed if corpus.documents is not None]
    aligned = [(f"{role}.{ALIGNMENTS}", each.alignments) for role, each in roles[:-1] if each.alignments is not None]
    return texts + tagged + ids + aligned


def _key(role: str) -> str:
    """Return the recipe's key of a role: ``data.train.0.source`` of ``train-0.source``."""
    corpus, side = role.split(".")
    return f"data.{corpus.replace('-', '.')}.{side}"


def longest_line(role: str) -> int | None:
    """Return the most bytes of a line of a file with this role; None: any number, of a language model's text."""
    return None if role.endswith(".text") else LONGEST_LINE


def corpus_names(corpora: Sequence[schema.Corpus]) -> list[str]:
    """The names of the corpora in reports.

    Raises:
        UserError: two are the same.
    """
    names = [corpus.label for corpus in corpora]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"two training corpora are called {repeated[0]!r}",
            where="data.train",
            hint="Give each a `name` of its own.",
        )
    return names


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus and what was found in it."""

    role: str
    path: str
    survey: TextSurvey
    stamp: list[int]
    """`file_stamp` when it was read."""


@dataclass(frozen=True)
class CorpusFiles:
    """The files of `input_files`, read and checked, by role and in the same order."""

    by_role: dict[str, CorpusFile]

    @classmethod
    def read(cls, data: schema.Data, progress: bool, *, tags: bool = False) -> CorpusFiles:
        """Read and check all texts, and their tags if wanted.

        Raises:
            UserError: a file cannot be read, is invalid, or does not fit the others.
        """
        files = input_files(data, tags=tags)
        for role, path in files:
            if not os.path.lexists(path):
                hint = f"Put the corpus there, or correct `{_key(role)}`: paths in a recipe are relative to its folder."
                raise UserError("no such file", where=path, hint=hint)
            if os.path.isdir(path):
                hint = f"Name a file of text: correct `{_key(role)}`."
                raise UserError("is a directory, not a file", where=path, hint=hint)
            check_no_pipe(path)
            check_readable(path)
        stamps = [file_stamp(path) for _, path in files]
        with progress_bar("reading", sum(stamp[0] for stamp in stamps), unit="B", shown=progress) as advance:
            read = [
                CorpusFile(role, path, survey_text(path, advance, longest=longest_line(role)), stamp)
                for (role, path), stamp in zip(files, stamps, strict=True)
            ]
        inputs = cls({file.role: file for file in read})
        inputs._check_alignment()
        inputs._check_documents()
        inputs._check_links()
        inputs._check_duplicates(corpus_names(data.train))
        inputs._check_dev()
        return inputs

    @property
    def entries(self) -> list[dict[str, Any]]:
        """JSON values for the manifest: role, path, size, times, number of lines and text hash of each file."""
        return [
            {
                "role": file.role,
                "path": file.path,
                "bytes": file.survey.bytes,
                "stamp": file.stamp,
                "lines": file.survey.lines,
                "sha256": file.survey.sha256,
            }
            for file in self.by_role.values()
        ]

    @property
    def lines(self) -> list[int]:
        """The number of lines, or pairs, of each corpus; `dev` is the last."""
        return [files[0].survey.lines for files in self._corpora]

    @property
    def characters(self) -> list[int]:
        """The number of characters of the source, or of the text, of each corpus; `dev` is the last."""
        return [files[0].survey.characters for files in self._corpora]

    @property
    def _corpora(self) -> list[list[CorpusFile]]:
        """Source and target, or the text, of each corpus; `dev` is the last."""
        corpora: dict[str, list[CorpusFile]] = {}
        for role, file in self.by_role.items():
            name, _, kind = role.partition(".")
            if kind not in (TAGS, DOCUMENTS, ALIGNMENTS):
                corpora.setdefault(name, []).append(file)
        return list(corpora.values())

    def warn(self, train: Sequence[schema.Corpus]) -> None:
        """Warn about corpora that have fewer lines than `lines` takes of them, and about unusual line ends."""
        for number, (name, corpus, total) in enumerate(zip(corpus_names(train), train, self.lines, strict=False)):
            if corpus.lines is not None and corpus.lines > total:
                counts = f"{name} has {total:,} lines, fewer than {corpus.lines:,}"
                notify(f"warning: data.train.{number}.lines: {counts}: all are used")
        for file in self.by_role.values():
            if returns := file.survey.returns:
                notify(f"warning: {file.path}: {returns:,} lines end in \\r (as in Windows), which is kept as text")

    def check_unchanged(self) -> None:
        """Check that no text has changed since it was read.

        Raises:
            UserError: one has.
        """
        for file in self.by_role.values():
            if file_stamp(file.path) != file.stamp:
                raise UserError(
                    "the text changed while it was prepared",
                    where=file.path,
                    hint="Start the command again when the file is complete.",
                )

    def _check_alignment(self) -> None:
        for files in self._corpora:
            paths = [file.path for file in files]
            check_aligned(paths, [file.survey.lines for file in files])
            if not files[0].survey.lines:
                raise UserError("the corpus is empty", where=" and ".join(paths), hint="Check the paths in the recipe.")

    def _check_documents(self) -> None:
        """Check that ids are as many as lines, and that the lines of each document are consecutive."""
        for role, file in self.by_role.items():
            name, _, kind = role.partition(".")
            if kind == DOCUMENTS:
                source = self.by_role[f"{name}.source"]
                count = sum(1 for _ in read_document_ids(file.path))
                check_id_count(file.path, source.path, count, source.survey.lines)

    def _check_links(self) -> None:
        """Check that there is a line of links for each pair, and that they lead to its words."""
        for role, file in self.by_role.items():
            name, _, kind = role.partition(".")
            if kind == ALIGNMENTS:
                files = [self.by_role[f"{name}.source"], self.by_role[f"{name}.target"], file]
                check_aligned([each.path for each in files], [each.survey.lines for each in files])
                for number, (source, target, line) in enumerate(read_parallel([each.path for each in files]), start=1):
                    sizes = len(words_of(source)), len(words_of(target))
                    parse_links(line, f"{file.path}, line {number:,}", sizes)

    def _check_duplicates(self, names: Sequence[str]) -> None:
        seen: dict[tuple[str, ...], str] = {}
        for name, files in zip(names, self._corpora, strict=False):  # without dev
            text = tuple(file.survey.sha256 for file in files)
            if text in seen:
                raise UserError(
                    f"the corpora {seen[text]!r} and {name!r} contain the same text",
                    where="data.train",
                    hint="Name it once; `weight: 2` uses it twice in an epoch.",
                )
            seen[text] = name

    def _check_dev(self) -> None:
        files = self._corpora[-1]
        for file in files:
            if file.survey.blank:
                sides = " on both sides" if len(files) > 1 else ""
                raise UserError(
                    "every line of the validation text is blank",
                    where=file.path,
                    hint=f"Name validation text with words{sides} in data.dev.",
                )


def file_stamp(path: str) -> list[int]:
    """Size in bytes; times of the last modification and of the last change of status, in nanoseconds."""
    stat = Path(path).stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
