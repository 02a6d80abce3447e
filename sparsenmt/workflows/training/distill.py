"""Distillation in stages: translate the training source, prepare the distilled text, train the student.

Complete stages are kept. For each training corpus N of the recipe the folder of the distilled text holds

``train-N.source``   the source text of the recipe, uncompressed
``train-N.target``   its translation, line by line; exists when it is complete
``train-N.json``     sealed: everything that the translation depends on, written first, and in the end the files' hashes
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from sparsenmt.arguments import from_fields
from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.methods import required_features
from sparsenmt.assemble.model_directory import MANIFEST as MODEL_MANIFEST
from sparsenmt.assemble.model_directory import model_identity, read_recipe
from sparsenmt.data.features.feature_set import need_tags
from sparsenmt.data.prepare.chosen_lines import read_chosen_lines
from sparsenmt.data.prepare.corpus_files import corpus_names, input_files
from sparsenmt.data.prepare.survey import survey_text
from sparsenmt.data.prepared_data import MANIFEST, read_manifest
from sparsenmt.data.text import StrPath, read_lines, write_lines
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.process.runtime import is_distributed
from sparsenmt.recipe.load import RecipeLike, dump
from sparsenmt.recipe.resolve import Overrides
from sparsenmt.recipe.schema import Corpus, Data, Recipe
from sparsenmt.storage.files import directory_lock, explain_directory_errors, make_directories, sha256_file, write_text
from sparsenmt.storage.kept_work import KeptWork
from sparsenmt.storage.records import check_file_entries, file_entries_of, file_entry
from sparsenmt.workflows.decoding.decode import decode
from sparsenmt.workflows.decoding.decode_request import DecodeRequest
from sparsenmt.workflows.decoding.search_options import decoding_options
from sparsenmt.workflows.training.prepare import prepare
from sparsenmt.workflows.training.run_checks import same_vocabularies
from sparsenmt.workflows.training.train import train

_FORMAT = 1
_OTHER_FOLDER = "Name another folder with --corpus, or remove this one; or give the options that it was made with."
_REMOVE = "Remove the file and its translation: the same command makes them again."


@dataclass(frozen=True)
class DistillRequest:
    """The arguments of `distill`.

    Args:
        teacher: the teacher and its decoding options; input and output are not used.
        recipe: the student's recipe, with the corpora whose sources are translated.
        recipe_name: file name of the recipe with the distilled text.
        folder: folder of the distilled text; None: the recipe's `data.directory` with ``-text``.
        until: the last stage, the distilled text (``corpus``) or its prepared ``data``; None: training.
    """

    teacher: DecodeRequest
    recipe: Recipe
    recipe_name: str = "student.yaml"
    folder: Path | None = None
    until: Literal["corpus", "data"] | None = None

    @classmethod
    def of(
        cls,
        teacher: DecodeRequest | StrPath,
        recipe: RecipeLike,
        overrides: Overrides = (),
        *,
        folder: StrPath | None = None,
        until: Literal["corpus", "data"] | None = None,
        **options: Any,
    ) -> DistillRequest:
        """Make a request of a model directory and a recipe; ``options`` are those of the teacher's decoding.

        Raises:
            UserError: the recipe is wrong.
        """
        request = teacher if isinstance(teacher, DecodeRequest) else DecodeRequest.of(teacher, **options)
        named = {"recipe_name": Path(recipe).name} if isinstance(recipe, str | os.PathLike) else {}
        where = None if folder is None else Path(folder)
        return cls(request, load_recipe(recipe, overrides), folder=where, until=until, **named)

    @property
    def text_folder(self) -> Path:
        """The folder of the distilled text."""
        return self.folder or Path(f"{self.recipe.data.directory.rstrip('/')}-text")

    def corpora(self) -> list[DistilledCorpus]:
        """Return the training corpora with their files, in the order of the recipe."""
        names = corpus_names(self.recipe.data.train)
        return [
            DistilledCorpus(
                corpus,
                name,
                *(self.text_folder / f"train-{number}.{suffix}" for suffix in ("source", "target", "json")),
            )
            for number, (name, corpus) in enumerate(zip(names, self.recipe.data.train, strict=True))
        ]

    def student(self) -> Recipe:
        """Return the recipe that trains on the distilled text."""
        train_corpora = [each.distilled() for each in self.corpora()]
        return self.recipe.model_copy(update={"data": self.recipe.data.model_copy(update={"train": train_corpora})})


@dataclass(frozen=True)
class _DistilledRecord:
    """The results in a corpus's record: the files of its distilled text; None: it is not complete."""

    files: Any = None


