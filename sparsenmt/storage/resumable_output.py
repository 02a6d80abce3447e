"""Output files that an interrupted run can resume.

Until it is complete, the output NAME consists of two hidden files beside its final path:

``.NAME.partial``   the lines so far; the process that writes it holds a lock on it
``.NAME.journal``   sealed: the task, the number of input lines that are done, size and hash of their output, and the
                    numerics that decide their last digits, which are for the caller to compare

The journal is written after the bytes that it describes are flushed to disk, and only a complete file gets the output's
name. A run with the same task, and a partial file with the recorded hash, appends to it; bytes after the recorded size
are truncated. With another task the output is started anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.storage.files import (
    check_own_file,
    explain_write_errors,
    hidden_path,
    is_at,
    lock,
    no_follow,
    partial_path,
    publish_file,
    sha256_file,
)
from sparsenmt.storage.kept_work import KeptWork
from sparsenmt.storage.records import Count

_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Journal:
    """The journal: the task as ``work``, the input lines that are done, size and hash of their output; numerics."""

    lines: Count
    bytes: Count
    sha256: str
    numerics: dict[str, Any] | None = None


class ResumableOutput:
    """An output file that is being written; see `resumable_output`.

    Args:
        output: the final path.
        task: everything that determines the output's bytes but the numerics, as JSON. None: it cannot be resumed.
        total: number of input lines.
        numerics: those of this run, as JSON.
    """

    def __init__(
        self,
        output: Path,
        task: Mapping[str, Any] | None,
        total: int = 0,
        numerics: Mapping[str, Any] | None = None,
    ) -> None:
        self.lines = 0
        """Input lines whose output is complete and flushed to disk."""
        self.complete = False
        """True if the output is already complete: an earlier run was killed before it removed the journal."""
        self.restart_reason: str | None = None
        """Why the files of an earlier run cannot be used; None if they can, or if there are none."""
        self.begun_with: Mapping[str, Any] | None = None
        """The numerics of an earlier run whose output is continued; None: none is."""
        self._output = output
        self._target = output.resolve()  # a link stays one
        self._partial = partial_path(self._target)
        self._journal = hidden_path(self._target, "journal")
        self._kept = None if task is None else KeptWork(self._journal, task, _Journal)
        self._total, self._numerics = total, dict(numerics or {})
        self._buffer = bytearray()
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._descriptor = self._open()

    # --- opening -----------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Open and lock the partial file."""
        while True:
            with self._writing():
                descriptor = no_follow(os.fspath(self._partial), os.O_RDWR | os.O_CREAT)
            try:
                check_own_file(os.fstat(descriptor), self._partial)
                lock(descriptor, "another process is writing this output", self._output, another="--output")
                # The process that held the lock before may have renamed or removed the file.
                if is_at(descriptor, self._partial):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def recover(self) -> None:
        """Take over the output of an earlier run if possible, and truncate the rest."""
        self.restart_reason = self._read_journal()
        if self.complete:
            _remove(self._partial, self._journal, partial_path(self._journal))
            return
        with self._writing():
            _remove(partial_path(self._journal))
            if not self.lines:
                self._bytes, self._digest = 0, hashlib.sha256()
                _remove(self._journal)
            os.ftruncate(self._descriptor, self._bytes)
            os.lseek(self._descriptor, self._bytes, os.SEEK_SET)

    def _read_journal(self) -> str | None:
        """Read the journal and verify the partial file; returns why they cannot be used."""
        if not os.path.lexists(self._journal):
            return None
        check_own_file(os.lstat(self._journal), self._journal)
        if self._kept is None:
            return "the input cannot be read from the middle"
        try:
            journal, differences = self._kept.read()
        except UserError:
            return "its journal is damaged"
        lines, size, digest = journal.lines, journal.bytes, journal.sha256
        if journal.numerics is None:
            return "its journal is of an earlier version of the program"
        if differences:
            return differences
        if lines == self._total and not os.fstat(self._descriptor).st_size:
            self.complete = _has_content(self._target, size, digest)
        if not self.complete and not self._hash_start(size, digest):
            return "the partial output is damaged"
        if lines < self._total:
            self.begun_with = journal.numerics
        self.lines, self._bytes = lines, size
        return None

    def _hash_start(self, size: int, digest: str) -> bool:
        """Hash the first ``size`` bytes of the partial file; True if they exist and have this hash."""
        left = size
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            while left and (block := os.read(self._descriptor, min(left, _BLOCK))):
                self._digest.update(block)
                left -= len(block)
        except OSError:
            return False
        return not left and self._digest.hexdigest() == digest

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, lines: Iterable[str]) -> None:
        """Append lines.

        Raises:
            UserError: they cannot be written.
            ValueError: a line contains ``\\n``.
        """
        for line in lines:
            if "\n" in line:
                raise ValueError("a line cannot contain a line end")
            self._buffer += line.encode("utf-8") + b"\n"
        if len(self._buffer) > _BLOCK:
            self._flush()

    def commit(self, lines: int) -> None:
        """Flush the output of the first ``lines`` input lines and record it in the journal, so that a run can resume.

        Raises:
            UserError: it cannot be written.
        """
        if self._kept is None or lines == self.lines:
            return
        self._flush()
        with self._writing():
            os.fsync(self._descriptor)
            digest = self._digest.hexdigest()
            self._kept.write(lines=lines, bytes=self._bytes, sha256=digest, numerics=self._numerics)
        self.lines = lines

    def finish(self, lines: int) -> None:
        """Give the complete output its final name.

        Raises:
            UserError: it cannot be written.
        """
        if self.lines:  # if the process ends after the renaming, the journal tells the next run that all is done
            self.commit(lines)
        self._flush()
        with self._writing():
            os.fsync(self._descriptor)
            publish_file(self._partial, self._target)
            _remove(self._journal)

    def _flush(self) -> None:
        data = memoryview(bytes(self._buffer))
        self._buffer.clear()
        self._digest.update(data)
        self._bytes += len(data)
        with self._writing():
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _writing(self) -> AbstractContextManager[None]:
        return explain_write_errors(self._output, another="--output")

    # --- closing -------------------------------------------------------------------------------------------------

    def discard_unless_resumable(self) -> None:
        """Remove the partial file after an interruption, unless a journal makes it resumable."""
        if is_at(self._descriptor, self._partial) and not os.path.lexists(self._journal):
            _remove(self._partial)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


@contextmanager
def resumable_output(
    output: Path,
    task: Mapping[str, Any] | None,
    total: int = 0,
    numerics: Mapping[str, Any] | None = None,
) -> Iterator[ResumableOutput]:
    """Create or resume an output file; the block calls `ResumableOutput.finish` when all lines are done.

    The arguments are those of `ResumableOutput`; ``output`` is no pipe or device.

    Raises:
        UserError: another process is writing it, or it cannot be written.
    """
    file = ResumableOutput(output, task, total, numerics)
    try:
        file.recover()
        yield file
    except BaseException:
        with suppress(OSError):
            file.discard_unless_resumable()
        raise
    finally:
        file.close()


def _has_content(path: Path, size: int, digest: str) -> bool:
    """True if the file has this size and hash."""
    try:
        return path.is_file() and path.stat().st_size == size and sha256_file(path) == digest
    except OSError:
        return False
