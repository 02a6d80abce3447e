"""SIGINT, SIGTERM and SIGHUP: the first one stops a command in an orderly way, a second one ends the process at once.

By default the first signal raises `Interrupted`. Work that must first reach a boundary defers it: the signal is only
recorded, and the work checks for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sparsenmt.errors import UserError

_HANGUP = getattr(signal, "SIGHUP", None)  # POSIX: the terminal was closed
_SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, _HANGUP)))
_GRACE = 0.5  # seconds in which two signals count as one: a launcher forwards a signal that the terminal sends to all


class Interrupted(KeyboardInterrupt):
    """Raised by the first signal.

    Args:
        number: the number of the signal.
        note: what was saved, for the user.
        resumable: True if the same command resumes the work.
    """

    def __init__(self, number: int, note: str = "", *, resumable: bool = False) -> None:
        self.number = number
        self.note = note
        self.resumable = resumable
        super().__init__(note)

    @property
    def exit_code(self) -> int:
        """128 + signal number, as shells report it."""
        return 128 + self.number


@contextmanager
def resumable(note: str | Callable[[], str] = "") -> Iterator[None]:
    """Mark an interrupt that leaves the block: the same command resumes the work.

    Args:
        note: what is kept, for the user, unless the interrupt has a note of its own; a function is asked then.
    """

    def kept() -> str:
        return note if isinstance(note, str) else note()

    try:
        yield
    except Interrupted as interrupt:
        interrupt.resumable, interrupt.note = True, interrupt.note or kept()
        raise
    except Exception as error:
        if isinstance(error, (UserError, OSError)) or (number := received()) is None:
            raise
        raise Interrupted(number, kept(), resumable=True) from error


def received() -> int | None:
    """Return the number of the signal that was received in the innermost `listening` or within it; None: none was.

    A library may turn the interrupt into an error of its own: pydantic does, for one that comes inside a serializer.
    """
    return _listeners[-1].seen if _listeners else None


class Signals:
    """The signals that were received."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The number of the first signal; None before it."""
        self.seen: int | None = None
        """The same, or that of the first signal in an inner `listening`."""
        self._received_at = 0.0
        self._raises = True

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            # The shell and the system may both send SIGHUP when a terminal is closed.
            if number != _HANGUP and time.monotonic() - self._received_at > _GRACE:
                # Nothing is lost: files with their final name are complete, and the next run removes the others.
                os._exit(128 + number)
            return
        self.number, self._received_at = number, time.monotonic()
        for each in _listeners:
            each.seen = each.seen or number
        if self._raises:
            raise Interrupted(number)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only record the first signal inside the block."""
        yield from self._with(False)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let signals raise again inside `deferred`; one that was recorded before raises at once."""
        if self.number is not None:
            raise Interrupted(self.number)
        yield from self._with(True)

    def _with(self, raises: bool) -> Iterator[None]:
        before, self._raises = self._raises, raises
        try:
            yield
        finally:
            self._raises = before


@contextmanager
def listening() -> Iterator[Signals]:
    """Handle the signals until the block ends; an inner block replaces an outer one.

    Does nothing outside the main thread, where Python cannot set signal handlers.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before: dict[int, Any] = {}
    _listeners.append(signals)
    try:
        for number in _SIGNALS:
            # A signal that is ignored, as under nohup, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, signals.handle)
        yield signals
    finally:
        for handled, handler in before.items():
            signal.signal(handled, handler)
        _listeners.remove(signals)


_listeners: list[Signals] = []
"""Those of the `listening` blocks that are open, the outermost first."""
