"""The files that `sparsenmt decode` reads and writes: what can be wrong with them before and while it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sparsenmt.errors import UserError


class InputFile:
    """A file that must stay as it is while it is translated."""

    def __init__(self, path: Path) -> None:
        from sparsenmt.data.text import read_lines

        self._path = path
        self._state = self._look()
        self.lines = sum(1 for _ in read_lines(path))

    def sha256(self) -> str:
        """Of its bytes, as they are on the disk."""
        from sparsenmt.files import sha256_file

        return sha256_file(self._path)

    def check(self) -> None:
        """UserError if somebody has written to it."""
        if self._look() != self._state:
            raise UserError(
                "the text changed while it was translated",
                where=str(self._path),
                hint="Start again when nothing writes to it any more.",
            )

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def check_files(input_file: Path | None, output_file: Path | None) -> None:
    """Find out what is wrong with the files before the model is loaded."""
    from sparsenmt.data.text import check_readable

    if output_file is None and sys.stdout is None:
        raise UserError("there is nothing to write to", where="standard output", hint="Name a file with --output.")
    if input_file is None and sys.stdin is None:
        raise UserError("there is nothing to read from", where="standard input", hint="Name a file with --input.")
    if output_file is not None and not output_file.exists() and not output_file.resolve().parent.is_dir():
        raise UserError("there is no such directory", where=str(output_file.parent), hint="Make it first.")
    if output_file is not None and output_file.is_dir():
        raise UserError("this is a directory", where=str(output_file), hint="Name a file as --output.")
    if input_file is None or input_file.is_fifo() or input_file.is_char_device():  # what is read there is gone
        return
    check_readable(input_file)
    if output_file is not None and output_file.exists() and output_file.samefile(input_file):
        raise UserError("input and output are the same file", where=str(input_file), hint="Name another --output.")


def read_input(input_file: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input."""
    from sparsenmt.data.text import decode_lines, read_lines

    return read_lines(input_file) if input_file is not None else decode_lines(_standard_input(), "stdin")


def _standard_input() -> Iterator[bytes]:
    """Lines as they come; UserError where they are gzipped, which only files may be."""
    for number, line in enumerate(sys.stdin.buffer):
        if number == 0 and line.startswith(b"\x1f\x8b"):
            hint = "Unpack it first, as `zcat` does, or name the file with --input."
            raise UserError("this is gzip, not text", where="stdin", hint=hint)
        yield line