@dataclass(frozen=True)
class DistilledCorpus:
    """One corpus of the recipe and the files of its distilled text."""

    corpus: Corpus
    name: str
    source: Path
    target: Path
    record: Path

    def distilled(self) -> Corpus:
        """Return the recipe's corpus with the distilled text instead of its own."""
        paths = {"source": str(self.source.resolve()), "target": str(self.target.resolve())}
        return self.corpus.model_copy(update={"name": self.name, **paths, **dict.fromkeys(self.chosen)})

    @property
    def chosen(self) -> dict[str, int | None]:
        """The keys of the lines that are translated, and their values; empty: all lines are.

        So they are beside tags or document ids, which belong to the lines of the whole file: `prepare` chooses then.
        """
        corpus = self.corpus
        if corpus.lines is None or corpus.tags is not None or corpus.documents is not None:
            return {}
        return {"lines": corpus.lines, "lines_seed": corpus.lines_seed}

    def _write_source(self) -> None:
        """Write the lines that are translated."""
        source = self.corpus.source
        write_lines(self.source, read_chosen_lines(self.corpus, source) if self.chosen else read_lines(source))

    def is_complete(self, work: Mapping[str, Any]) -> bool:
        """Return True if the distilled text is complete.

        Args:
            work: everything that the text depends on.

        Raises:
            UserError: the text was made from other work, or it was changed.
        """
        if not self.record.exists():
            if self.target.exists():
                raise UserError(
                    "is in the place of the distilled text, but was not written by `sparsenmt distill`",
                    where=str(self.target),
                    hint="Name another folder with --corpus, or move the file away.",
                )
            return False
        kept, differences = self._kept(work).read(hint=_REMOVE)
        if kept.files is None and not self.target.exists():
            return False  # `decode` resumes it, or starts again and says why
        if differences:
            raise UserError(
                f"the distilled text was made otherwise: {differences}", where=str(self.record), hint=_OTHER_FOLDER
            )
        if kept.files is None:  # stopped between the last line and the record
            return False
        names = "|".join(re.escape(path.name) for path in (self.source, self.target))
        files = file_entries_of({"files": kept.files}, self.record, names=names, hint=_REMOVE)
        check_file_entries(self.record.parent, files, hint=_REMOVE, links=True)
        return True

    def translate(self, work: Mapping[str, Any], teacher: DecodeRequest, recipe: Recipe) -> None:
        """Translate the source, or resume its translation.

        Args:
            recipe: the teacher's.
        """
        if not self.source.exists() or survey_text(self.source).sha256 != work["source"]:
            self._write_source()
        self._kept(work).write(files=None)
        if not self.target.exists():
            tags, documents = self.corpus.tags, self.corpus.documents
            reads_tags, reads_documents = need_tags(required_features(recipe)), recipe.data.documents is not None
            request = replace(
                teacher,
                input=self.source,
                output=self.target,
                tags=Path(tags) if tags is not None and reads_tags else None,
                documents=Path(documents) if documents is not None and reads_documents else None,
            )
            decode(request)
            if model_identity(teacher.model).weights != work["teacher"]:
                raise UserError(
                    "the teacher was replaced while it translated",
                    where=str(teacher.model),
                    hint=f"Remove {self.target}, and start the command again.",
                )
        self._kept(work).write(files={path.name: file_entry(path) for path in (self.source, self.target)})

    def _kept(self, work: Mapping[str, Any]) -> KeptWork[_DistilledRecord]:
        """Return the record of the text that ``work`` makes, whether it is written or not."""
        return KeptWork(self.record, work, _DistilledRecord)


@from_fields(DistillRequest, DistillRequest.of)
def distill(request: DistillRequest) -> None:
    """Train a student on a teacher's translations; every stage resumes where it was interrupted.

    Args:
        request: or the teacher's directory, the student's recipe, overrides and, as keyword arguments, ``folder`` and
            ``until`` of `DistillRequest` and the teacher's decoding options: ``distill("runs/big", "student.yaml")``.

    Raises:
        UserError: teacher, recipe and folder do not fit one another; or a stage fails.
    """
    with resumable():
        student = request.student()
        corpora = request.corpora()
        work = _work(request, corpora)
        complete = [each.is_complete(work[each.name]) for each in corpora]
        if is_distributed():  # one of several processes, which only train
            if not all(complete) or not Path(request.recipe.data.directory).exists():
                raise UserError(
                    "the distilled text is not prepared, which one process must do",
                    where=str(request.text_folder),
                    hint="Run the command without torchrun first, with `--until data`.",
                )
            train(student)
            return
        _check_teacher(request)
        _check_directories(request, all(complete))
        _translate_corpora(request, student, work, complete)
        if request.until == "corpus":
            return
        _prepare(request, student)
        if request.until != "data":
            train(student)


