"""Windows of lines that several processes (torchrun) work on: each takes its turn, and one process gets all results.

Every process reads the same input and divides it into the same windows. Window k belongs to process k modulo the number
of processes. The main process gets the results in the order of the windows: it writes what a single process would
write, and an output that was interrupted resumes with any number of processes. Results are JSON; nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.errors import UserError
from sparsenmt.process.progress import mute_messages
from sparsenmt.process.workers import Workers

T = TypeVar("T")
CPU = torch.device("cpu")
"""The device on which the processes exchange values."""
_DONE, _FAILED = -1, -2  # in place of the first line: there is nothing to share


def join_workers(options: ModelOptions) -> tuple[Workers, torch.device]:
    """Join the processes that torchrun started, and set threads and device of this one; without torchrun, one process.

    Raises:
        UserError: as `Workers.join` and `pick_device`.
    """
    device = options.use_processors()
    workers = Workers.join(device, exchange=CPU)
    if not workers.is_main_process:
        mute_messages()
    if device.type == "cuda" and workers.size > 1:
        device = torch.device("cuda", torch.cuda.current_device())
    return workers, device


class SharedWindows:
    """The windows of one input.

    Args:
        workers: the processes; all make this object, the main one for `lead`, the others for `assist`.
    """

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._began = False

    @contextmanager
    def leading(self) -> Iterator[None]:
        """End the other processes if the block of the main process ends before it begins to share windows."""
        try:
            yield
        except UserError:
            self._begin(_FAILED)
            raise
        self._begin(_DONE)

    def _begin(self, first: int) -> None:
        """Send the other processes, once, the number of the first line, from 0, or `_DONE` or `_FAILED`."""
        if not self._began:
            self._began = True
            self.workers.sum([float(first)])

    def lead(self, first: int, windows: Iterable[T], work: Callable[[T], Any]) -> Iterator[Any]:
        """Share windows; yields the result of each, in order.

        Args:
            first: number from 0 of the first line of the windows.
            work: returns a JSON value.

        Raises:
            UserError: as ``work`` in any process; the windows before are complete.
        """
        self._begin(first)
        for number, window in enumerate(windows):
            owner = number % self.workers.size
            if owner == 0:
                yield work(window)
                continue
            found = json.loads(self.workers.receive_text(owner))
            if error := found.get("error"):
                raise UserError(error["message"], where=error["where"], hint=error["hint"])
            yield found["result"]

    def assist(self, windows: Callable[[int], Iterable[T]], work: Callable[[T], Any]) -> None:
        """Work on the windows of this process, which is not the main one.

        Args:
            windows: returns the windows from a line on.
            work: as for `lead`.

        Raises:
            UserError: the main process has failed, or ``work``; the main process shows the message.
        """
        first = int(self.workers.sum([0.0])[0])
        if first == _FAILED:
            raise UserError(
                "the first process shows what is wrong", where="torchrun", hint="Read its message.", repeated=True
            )
        if first == _DONE:
            return
        with self.workers.sending_text() as send:
            for number, window in enumerate(windows(first)):
                if number % self.workers.size != self.workers.rank:
                    continue
                try:
                    send(json.dumps({"result": work(window)}))
                except UserError as error:
                    if error.repeated:
                        raise
                    send(json.dumps({"error": {"message": error.message, "where": error.where, "hint": error.hint}}))
                    error.repeated = True
                    raise


def check_shared_input(workers: Workers, path: os.PathLike[str] | None) -> None:
    """Raise UserError if several processes share standard input, a pipe or a device, which only one can read."""
    if workers.size > 1 and (path is None or not os.path.isfile(path)):
        raise UserError(
            "several processes cannot share standard input, a pipe or a device",
            where="--input",
            hint="Name a file, or translate in one process.",
        )
