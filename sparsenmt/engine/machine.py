"""The compiled kernels on this machine: which are in use and why, whether they are right, and how fast they are."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping

from sparsenmt.engine import entmax_kernel as simplex
from sparsenmt.engine.kernel_trials import every_class, measured_ratio
from sparsenmt.engine.numerics import processor_name
from sparsenmt.errors import UserError
from sparsenmt.native import gradients
from sparsenmt.native import kernels as decoding
from sparsenmt.native.build import COMMAND, find_compiler
from sparsenmt.native.choice import CLEARLY, Choices, read_table
from sparsenmt.native.instruction_sets import CAP, cap, sets_of_machine, usable_sets
from sparsenmt.native.library import SWITCH, Origin, origins, wanted
from sparsenmt.native.sources import kernel_folder
from sparsenmt.process.progress import progress_over

_SECONDS = 0.05  # of a measurement
_NOISE = 1.1  # a ratio that is on the other side of the limit by less than this factor may be there by chance

Measured = tuple[str, float | None, float, str]
"""Class of problems; the kernel's time over PyTorch's by the table (None: not measured), and as measured here; "other"
if the measurement clearly chooses otherwise than the table, otherwise "same"."""


class KernelsHere:
    """The libraries of this machine, loaded and compared with PyTorch, and the table of choices.

    Attributes:
        deviations: name of a library -> its largest deviation from PyTorch, over the allowed one; None: there is none.
        origins: name of a library -> its file, and why others are not used.
        limit: the largest part of PyTorch's time at which a kernel is used.

    Raises:
        UserError: SPARSENMT_NATIVE_ISA names no instruction set, or the table cannot be read.
    """

    def __init__(self) -> None:
        cap()  # refused before anything is loaded
        searches, training, entmax = decoding.kernels(), gradients.gradient_kernels(), simplex.simplex_kernel()
        self.deviations = {
            "decoding": None if searches is None else decoding.error(searches),
            "training": None if training is None else gradients.error(training),
            "simplex": None if entmax is None else simplex.error(entmax),
        }
        self.origins = {name: origins.get(name, Origin()) for name in self.deviations}
        self._choices, self.limit = Choices(_best_set()), CLEARLY

    def gain(self, name: str) -> float | None:
        """PyTorch's time over the kernel's in a class of problems, by the table; None: it was not measured."""
        ratio = self._choices.ratio(name)
        return None if ratio == math.inf else 1 / ratio

    def measure(self) -> list[Measured]:
        """Measure every class of the table, which takes minutes."""
        rows = []
        for name, trials in progress_over(list(every_class()), "measure"):
            known, found = self._choices.ratio(name), measured_ratio(trials, _SECONDS)
            other = found > CLEARLY * _NOISE if known < CLEARLY else found < CLEARLY / _NOISE
            rows.append((name, None if known == math.inf else known, found, "other" if other else "same"))
        return rows

    def notes(self) -> Iterator[str]:
        """Sentences about instruction sets, libraries, compiler, table and processor."""
        known, usable = [each.name for each in sets_of_machine()], [each.name for each in usable_sets()]
        limit = f", limited by {CAP}={cap()}" if cap() else ""
        yield f"instruction sets: {', '.join(usable) or 'none'} of {', '.join(known) or 'none'}{limit}"
        yield f"libraries: {len(list(kernel_folder().glob('*.so')))} in {kernel_folder()}"
        try:
            yield f"C++ compiler: {' '.join(find_compiler())}"
        except UserError as error:
            yield f"C++ compiler: none: {error.message}"
        table, best = read_table(), _best_set()
        source = table.same.get(best, best)
        made = table.measured.get(source)
        if made is None:
            yield f"choices: PyTorch's operators, as nothing was measured for {best or 'this processor'}"
        else:
            yield f"choices: those of {source}, measured on {made['processor']}, torch {made['torch']}, {made['date']}"
        yield f"this processor: {processor_name()}"
        if not wanted():
            yield f"kernels are turned off: {SWITCH}={os.environ.get(SWITCH)}"


def check_in_use(libraries: Mapping[str, object]) -> None:
    """Check that there is every library, unless they are turned off.

    Args:
        libraries: name -> deviation; None: there is no library.

    Raises:
        UserError: there is not.
    """
    missing = [name for name, deviation in libraries.items() if deviation is None]
    if missing and wanted():
        raise UserError(
            f"compiled kernels are not in use: {', '.join(missing)}",
            where="sparsenmt doctor",
            hint=f"The lines above say why. Install a wheel of this platform, or GCC, and run {COMMAND}.",
        )


def _best_set() -> str:
    """The name of the best instruction set that is used; empty if there is none."""
    return next((each.name for each in usable_sets()), "")