def _work(request: DistillRequest, corpora: Sequence[DistilledCorpus]) -> dict[str, dict[str, Any]]:
    """Return name of a corpus -> everything that its distilled text depends on, as JSON values."""
    teacher = request.teacher
    identity = model_identity(teacher.model)
    # Threads and window change nothing but near ties.
    options = {
        "dtype": teacher.dtype,
        "encoder_layers": teacher.encoder_layers,
        "decoder_layers": teacher.decoder_layers,
        "depth": "auto" if teacher.select_depth else None,
        "disabled": list(teacher.disabled_heads) or None,
    }
    languages = {"source_language": teacher.source_language, "target_language": teacher.target_language}
    decoding = decoding_options(read_recipe(teacher.model).decoding, {**teacher.settings, **languages}).recorded()
    decoding |= {name: value for name, value in options.items() if value is not None}
    found = {}
    for each in corpora:
        beside = (each.corpus.tags, each.corpus.documents)
        tags, documents = (None if path is None else sha256_file(Path(path)) for path in beside)
        found[each.name] = {
            "format": _FORMAT,
            "source": survey_text(each.corpus.source).sha256,
            **each.chosen,
            "tags": tags,
            "documents": documents,
            "teacher": identity.weights,
            "vocabularies": {name: entry["sha256"] for name, entry in sorted(identity.files.items())},
            "decoding": decoding,
        }
    return found


def _check_teacher(request: DistillRequest) -> None:
    """Raise UserError if teacher and student have different languages; warn of different limits and case."""
    ours, theirs = request.recipe.data, read_recipe(request.teacher.model).data
    if any(corpus.alignments is not None for corpus in ours.train):
        hint = "Remove the key, and training.guided_alignment."
        raise UserError("the alignments are not those of the teacher's text", where="data.train.alignments", hint=hint)
    for side in ("source", "target"):
        key = f"{side}_language"
        own, other, unknown = getattr(ours, key), getattr(theirs, key), Data.model_fields[key].default
        if own != other and unknown not in (own, other):
            raise UserError(
                f"the teacher's {side} language is '{other}', the student's '{own}'",
                where=f"data.{key}",
                hint="Name a teacher of the same languages, or correct the key of the recipe.",
            )
    if theirs.tokenizer.lowercase and not ours.tokenizer.lowercase:
        notify("warning: the teacher lowercases text, so the student will, too, though its recipe does not")
    for key in ("max_length", "max_source_length"):
        own, other = getattr(ours.filters, key), getattr(theirs.filters, key)
        if other is not None and (own is None or own > other):
            meaning = {"max_length": "was trained on pairs of at most", "max_source_length": "cuts sources to"}[key]
            text = f"the teacher {meaning} {other:,} tokens, the student's recipe has {own or 'no limit'}"
            notify(f"warning: {text} (data.filters.{key})")


def _check_directories(request: DistillRequest, complete: bool) -> None:
    """Raise UserError for directories that are in use for other text; ``complete``: the distilled text is complete."""
    folder, teacher = request.text_folder, request.teacher.model
    prepared, directory = Path(request.recipe.data.directory), Path(request.recipe.directory)
    places = [path.resolve() for path in (folder, prepared, directory, teacher)]
    if any(one == other or one in other.parents for one, other in permutations(places, 2)):
        raise UserError(
            "teacher, student, prepared data and distilled text must have directories of their own",
            where=", ".join(map(str, (teacher, directory, prepared, folder))),
            hint="Change `directory` or `data.directory` of the recipe, or name another --corpus.",
        )
    if folder.exists() and not folder.is_dir():
        raise UserError("this is a file", where=str(folder), hint="Name another folder with --corpus.")
    if complete:
        return
    for place, manifest in ((prepared, MANIFEST), (directory, MODEL_MANIFEST)):
        if (place / manifest).exists():
            raise UserError(
                "is in use already, but the distilled text is not complete: it was made from other text",
                where=str(place),
                hint="Give the recipe another `directory` and another `data.directory`; or name the --corpus that they "
                "were made from.",
            )


def _translate_corpora(
    request: DistillRequest, student: Recipe, work: Mapping[str, Mapping[str, Any]], complete: Sequence[bool]
) -> None:
    """Translate the corpora that are not ``complete``, in their order, and write the student's recipe."""
    folder, teacher = request.text_folder, request.teacher
    with explain_directory_errors(folder, another="--corpus"):
        make_directories(folder)
    recipe = read_recipe(teacher.model)
    with directory_lock(folder, "distills into this folder"):
        for number, (each, done) in enumerate(zip(request.corpora(), complete, strict=True), start=1):
            head = f"[{number}/{len(complete)}] {each.name}"
            if done:
                notify(f"{head}: is translated")
                continue
            notify(f"{head}: {teacher.model} translates {each.corpus.source} to {each.target}")
            each.translate(work[each.name], teacher, recipe)
        path = folder / request.recipe_name
        write_text(path, dump(student))
        notify(f"{path}: the recipe with the distilled text")


def _prepare(request: DistillRequest, student: Recipe) -> None:
    """Prepare the distilled text; data that were prepared from other text are not replaced."""
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
    notify(prepare(student).describe())
    if not same_vocabularies(directory, request.teacher.model):
        notify(f"{directory}: the student splits the teacher's text by a vocabulary of its own")
