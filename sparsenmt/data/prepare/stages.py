"""A directory that is built in stages and can be resumed after an interruption.

Until it is complete, the directory has the name that `partial_path` gives. A sealed state file in it lists the finished
stages with the sizes and hashes of their files; a stage enters the list when its files are flushed to disk. The next
run of the same task keeps the finished stages whose files are unchanged and removes everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.process.progress import progress_bar
from sparsenmt.storage.files import (
    DamagedFileError,
    explain_directory_errors,
    locked_partial,
    read_sealed,
    recover_directory,
    remove_tree,
    sync,
    write_sealed,
)
from sparsenmt.storage.records import check_file_entries, file_entries_of, file_entry, list_files, typed

_STATE = ".state.json"
_AGAIN = "It is created again."


@dataclass(frozen=True)
class _State:
    """The contents of the state file."""

    task: dict[str, Any]
    stages: list[_FinishedStage]


@dataclass(frozen=True)
class _FinishedStage:
    name: str
    files: dict[str, Any]
    result: Any


@contextmanager
def staging_directory(directory: Path) -> Iterator[Path]:
    """The temporary directory, locked for this process, in which ``directory`` is built.

    It stays after an interruption, if the disk is full, or after a UserError that is resumable; another one removes it.
    First `recover_directory` repairs what a process left that was killed while it published.

    Raises:
        UserError: it cannot be created, or another process has locked it.
    """
    with ExitStack() as stack:
        with explain_directory_errors(directory):
            partial = stack.enter_context(locked_partial(directory, "prepares these data"))
        recover_directory(directory)
        try:
            yield partial
        except UserError as error:
            if not error.resumable:
                remove_tree(partial)
            raise


def remove_stage_record(directory: Path) -> None:
    """Remove the state file from a complete directory."""
    (directory / _STATE).unlink(missing_ok=True)


class Stages:
    """The stages of a task, in order.

    Args:
        directory: see `staging_directory`.
        task: everything that the files depend on, as JSON values. The files of another task are removed.
    """

    def __init__(self, directory: Path, task: Mapping[str, Any], progress: bool) -> None:
        self._directory = directory
        self._task = dict(task)
        self._progress = progress
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
            return self._finished[name]["result"]
        result = work()
        known = self.files
        new = {each: path for each, path in list_files(self._directory).items() if each not in known}
        for path in sorted({*new.values(), *(path.parent for path in new.values()), self._directory}):
            sync(path)
        total = sum(path.stat().st_size for path in new.values())
        with progress_bar("hashing", total, unit="B", shown=self._progress) as advance:
            files = {each: file_entry(path, advance) for each, path in new.items()}
        self._finished[name] = {"files": files, "result": result}
        self._write()
        return result

    def is_finished(self, name: str) -> bool:
        """Return True if the stage is finished."""
        return name in self._finished

    @property
    def files(self) -> dict[str, Any]:
        """Size and hash of every file of the finished stages, by its path in the directory."""
        return {name: entry for stage in self._finished.values() for name, entry in stage["files"].items()}

    def _recorded(self) -> dict[str, Any]:
        """The stages that the state file lists, if it is valid and of the same task."""
        path = self._directory / _STATE
        try:
            state = typed(read_sealed(path), _State, path, hint=_AGAIN)
            if state.task != self._task:
                return {}
            for each in state.stages:
                file_entries_of({"files": each.files}, path, names=".+", hint=_AGAIN)
        except DamagedFileError:
            return {}
        return {each.name: {"files": each.files, "result": each.result} for each in state.stages}

    def _intact(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The stages before the first one with changed files, which later stages may depend on."""
        intact = {}
        total = sum(entry["bytes"] for stage in recorded.values() for entry in stage["files"].values())
        with progress_bar("checking what is finished", total, unit="B", shown=self._progress) as advance:
            for name, stage in recorded.items():
                try:
                    check_file_entries(self._directory, stage["files"], hint=_AGAIN, advance=advance)
                except DamagedFileError:
                    break
                intact[name] = stage
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
        stages = [{"name": name, **stage} for name, stage in self._finished.items()]
        write_sealed(self._directory / _STATE, {"task": self._task, "stages": stages})
