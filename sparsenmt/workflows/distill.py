"""Distillation in stages: the distilled text, its preparation, the student's training. What is complete is kept.

For each training corpus N of the recipe the folder of the distilled text holds

``train-N.source``   the source text, as the recipe names it, unpacked
``train-N.target``   its translation, line by line; there when it is complete
``train-N.json``     sealed: what the translation is made of, written before it; when it is complete, the files' hashes
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import Corpus, Recipe

_FORMAT = 1
_ANOTHER = "Name another folder with --corpus, or remove this one; or give the options that it was made with."
_AGAIN = "Remove the file and its translation: the same command makes them again."


@dataclass(frozen=True)
class DistillRequest:
    """What the user asked for.

    Args:
        recipe: the student's, with the corpora whose sources are translated.
        folder: of the distilled text.
        name: of the recipe's file.
        search: decoding options that were given for the teacher, by name; None: as its recipe says.
        until: the last stage, ``corpus`` or ``data``; None: all.
    """

    teacher: Path
    recipe: Recipe
    folder: Path
    name: str
    search: Mapping[str, Any]
    until: str | None

    def corpora(self) -> list[Distilled]:
        """The training corpora, in the order of the recipe."""
        from sparsenmt.data.prepare.corpus_files import corpus_names

        names = corpus_names(self.recipe.data.train)
        return [
            Distilled(corpus, name, self.folder / f"train-{number}")
            for number, (name, corpus) in enumerate(zip(names, self.recipe.data.train, strict=True))
        ]

    def student(self) -> Recipe:
        """The recipe that trains on the distilled text."""
        train = [each.in_place() for each in self.corpora()]
        return self.recipe.model_copy(update={"data": self.recipe.data.model_copy(update={"train": train})})


class Translate(Protocol):
    """`sparsenmt decode` with the teacher: from file to file, going on where it stopped."""

    def __call__(self, source: Path, target: Path, *, tags_file: Path | None, documents_file: Path | None) -> None: ...


@dataclass(frozen=True)
class Distilled:
    """One corpus of the recipe, and where its distilled text stands."""

    corpus: Corpus
    name: str
    stem: Path

    @property
    def source(self) -> Path:
        return self.stem.with_name(f"{self.stem.name}.source")

    @property
    def target(self) -> Path:
        return self.stem.with_name(f"{self.stem.name}.target")

    @property
    def record(self) -> Path:
        return self.stem.with_name(f"{self.stem.name}.json")

    def in_place(self) -> Corpus:
        """The recipe's corpus, with the distilled text in place of its own."""
        paths = {"source": str(self.source.resolve()), "target": str(self.target.resolve())}
        return self.corpus.model_copy(update={"name": self.name, **paths})

    def check(self, work: Mapping[str, Any]) -> bool:
        """Whether the distilled text is complete.

        Raises:
            UserError: it is that of other work; `DamagedFileError`: it was changed.
        """
        from sparsenmt.files import changed_values, check_file_entries, describe_change, read_sealed

        if not self.record.exists():
            if self.target.exists():
                raise UserError(
                    "stands where the distilled text is wanted, and was not written by `sparsenmt distill`",
                    where=str(self.target),
                    hint="Name another folder with --corpus, or move the file away.",
                )
            return False
        record = read_sealed(self.record, hint=_AGAIN)
        if record["files"] is None and not self.target.exists():
            return False  # begun: `decode` goes on with it, or begins again and says why
        if changed := changed_values(record["work"], dict(work)):
            what = "; ".join(describe_change(*change) for change in changed)
            raise UserError(f"the distilled text was made otherwise: {what}", where=str(self.record), hint=_ANOTHER)
        if record["files"] is None:  # stopped between the last line and the record
            return False
        check_file_entries(self.stem.parent, record["files"], hint=_AGAIN)
        return True

    def make(self, work: Mapping[str, Any], translate: Translate, teacher: Recipe) -> None:
        """Translate the source, or go on with it."""
        from sparsenmt.data.prepare.survey import survey_text
        from sparsenmt.data.text import read_lines, write_lines
        from sparsenmt.files import file_entry, write_sealed

        if not self.source.exists() or survey_text(self.source).sha256 != work["source"]:
            write_lines(self.source, read_lines(self.corpus.source))
        write_sealed(self.record, {"work": dict(work), "files": None})
        if not self.target.exists():
            tags, documents = self._beside(teacher)
            translate(self.source, self.target, tags_file=tags, documents_file=documents)
        files = {path.name: file_entry(path) for path in (self.source, self.target)}
        write_sealed(self.record, {"work": dict(work), "files": files})

    def _beside(self, teacher: Recipe) -> tuple[Path | None, Path | None]:
        """What stands beside the source that the teacher reads: tags and document ids."""
        from sparsenmt.assemble import required_features
        from sparsenmt.data.features.feature_set import need_tags

        tags, documents = self.corpus.tags, self.corpus.documents
        return (
            Path(tags) if tags is not None and need_tags(required_features(teacher)) else None,
            Path(documents) if documents is not None and teacher.data.documents is not None else None,
        )


