"""An output file that grows beside its place, so that a run that was stopped goes on where it was.

Until it is complete, the output NAME stands in two hidden files beside its place:

``.NAME.partial``   the lines so far; the process that writes it holds a lock on it
``.NAME.journal``   sealed: what the output is made of; how many input lines are done; their bytes, counted and hashed

The journal is written after the bytes it speaks of are on the disk, and only a complete file gets the output's name.
A run that finds a journal of the same work, and bytes with the recorded hash, goes on behind them; bytes after them, of
which the journal does not know, are cut off. In every other case the output is made from nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError
from sparsenmt.files import (
    changed_values,
    describe_change,
    explain_write_errors,
    partial_path,
    publish_file,
    read_sealed,
    sha256_file,
    write_sealed,
)

_BLOCK = 1 << 20
_HASH = re.compile("[0-9a-f]{64}")


class Growing:
    """An output file in the making; `growing` makes it.

    Args:
        output: the file that is wanted.
        work: what decides about its bytes, as JSON. None: if the work stops, nothing is kept.
        total: number of input lines.
    """

    def __init__(self, output: Path, work: Mapping[str, Any] | None, total: int) -> None:
        self.lines = 0
        """Input lines that are done and on the disk."""
        self.complete = False
        """The output is there already, left by a run that was killed before it could tidy up."""
        self.again: str | None = None
        """Why what an earlier run left is of no use, if it left something."""
        self._output = output
        self._target = output.resolve()  # a link stays one
        self._partial = partial_path(self._target)
        self._journal = self._target.with_name(f".{self._target.name}.journal")
        self._work: Any = None if work is None else json.loads(json.dumps(work))
        self._total = total
        self._waiting = bytearray()
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._descriptor = self._open()

    # --- at the start --------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Open and lock the partial file."""
        while True:
            with self._writing():
                descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(descriptor)
                # The process that had the lock may have given the file its final name, or removed it.
                if self._is_partial(descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "another process is writing this output",
                where=str(self._output),
                hint="Wait until it ends, or name another --output.",
            ) from None
        except (ImportError, OSError):  # no POSIX, or a file system without locks
            pass

    def _is_partial(self, descriptor: int) -> bool:
        """Whether an open file is the one that stands under the partial file's name."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._partial))
        except FileNotFoundError:
            return False

    def find_out(self) -> None:
        """See what an earlier run left, and prepare for the lines after it."""
        self.again = self._recover()
        if self.complete:
            self._remove(self._partial, self._journal, partial_path(self._journal))
            return
        with self._writing():
            self._remove(partial_path(self._journal))
            if not self.lines:
                self._bytes, self._digest = 0, hashlib.sha256()
                self._remove(self._journal)
            os.ftruncate(self._descriptor, self._bytes)
            os.lseek(self._descriptor, self._bytes, os.SEEK_SET)

    def _recover(self) -> str | None:
        """Read the journal, and check the bytes it speaks of; returns what is wrong with them."""
        if not self._journal.exists():
            return None
        try:
            journal = read_sealed(self._journal)
            work, lines, size, digest = (journal[key] for key in ("work", "lines", "bytes", "sha256"))
        except (UserError, KeyError):
            return "the record of what was done is damaged"
        if self._work is None:
            return "what is read now cannot be read from where it was"
        if changed := changed_values(work, self._work):
            names = [_describe(*change) for change in changed]
            return "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")
        if lines == self._total and not os.fstat(self._descriptor).st_size:
            self.complete = _holds(self._target, size, digest)
        if not self.complete and not self._reads(size, digest):
            return "what was written is damaged"
        self.lines, self._bytes = lines, size
        return None

    def _reads(self, size: int, digest: str) -> bool:
        """Take up the first ``size`` bytes of the partial file; whether they are there and have this hash."""
        left = size
        try:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            while left and (block := os.read(self._descriptor, min(left, _BLOCK))):
                self._digest.update(block)
                left -= len(block)
        except OSError:
            return False
        return not left and self._digest.hexdigest() == digest

    # --- while it grows ------------------------------------------------------------------------------------------

    def write(self, lines: Iterable[str]) -> None:
        """Add lines.

        Raises:
            UserError: they cannot be written.
            ValueError: a line holds ``\\n``.
        """
        for line in lines:
            if "\n" in line:
                raise ValueError("a line cannot hold a line end")
            self._waiting += line.encode("utf-8") + b"\n"
        if len(self._waiting) > _BLOCK:
            self._flush()

    def keep(self, lines: int) -> None:
        """What was written is complete for so many input lines: a run that comes later goes on behind them.

        Raises:
            UserError: it cannot be brought to the disk.
        """
        if self._work is None or lines == self.lines:
            return
        self._flush()
        with self._writing():
            os.fsync(self._descriptor)
            write_sealed(
                self._journal,
                {"work": self._work, "lines": lines, "bytes": self._bytes, "sha256": self._digest.hexdigest()},
            )
        self.lines = lines

    def finish(self, lines: int) -> None:
        """All input lines are done: give the output its name.

        Raises:
            UserError: it cannot be brought to the disk.
        """
        if self.lines:  # should the process end after the renaming, the journal tells the next run that all is done
            self.keep(lines)
        self._flush()
        with self._writing():
            os.fsync(self._descriptor)
            publish_file(self._partial, self._target)
            self._remove(self._journal)

    def _flush(self) -> None:
        data = memoryview(bytes(self._waiting))
        self._waiting.clear()
        self._digest.update(data)
        self._bytes += len(data)
        with self._writing():
            while data:
                data = data[os.write(self._descriptor, data) :]

    def _writing(self) -> AbstractContextManager[None]:
        return explain_write_errors(self._output, another="--output")

    # --- at the end ----------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The work was stopped: without a journal there is nothing that a later run could use."""
        if self._is_partial(self._descriptor) and not self._journal.exists():
            self._remove(self._partial)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def _remove(self, *paths: Path) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


@contextmanager
def growing(output: Path, work: Mapping[str, Any] | None, total: int = 0) -> Iterator[Growing]:
    """Make an output file, or go on with it; the block calls `Growing.finish` when all is done.

    Args:
        output: the file that is wanted; no pipe or device.
        work: what decides about its bytes; see `Growing`.
        total: number of input lines.

    Raises:
        UserError: another process is writing it, or it cannot be written.
    """
    file = Growing(output, work, total)
    try:
        file.find_out()
        yield file
    except BaseException:
        with suppress(OSError):
            file.abandon()
        raise
    finally:
        file.close()


def _holds(path: Path, size: int, digest: str) -> bool:
    """Whether a file has this size and this hash."""
    try:
        return path.is_file() and path.stat().st_size == size and sha256_file(path) == digest
    except OSError:
        return False


def _describe(key: str, old: Any, new: Any) -> str:
    """One change of the work; hashes tell people nothing."""
    hashes = isinstance(old, str) and isinstance(new, str) and _HASH.fullmatch(old) and _HASH.fullmatch(new)
    return f"the {key} has changed" if hashes else describe_change(key, old, new)
