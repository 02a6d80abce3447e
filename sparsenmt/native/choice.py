"""The choice between a compiled kernel and PyTorch's operators: read from a table of measured ratios.

A kernel that is right may still be slow: for other vectors than it was written for, it takes many times PyTorch's
time. So `choices.json`, a part of the program that `tools/kernel_choices.py` writes, has for every instruction set and
for one and two threads the kernel's time over PyTorch's in classes of problems. A class is named by a kernel, words
such as a dtype, and sizes: ``attention 64 1 30``. A problem belongs to the class of its kernel and words with the
nearest sizes: the least sum of absolute logarithms of their ratios. More threads count as two. In a class without a
measurement PyTorch's operators are used. Nothing is measured or written here, and asking changes nothing.
SPARSENMT_NATIVE=always uses every kernel that is right.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sparsenmt.errors import UserError
from sparsenmt.native.library import ALWAYS, SWITCH
from sparsenmt.storage.files import read_json
from sparsenmt.storage.records import typed

VERSION = 1
TABLE = Path(__file__).with_name("choices.json")
CLEARLY = 0.95  # of PyTorch's time, at most: closer to 1, noise would decide
AS_FAST = 1.05  # of PyTorch's time: where the kernel is wanted for its memory
MOST_THREADS = 2  # that are measured
_HINT = "Install sparsenmt again."


@dataclass(frozen=True)
class ChoiceTable:
    """The table.

    Args:
        measured: instruction set -> processor, PyTorch and date of the measurement.
        same: instruction set that was not measured -> the one whose ratios it takes.
        columns: instruction set and number of threads of each ratio of a class.
        ratios: class -> the kernel's time over PyTorch's; None: not measured, as the kernel does not exist.
    """

    version: int
    measured: dict[str, dict[str, str]]
    same: dict[str, str]
    columns: list[str]
    ratios: dict[str, list[float | None]]

    @functools.cached_property
    def classes(self) -> dict[tuple[str, ...], list[tuple[tuple[int, ...], list[float | None]]]]:
        """Words of classes -> (sizes of a class, its ratios by column) of each class with these words."""
        found: dict[tuple[str, ...], list[tuple[tuple[int, ...], list[float | None]]]] = {}
        for name, ratios in self.ratios.items():
            words, sizes = class_parts(name)
            found.setdefault(words, []).append((sizes, ratios))
        return found


def class_name(kind: str, *sizes: object) -> str:
    """The name of a class: a kernel's name, then dtypes, words and sizes."""
    return " ".join(str(each).removeprefix("torch.") for each in (kind, *sizes))


def class_parts(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words and the sizes in a class's name."""
    parts = name.split(" ")
    return tuple(each for each in parts if not each.isdigit()), tuple(int(each) for each in parts if each.isdigit())


@functools.cache
def read_table() -> ChoiceTable:
    """Read the table, once in a process.

    Raises:
        UserError: it is damaged or of another version.
    """
    record = read_json(TABLE, hint=_HINT)
    version = record.get("version") if isinstance(record, dict) else None
    if version != VERSION:
        raise UserError(
            f"the table of kernel choices has version {version}, and this program reads version {VERSION}",
            where=str(TABLE),
            hint=_HINT,
        )
    return typed(record, ChoiceTable, TABLE, hint=_HINT)


def table_digest() -> str:
    """The hash of the table's file."""
    return hashlib.sha256(TABLE.read_bytes()).hexdigest()[:16]


class Choices:
    """The measured ratios for an instruction set.

    Args:
        instruction_set: its name; of one that was not measured, PyTorch's operators are preferred.

    Raises:
        UserError: the table is damaged or of another version.
    """

    def __init__(self, instruction_set: str) -> None:
        self._table = read_table()
        self._set = self._table.same.get(instruction_set, instruction_set)
        self._known: dict[tuple[Any, ...], float] = {}  # (threads, kind, sizes) -> ratio

    def __deepcopy__(self, memo: object) -> Choices:
        """Return the same object: the table is read once."""
        return self

    def prefers(self, kind: str, *sizes: object) -> bool:
        """Return True if a kernel is clearly faster than PyTorch in a problem's class, or SPARSENMT_NATIVE=always."""
        return os.environ.get(SWITCH) == ALWAYS or self.ratio(kind, *sizes) < CLEARLY

    def ratio(self, kind: str, *sizes: object) -> float:
        """The kernel's time over PyTorch's in the class of a problem; infinity if it was not measured.

        Args:
            kind: the kernel's name.
            sizes: dtypes, words and sizes of the problem.

        Raises:
            ValueError: the table has no class of this kernel with as many sizes.
        """
        threads = min(torch.get_num_threads(), MOST_THREADS)
        problem = threads, kind, *sizes
        if problem not in self._known:
            self._known[problem] = self._nearest(threads, class_name(kind, *sizes))
        return self._known[problem]

    def _nearest(self, threads: int, name: str) -> float:
        """`ratio` from the table; ``threads``: a number that is measured; ``name``: `class_name` of the problem."""
        words, numbers = class_parts(name)
        rows = [each for each in self._table.classes.get(words, ()) if len(each[0]) == len(numbers)]
        if not rows:
            raise ValueError(f"the table of kernel choices has no class '{name}'")
        column = f"{self._set} {threads}"
        if column not in self._table.columns:
            return math.inf
        place = self._table.columns.index(column)
        measured = [(each, ratios[place]) for each, ratios in rows if ratios[place] is not None]
        if not measured:
            return math.inf
        _, ratio = min(measured, key=lambda each: _distance(each[0], numbers))
        return math.inf if ratio is None else ratio


def _distance(measured: tuple[int, ...], wanted: tuple[int, ...]) -> float:
    """The sum of the absolute logarithms of the ratios of sizes."""
    return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in zip(measured, wanted, strict=True))
