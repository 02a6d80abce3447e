"""Searches side by side: Python threads, each with its own batches and its share of the CPU threads.

Compiled kernels release the interpreter's lock. So while one search is in a kernel, the Python code between the kernels
of another search runs, and kernels on fewer threads wait less for each other.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from sparsenmt.process.runtime import share_heap

T = TypeVar("T")
R = TypeVar("R")
_Message = tuple[R | None, BaseException | None, bool]  # a result, an error, True: the thread has ended


class _CancelledError(SystemExit):
    """Raised, at any line, in a thread whose results are not needed any more; `threading` reports no exits."""


def deal(items: Sequence[T], shares: int) -> list[list[T]]:
    """Divide items, the largest first, into shares of about the same size: there and back, as in 0 1 1 0 0 1."""
    dealt: list[list[T]] = [[] for _ in range(shares)]
    for i, item in enumerate(items):
        turn, place = divmod(i, shares)
        dealt[place if turn % 2 == 0 else shares - 1 - place].append(item)
    return dealt


def divide_threads(threads: int, count: int) -> list[int]:
    """Divide CPU threads among Python threads, of which each has one at least; the first ones have one more."""
    return [max(1, threads // count + (i < threads % count)) for i in range(count)]


def run_side_by_side(items: Sequence[T], count: int, work: Callable[[Iterable[T]], Iterable[R]]) -> Iterator[R]:
    """Run a function on shares of items in several threads; yield its results as they come.

    Which items a thread gets depends on their order alone.

    Args:
        items: the largest first.
        count: of threads; with 1 the items stay in this thread.
        work: yields the results of some items.

    Raises:
        BaseException: the first that one of the threads raises; the others are cancelled.
    """
    count = min(count, len(items))
    if count <= 1:
        yield from work(items)
        return
    share_heap()
    threads = torch.get_num_threads()
    found: queue.SimpleQueue[_Message[R]] = queue.SimpleQueue()
    lanes = [
        threading.Thread(target=_run, args=(share, work, own, found), daemon=True)
        for share, own in zip(deal(items, count), divide_threads(threads, count), strict=True)
    ]
    try:
        for lane in lanes:
            lane.start()
        running = count
        while running:
            result, error, ended = found.get()
            if error is not None:
                raise error
            if ended:
                running -= 1
            else:
                yield result  # type: ignore[misc]  # the result may be None itself
    finally:
        for lane in lanes:
            while lane.is_alive():  # it ends at its next line of Python
                number, exit_ = ctypes.c_ulong(lane.ident or 0), ctypes.py_object(_CancelledError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, exit_)
                lane.join(timeout=1)
        torch.set_num_threads(threads)  # those of libraries are the process's


def _run(
    items: Iterable[T], work: Callable[[Iterable[T]], Iterable[R]], threads: int, found: queue.SimpleQueue[_Message[R]]
) -> None:
    """The body of a thread."""
    try:
        torch.set_num_threads(threads)
        for result in work(items):
            found.put((result, None, False))
        found.put((None, None, True))
    except _CancelledError:
        pass
    except BaseException as error:
        found.put((None, error, True))