def run(plan: DistillRequest, translate: Translate) -> None:
    """All stages, one after the other; each goes on where it stopped.

    Raises:
        UserError: teacher, recipe and folder do not fit one another; or what the stages raise.
    """
    from sparsenmt.workflows.train import train

    student = plan.student()
    corpora = plan.corpora()
    work = _work(plan, corpora)
    complete = [each.check(work[each.name]) for each in corpora]
    if "RANK" in os.environ:  # each of several processes; their first stages were run before
        _check_ready(plan, all(complete))
        train(student)
        return
    _check_teacher(plan)
    _check_places(plan, all(complete))
    _make_corpora(plan, student, work, complete, translate)
    if plan.until == "corpus":
        return
    _prepare(plan, student)
    if plan.until != "data":
        train(student)


def _work(plan: DistillRequest, corpora: list[Distilled]) -> dict[str, dict[str, Any]]:
    """By corpus, what the distilled text depends on."""
    from sparsenmt import store
    from sparsenmt.data.prepare.survey import survey_text
    from sparsenmt.files import sha256_file

    files = store.read_manifest(plan.teacher)["files"]
    recipe, weights = store.read_recipe(plan.teacher), store.weights_digest(plan.teacher)
    search = {name: value for name, value in plan.search.items() if value not in (None, ())}
    speed = {"threads", "window"}  # decide about nothing but near ties
    decoding = {**recipe.decoding.model_dump(mode="json"), **{k: v for k, v in search.items() if k not in speed}}
    found = {}
    for each in corpora:
        beside = (each.corpus.tags, each.corpus.documents)
        tags, documents = (None if path is None else sha256_file(Path(path)) for path in beside)
        found[each.name] = {
            "format": _FORMAT,
            "source": survey_text(each.corpus.source).sha256,
            "tags": tags,
            "documents": documents,
            "teacher": weights,
            "vocabularies": {name: entry["sha256"] for name, entry in sorted(files.items())},
            "decoding": {name: list(v) if isinstance(v, tuple) else v for name, v in decoding.items()},
        }
    return found


def _check_teacher(plan: DistillRequest) -> None:
    """Compare what the teacher reads and writes with what the student's recipe is about.

    Raises:
        UserError: the languages are others. Texts that the teacher reads otherwise are a warning.
    """
    from sparsenmt import store
    from sparsenmt.recipe.schema import Data

    ours, theirs = plan.recipe.data, store.read_recipe(plan.teacher).data
    for side in ("source", "target"):
        key = f"{side}_language"
        own, other, unknown = getattr(ours, key), getattr(theirs, key), Data.model_fields[key].default
        if own != other and unknown not in (own, other):
            raise UserError(
                f"the teacher's {side} language is '{other}', the student's '{own}'",
                where=f"data.{key}",
                hint="Name a teacher of the same languages; or correct the key, where it is the recipe that is wrong.",
            )
    if theirs.tokenizer.lowercase and not ours.tokenizer.lowercase:
        click.echo("warning: the teacher lowercases text: so will the student, though its recipe does not", err=True)
    for key in ("max_length", "max_source_length"):
        own, other = getattr(ours.filters, key), getattr(theirs.filters, key)
        if other is not None and (own is None or own > other):
            meaning = {"max_length": "was trained on pairs of at most", "max_source_length": "cuts sources to"}[key]
            text = f"the teacher {meaning} {other:,} pieces, the student's recipe has {own or 'no limit'}"
            click.echo(f"warning: {text} (data.filters.{key})", err=True)


