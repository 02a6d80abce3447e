"""SIGINT and SIGTERM: the first asks a command to stop in good order, a second one ends the process at once.

By default the first raises `Interrupted` where the program stands. Work that must reach a boundary first defers it: the
signal is noted, and the work asks.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE = 0.5  # seconds: a launcher passes on what the terminal has sent to all, and the two count as one


class Interrupted(KeyboardInterrupt):
    """The first signal.

    Args:
        number: the signal's.
        note: what is kept, for the user.
        resumable: the same command goes on.
    """

    def __init__(self, number: int, note: str = "", *, resumable: bool = False) -> None:
        self.number = number
        self.note = note
        self.resumable = resumable
        super().__init__(note)

    @property
    def exit_code(self) -> int:
        """As a shell reports a signal."""
        return 128 + self.number


@contextmanager
def resumable(note: str = "") -> Iterator[None]:
    """Mark an interrupt that leaves the block: the same command resumes the work.

    Args:
        note: what is kept, for the user, unless the interrupt has a note of its own.
    """
    try:
        yield
    except Interrupted as interrupt:
        interrupt.resumable, interrupt.note = True, interrupt.note or note
        raise


class Signals:
    """What was heard."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal's; None so far."""
        self._heard_at = 0.0
        self._raises = True

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            if time.monotonic() - self._heard_at > _GRACE:
                # Nothing is lost: what stands under its name is complete, and the next run removes the rest.
                os._exit(128 + number)
            return
        self.number, self._heard_at = number, time.monotonic()
        if self._raises:
            raise Interrupted(number)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """The first signal is only noted."""
        yield from self._with(False)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Inside `deferred`: the first signal raises after all; one that was noted before raises at once."""
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
    """Hear the two signals until the block ends; an inner block hears instead of an outer one.

    In a thread, where Python cannot set handlers, nothing is heard.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before: dict[int, Any] = {}
    try:
        for number in _SIGNALS:
            # Under nohup and the like a signal is ignored on purpose: it stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, signals.handle)
        yield signals
    finally:
        for heard, handler in before.items():
            signal.signal(heard, handler)
