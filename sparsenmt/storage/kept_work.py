"""Kept work: results on disk that a later run takes up if it asks for the same, and makes anew otherwise.

A record of kept work is a sealed file: what was asked, which is everything that the results depend on, and the results.

=========================================  ==========  ===============================================================
file                                       asked       results
=========================================  ==========  ===============================================================
``.NAME.journal`` beside an output         ``work``    lines that are complete: `resumable_output`
``.state.json`` of data that are prepared  ``task``    ``stages``: `Stages`
``N-M.json`` of a text at a depth          ``work``    ``translations``: `decoding.kept_translations`
``search.json`` of a depth selector        ``work``    ``trials``: `depth_selector.hyperparameter_search`
``selector.json`` of a model               ``asked``   the depth selector: `depth_selector.selector`
``train-N.json`` of distilled text         ``work``    ``files``: `workflows.distill`
``evaluation/TEXT.json`` of a model        ``key``     outputs, scores, attention, tests: `workflows.evaluation_file`
``.NAME.sections/`` beside a report        ``work``    ``section``: `workflows.evaluation.report`
``sweep.json`` of a variant of a sweep     all of it   the model directory: `workflows.sweep`
=========================================  ==========  ===============================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sparsenmt.errors import UserError
from sparsenmt.process.progress import progress_bar
from sparsenmt.storage.files import (
    DamagedFileError,
    read_sealed,
    remove_tree,
    sha256_text,
    staging_directory,
    sync,
    write_sealed,
)
from sparsenmt.storage.records import check_file_entries, file_entries_of, file_entry, list_files, typed

R = TypeVar("R")
AGAIN = "It is made again."
_HASH = re.compile("[0-9a-f]{64}")
_SHOWN = 3  # differences that a message names


def changed_values(old: Any, new: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Return the differences between two nested settings: key such as ``a.b[0]``, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        values = [(f"{key}.{name}" if key else str(name), old.get(name), new.get(name)) for name in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        values = [(f"{key}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return [] if old == new else [(key, old, new)]
    return [change for inner, a, b in values for change in changed_values(a, b, inner)]


def describe_changes(old: Any, new: Any, key: str = "") -> list[str]:
    """Return the differences between two nested settings as text: ``a.b is 1 instead of 2``, the new value first."""
    return [describe_change(*change) for change in changed_values(old, new, key)]


def describe_change(key: str, old: Any, new: Any) -> str:
    """Return one of `changed_values` as text."""
    return f"{key} is {json.dumps(new)} instead of {json.dumps(old)}"


@dataclass(frozen=True)
class KeptWork(Generic[R]):
    """The record of some work.

    Args:
        path: the file.
        asked: everything that the results depend on, as values that JSON has.
        kind: type of the results: a dataclass with the file's keys that it reads.
        key: key of the file that holds what was asked; None: the whole file does.
        compare: returns the differences between what was asked before and now, as `changed_values`.
    """

    path: Path
    asked: Mapping[str, Any]
    kind: type[R]
    key: str | None = "work"
    compare: Callable[[Any, Any], Sequence[tuple[str, Any, Any]]] = changed_values

    def read(self, *, hint: str = AGAIN) -> tuple[R, str]:
        """Return the results, and what was asked otherwise when they were made; empty: nothing was, they are of use.

        Args:
            hint: what the user can do about a damaged file.

        Raises:
            DamagedFileError: the file is missing or damaged.
            UserError: it cannot be read.
        """
        record = read_sealed(self.path, hint=hint)
        found = typed(record, self.kind, self.path, hint=hint)
        before = typed(record if self.key is None else record.get(self.key), dict, self.path, hint=hint)
        changed = self.compare(before, json.loads(json.dumps(self.asked)))
        return found, joined([_describe(*change) for change in changed])

    def find(self) -> R | None:
        """Return the results; None if there are none, they are damaged, or something else was asked."""
        try:
            found, differences = self.read()
        except UserError:
            return None
        return None if differences else found

    def write(self, **results: Any) -> None:
        """Write the results, as values that JSON has, with what was asked."""
        write_sealed(self.path, {**(self.asked if self.key is None else {self.key: self.asked}), **results})


def request_digest(asked: Mapping[str, Any]) -> str:
    """Return the hash of what is asked."""
    return sha256_text(json.dumps(asked, sort_keys=True))


def joined(differences: Sequence[str]) -> str:
    """Return differences as one text, the first ones in full."""
    more = len(differences) - _SHOWN
    return "; ".join(differences[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _describe(key: str, old: Any, new: Any) -> str:
    """Return a difference as text; hashes are left out."""
    hashes = all(isinstance(value, str) and _HASH.fullmatch(value) for value in (old, new))
    return f"the {key} has changed" if hashes else describe_change(key, old, new)


# --- a directory that is made in stages ---------------------------------------------------------------------------

_STATE = ".state.json"


@dataclass(frozen=True)
class _FinishedStage:
    name: str
    files: dict[str, Any]
    result: Any


@dataclass(frozen=True)
class _FinishedStages:
    stages: list[_FinishedStage]


@contextmanager
def directory_of_stages(directory: Path, activity: str) -> Iterator[Path]:
    """The temporary directory, locked for this process, in which ``directory`` is made in stages.

    It stays after an interruption, if the disk is full, or after a UserError that is resumable; another one removes it.

    Raises:
        UserError: as `staging_directory`.
    """
    with staging_directory(directory, activity) as partial:
        try:
            yield partial
        except UserError as error:
            if not error.resumable:
                remove_tree(partial)
            raise


class Stages:
    """The stages in which a directory is made, in order.

    A stage is recorded when its files are flushed to disk. Finished stages of the same request are kept if their files
    are unchanged; everything else in the directory is removed.

    Args:
        directory: see `directory_of_stages`.
        asked: everything that the files depend on, as values that JSON has.
        progress: show the progress on stderr.
    """

    def __init__(self, directory: Path, asked: Mapping[str, Any], progress: bool) -> None:
        self._directory = directory
        self._progress = progress
        self._kept = KeptWork(directory / _STATE, asked, _FinishedStages, key="task")
        recorded = self._recorded()
        self._finished = self._intact(recorded)
        self._remove_others()
        if not recorded or len(self._finished) < len(recorded):
            self._write()

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a stage, unless it is finished.

        Args:
            name: unique among the stages.
            work: writes new files; returns a JSON value.

        Returns:
            the result of ``work``, from this run or an earlier one.
        """
        if name in self._finished:
            return self._finished[name].result
        result = work()
        known = self.files
        new = {each: path for each, path in list_files(self._directory).items() if each not in known}
        for path in sorted({*new.values(), *(path.parent for path in new.values()), self._directory}):
            sync(path)
        total = sum(path.stat().st_size for path in new.values())
        with progress_bar("hashing", total, unit="B", shown=self._progress) as advance:
            files = {each: file_entry(path, advance) for each, path in new.items()}
        self._finished[name] = _FinishedStage(name, files, result)
        self._write()
        return result

    def is_finished(self, name: str) -> bool:
        """Return True if the stage is finished."""
        return name in self._finished

    @property
    def files(self) -> dict[str, Any]:
        """Size and hash of every file of the finished stages, by its path in the directory."""
        return {name: entry for stage in self._finished.values() for name, entry in stage.files.items()}

    def _recorded(self) -> list[_FinishedStage]:
        """Return the stages that the record lists, if it is valid and of the same request."""
        try:
            found, differences = self._kept.read()
            for each in found.stages:
                file_entries_of({"files": each.files}, self._kept.path, names=".+", hint=AGAIN)
        except DamagedFileError:
            return []
        return [] if differences else found.stages

    def _intact(self, recorded: Sequence[_FinishedStage]) -> dict[str, _FinishedStage]:
        """Return the stages before the first one with changed files, which later stages may depend on."""
        intact = {}
        total = sum(entry["bytes"] for stage in recorded for entry in stage.files.values())
        with progress_bar("checking what is finished", total, unit="B", shown=self._progress) as advance:
            for stage in recorded:
                try:
                    check_file_entries(self._directory, stage.files, hint=AGAIN, advance=advance)
                except DamagedFileError:
                    break
                intact[stage.name] = stage
        return intact

    def _remove_others(self) -> None:
        """Remove all files that belong to no finished stage."""
        known = self.files
        for path in sorted(self._directory.rglob("*"), reverse=True):  # contents before their directory
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # not empty
                    path.rmdir()
            elif path.relative_to(self._directory).as_posix() not in known and path.name != _STATE:
                path.unlink()

    def _write(self) -> None:
        self._kept.write(stages=[asdict(stage) for stage in self._finished.values()])


def remove_stage_record(directory: Path) -> None:
    """Remove the record of the stages from a complete directory."""
    (directory / _STATE).unlink(missing_ok=True)