def _check_places(plan: DistillRequest, complete: bool) -> None:
    """Refuse places that are in use for other text, before any work is done.

    Raises:
        UserError: one is.
    """
    from sparsenmt import store
    from sparsenmt.data.prepared_data import MANIFEST

    prepared, directory = Path(plan.recipe.data.directory), Path(plan.recipe.directory)
    places = [path.resolve() for path in (plan.folder, prepared, directory, plan.teacher)]
    if any(one == other or one in other.parents for one, other in permutations(places, 2)):
        raise UserError(
            "teacher, student, prepared data and distilled text must have directories of their own",
            where=", ".join(map(str, (plan.teacher, directory, prepared, plan.folder))),
            hint="Change `directory` or `data.directory` of the recipe, or name another --corpus.",
        )
    if plan.folder.exists() and not plan.folder.is_dir():
        raise UserError("this is a file", where=str(plan.folder), hint="Name another folder with --corpus.")
    if complete:
        return
    for place, manifest in ((prepared, MANIFEST), (directory, store.MANIFEST)):
        if (place / manifest).exists():
            raise UserError(
                "is in use already, but the distilled text is not complete: it was made from other text",
                where=str(place),
                hint="Give the recipe another `directory` and another `data.directory`; or name the --corpus that they "
                "were made from.",
            )


def _check_ready(plan: DistillRequest, complete: bool) -> None:
    """With several processes nothing is left to do but to train."""
    if not complete or not Path(plan.recipe.data.directory).exists():
        raise UserError(
            "the distilled text is not prepared, which one process must do",
            where=str(plan.folder),
            hint="Run the command without torchrun first, with `--until data`.",
        )


def _make_corpora(
    plan: DistillRequest,
    student: Recipe,
    work: Mapping[str, Mapping[str, Any]],
    complete: list[bool],
    translate: Translate,
) -> None:
    """What is missing of the distilled text."""
    from sparsenmt import store
    from sparsenmt.files import directory_lock, explain_directory_errors, make_directories, write_text
    from sparsenmt.recipe.load import dump

    with explain_directory_errors(plan.folder, another="--corpus"):
        make_directories(plan.folder)
    teacher = store.read_recipe(plan.teacher)
    with directory_lock(plan.folder, "distills into this folder"):
        for number, (each, done) in enumerate(zip(plan.corpora(), complete, strict=True), start=1):
            head = f"[{number}/{len(complete)}] {each.name}"
            if done:
                click.echo(f"{head}: is translated", err=True)
                continue
            click.echo(f"{head}: {plan.teacher} translates {each.corpus.source} to {each.target}", err=True)
            each.make(work[each.name], translate, teacher)
        path = plan.folder / plan.name
        write_text(path, dump(student))
        click.echo(f"{path}: the recipe with the distilled text", err=True)


def _prepare(plan: DistillRequest, student: Recipe) -> None:
    """Prepare the distilled text; data of other text are not replaced."""
    from sparsenmt.assemble import required_features
    from sparsenmt.data.prepare.corpus_files import input_files
    from sparsenmt.data.prepare.pipeline import prepare
    from sparsenmt.data.prepare.survey import survey_text
    from sparsenmt.data.prepared_data import MANIFEST, read_manifest
    from sparsenmt.workflows.run_checks import same_vocabularies

    directory = Path(student.data.directory)
    if (directory / MANIFEST).exists():
        held = {entry["role"]: entry["sha256"] for entry in read_manifest(directory)["inputs"]}
        for role, path in input_files(student.data):
            if role.startswith("train-") and survey_text(path).sha256 != held.get(role):
                raise UserError(
                    f"holds data that were prepared from other text than {path}",
                    where=str(directory),
                    hint="Give the recipe another `data.directory`, or remove this one.",
                )
    report = prepare(student.data, features=required_features(student))
    click.echo(report.describe(), err=True)
    if not same_vocabularies(directory, plan.teacher):
        text = "the student reads the teacher's text as pieces of a vocabulary of its own"
        click.echo(f"{directory}: {text}", err=True)
