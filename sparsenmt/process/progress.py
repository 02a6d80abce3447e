"""Messages and progress on stderr and in the log file: bars on a terminal, plain lines elsewhere.

A plain line has no control characters, and is written at a pace that suits a file: in training every
`training.log_every` updates, in other work now and then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from sparsenmt.errors import printable, printable_lines
from sparsenmt.process.log_file import LogFile
from sparsenmt.process.runtime import is_main_process

T = TypeVar("T")

# A plain line is written when both are over; in long work at the latest after `_LONGEST`. Short work stays silent.
_EVERY = 30.0  # seconds
_SHARE = 0.1  # of the work
_LONGEST = 600.0  # seconds
_UNKNOWN = 60.0  # seconds, where the amount of work is unknown


@dataclass
class _Settings:
    """The places of the messages of a command: stderr, without progress and notes if it is quiet, and a log file."""

    quiet: bool = False
    log: LogFile | None = None
    muted: bool = False
    told: set[str] = field(default_factory=set)


_settings = _Settings()


@contextmanager
def own_messages() -> Iterator[None]:
    """Forget what `send_messages` sets within the block when it ends."""
    global _settings
    before, _settings = _settings, _Settings()
    try:
        yield
    finally:
        if _settings.log is not None:
            _settings.log.close()
        _settings = before


def send_messages(*, quiet: bool, log: LogFile | None) -> None:
    """Set the places of messages.

    Args:
        quiet: True: stderr gets warnings and errors only.
        log: gets all messages too, and progress as plain lines.
    """
    _settings.quiet, _settings.log = quiet, log


def mute_messages() -> None:
    """Drop all notes and warnings of this process: the main process of the run shows them."""
    _settings.muted = True


def is_terminal(stream: TextIO) -> bool:
    """Return True for a terminal on which a line can be drawn again, and in colours."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def notify(message: str, *, needed: bool = False, once: bool = False) -> None:
    """Print a note or a warning on stderr, with `printable` lines, above any progress bar that is shown.

    Args:
        needed: False: a quiet command leaves it out, unless it begins with ``warning:``.
        once: True: nothing, if the command has printed it before.
    """
    if _settings.muted or (once and message in _settings.told):
        return
    _settings.told.update([message] if once else ())
    if needed or not _settings.quiet or message.startswith("warning:"):
        with tqdm.external_write_mode(file=sys.stderr):
            print(printable_lines(message), file=sys.stderr, flush=True)
    log(message)


def log(message: str) -> None:
    """Write a message to the log file, if there is one, and not on stderr."""
    if _settings.log is not None:
        _settings.log.write(message.split("\n"))


class ProgressBar:
    """The progress of some work: a bar on a terminal; plain lines elsewhere, and in the log file.

    Args:
        what: name of the work.
        total: None where it is unknown.
        unit: a noun in the singular, or ``B`` for bytes.
        done: units that an earlier run has done.
        paced: True: plain lines are written now and then, and the bar vanishes at the end. False: `write_line` writes
            them, and the bar stays.
        shown: False: nothing is shown or written.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        *,
        unit: str = "sentence",
        done: int = 0,
        paced: bool = True,
        shown: bool = True,
    ) -> None:
        shown = shown and is_main_process()
        on_stderr = shown and not _settings.quiet and not os.environ.get("TQDM_DISABLE")
        terminal = is_terminal(sys.stderr)
        self._what, self._total, self._unit, self._paced = what, total, unit, paced
        self._on_stderr = on_stderr and not terminal
        self._writes = self._on_stderr or (shown and _settings.log is not None)
        self._done = self._first = self._written = done
        self._began = self._last = time.monotonic()
        self._lines = 0
        self._state = ""
        self._bar: tqdm[Any] = tqdm(
            initial=done,
            total=total,
            unit=unit,
            desc=printable(what),
            disable=not (on_stderr and terminal),
            file=sys.stderr,
            dynamic_ncols=True,
            unit_scale=paced,
            leave=not paced,
            mininterval=0.1 if paced else 1.0,
        )

    def advance(self, count: int = 1, state: str = "") -> None:
        """Count units that are done.

        Args:
            state: what else is to be shown.
        """
        self._done += count
        self._state = state
        if not self._bar.disable:
            if state:
                self._bar.set_postfix_str(printable(state), refresh=False)
            self._bar.update(count)
        if self._writes and self._paced and self._is_due():
            self.write_line()

    def write_line(self) -> None:
        """Write a plain line: the share that is done, the speed, and an estimate of the time that is left."""
        if not self._writes:
            return
        now = time.monotonic()
        speed = (self._done - self._first) / max(now - self._began, 1e-9)
        parts = [self._state or f"{self._amount(speed)}/s"]
        if self._total is None:
            counted = self._counted(self._done)
        else:
            share = min(self._done / max(self._total, 1), 1.0)
            counted = f"{self._amount(self._done)} of {self._counted(self._total)} ({share:.0%})"
            if speed > 0 and self._done < self._total:
                parts.append(f"{duration((self._total - self._done) / speed)} left")
        self._last, self._written = now, self._done
        self._print(", ".join([f"{self._what}: {counted}", *parts]))

    def close(self, *, finished: bool = False) -> None:
        """Remove the bar.

        Args:
            finished: True: if plain lines were written, write a last one.
        """
        self._bar.close()
        if finished and self._lines:
            taken = duration(time.monotonic() - self._began)
            self._print(f"{self._what}: {self._counted(self._done - self._first)} in {taken}")

    def _is_due(self) -> bool:
        waited = time.monotonic() - self._last
        if waited < _EVERY:
            return False
        if self._total is None:
            return waited >= _UNKNOWN
        if self._done >= self._total:
            return False  # the last line says more
        return waited >= _LONGEST or self._done - self._written >= _SHARE * self._total

    def _print(self, line: str) -> None:
        self._lines += 1
        if self._on_stderr:
            print(printable(line), file=sys.stderr, flush=True)
        log(line)

    def _counted(self, number: int) -> str:
        plural = "" if self._unit == "B" or number == 1 else "s"
        return self._amount(number) if self._unit == "B" else f"{number:,} {self._unit}{plural}"

    def _amount(self, number: float) -> str:
        if self._unit == "B":
            return byte_text(number)
        return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def byte_text(number: float) -> str:
    """Return a number of bytes for readers, as ``13.2 GB``."""
    power = min(max(len(f"{number:.0f}") - 1, 0) // 3, 5)
    return f"{number / 1000**power:.{1 if power else 0}f} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units, as ``3 min 20 s``."""
    whole = round(seconds)
    for size, name, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


@contextmanager
def progress_bar(
    description: str, total: int | None, *, unit: str = "sentence", done: int = 0, shown: bool = True
) -> Iterator[Callable[[int], object]]:
    """Show the progress of a block; yields a function that is told how many more units are done.

    The arguments are those of `ProgressBar`.
    """
    bar = ProgressBar(description, total, unit=unit, done=done, shown=shown)
    finished = False
    try:
        yield bar.advance
        finished = True
    finally:
        bar.close(finished=finished)


def progress_over(items: Iterable[T], what: str, *, shown: bool = True) -> Iterator[T]:
    """Pass lines through, showing how many went by."""
    with progress_bar(what, None, unit="line", shown=shown) as advance:
        for each in items:
            yield each
            advance(1)
