"""The built libraries of kernels: the best that this processor has, used only if its results are right.

They are built when the program is installed (`build.py`). If none can be used, PyTorch's operators are, and a warning
says why. SPARSENMT_NATIVE in the environment: 0 turns the kernels off, ``always`` uses them without the table of
choices. SPARSENMT_NATIVE_ISA names the best instruction set to be used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from sparsenmt.errors import printable
from sparsenmt.native.address import allocating
from sparsenmt.native.build import COMMAND
from sparsenmt.native.instruction_sets import sets_of_machine, usable_sets
from sparsenmt.native.sources import SourceFiles, is_intact, kernel_folder
from sparsenmt.process.progress import notify

SWITCH, ALWAYS = "SPARSENMT_NATIVE", "always"
Kernels = TypeVar("Kernels")


def wanted() -> bool:
    """Return True unless compiled kernels are turned off."""
    return os.name == "posix" and os.environ.get(SWITCH, "1") != "0"


@dataclass(frozen=True)
class Origin:
    """The file that a library was loaded from, and the reasons why no better one was.

    Args:
        path: the file; None: there is none, and PyTorch's operators are used.
        refused: "FILE: REASON" for better files that are not used.
    """

    path: Path | None = None
    refused: tuple[str, ...] = ()


origins: dict[str, Origin] = {}
"""The origin of every library that this process has looked for, by its name."""


class LoadedLibrary:
    """The functions of a library that was loaded; copies of an object that has them share the library.

    Args:
        path: the library's file.
        functions, allocating_functions: name -> types of the arguments (`ctypes`), of functions without a result, and
            of those that return 1 without enough memory, which raises MemoryError.

    Attributes:
        library: the functions, by name.
        cores: threads of every call; None: as many as its work is worth.
        least_work: work (in a unit that the calls choose) from which on one more thread pays.
    """

    cores: int | None = None
    least_work = 1 << 14

    def __init__(
        self,
        path: Path,
        functions: Mapping[str, Sequence[Any]],
        allocating_functions: Mapping[str, Sequence[Any]],
    ) -> None:
        self.library = ctypes.CDLL(str(path))
        for name, arguments in {**functions, **allocating_functions}.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, None
            if name in allocating_functions:
                allocating(function)

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def _threads(self, work: int) -> int:
        """The number of threads of a call."""
        worth = max(1, min(torch.get_num_threads(), work // self.least_work))
        return worth if self.cores is None else self.cores


@dataclass(frozen=True)
class Library(Generic[Kernels]):
    """A shared library.

    Args:
        files: its sources.
        load: path of a built library -> its functions. OSError or AttributeError: it is not used.
        error: its functions -> their largest deviation from PyTorch, over the tolerance; above 1: it is not used.
    """

    files: SourceFiles
    load: Callable[[Path], Kernels]
    error: Callable[[Kernels], float]

    def find(self) -> Kernels | None:
        """Load the best library that gives right results; None if there is none.

        Raises:
            UserError: SPARSENMT_NATIVE_ISA names no instruction set, or the table of choices cannot be read.
        """
        refused: list[str] = []
        for path in candidates(self.files):
            found, reason = self._checked(path)
            if found is not None:
                origins[self.files.name] = Origin(path, tuple(refused))
                return found
            refused.append(f"{path}: {reason}")
            notify(f"warning: {path}: not used: {reason}", once=True)
        origins[self.files.name] = Origin(None, tuple(refused))
        notify(f"warning: compiled kernels are not in use: {self._lack()}", once=True)
        return None

    def _checked(self, path: Path) -> tuple[Kernels | None, str]:
        """Load and check a library: its functions, or None and the reason."""
        try:
            if not is_intact(path):
                return None, f"damaged, its contents changed after it was built; remove it and run {COMMAND}"
            found = self.load(path)
            agrees = self.error(found) <= 1
        except (OSError, AttributeError) as error:  # no library, or a symbol is missing
            return None, f"it cannot be loaded: {printable(str(error).removeprefix(f'{path}: '))}"
        return (found, "") if agrees else (None, "its results differ from PyTorch's")

    def _lack(self) -> str:
        """A text: the reason why no library can be used, and what to do."""
        instead = "PyTorch's operators are used instead, which are slower"
        if not usable_sets():
            needed = " or ".join(each.name for each in sets_of_machine())
            return f"this processor lacks {needed or 'every known instruction set'}. {instead}."
        folder = kernel_folder()
        why = f"{folder} has none for this processor"
        if self.files.others():
            why = f"those in {folder} are built from other sources"
        elif any(candidates(self.files)):
            why = "the lines above say why"
        return f"{why}. {instead}. To build them, run {COMMAND}; SPARSENMT_NATIVE=0 turns them off."


def candidates(files: SourceFiles) -> Iterator[Path]:
    """The built libraries that this processor can run, the best first.

    Raises:
        UserError: SPARSENMT_NATIVE_ISA names no instruction set.
    """
    for each in usable_sets():
        yield from files.built(each)
