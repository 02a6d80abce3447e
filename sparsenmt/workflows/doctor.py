"""A look at this machine: which compiled kernels are in use and why, whether they are right, and how fast they are."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sparsenmt import __version__
from sparsenmt.errors import UserError
from sparsenmt.native import gradients
from sparsenmt.native import kernels as decoding
from sparsenmt.native.build import COMMAND, find_compiler
from sparsenmt.native.choice import CLEARLY, MOST_THREADS, Choices, class_name, read_table
from sparsenmt.native.instruction_sets import CAP, cap, sets_of_machine, usable_sets
from sparsenmt.native.library import SWITCH, Origin, origins, wanted
from sparsenmt.native.numerics import processor_name
from sparsenmt.native.sources import kernel_folder
from sparsenmt.process.devices import use_threads
from sparsenmt.process.progress import progress_over
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.sparsity.simplex import native as simplex
from sparsenmt.workflows.kernel_trials import every_class, measured_ratio

_SIZE, _INNER, _HEADS, _WIDE, _VOCABULARY = 512, 64, 8, 2048, 32000  # of a base model
_SECONDS = 0.05  # of a measurement
_NOISE = 1.1  # a ratio is clearly on the other side, if it is by more than this


@dataclass(frozen=True)
class Examined:
    """A library of kernels.

    Args:
        deviation: the largest one from PyTorch, over the allowed one; None: there is no library.
        gains: kernel -> PyTorch's time over the kernel's, for a base model, as the table of choices has it.
    """

    name: str
    used_for: str
    deviation: float | None
    gains: dict[str, float]

    @property
    def origin(self) -> Origin:
        """The file of the library."""
        return origins.get(self.name, Origin())


def examine(threads: int | None, *, measure: bool = False) -> Report:
    """Load every library, compare it with PyTorch, and show what the table of choices says of it.

    Args:
        threads: None: all cores.
        measure: measure every class of the table on this machine, too, which takes minutes.

    Raises:
        UserError: SPARSENMT_NATIVE_ISA names no instruction set, or the table cannot be read.
    """
    use_threads(threads)
    cap()  # refused before anything is loaded
    examined = [_decoding(), _training(), _entmax()]
    libraries = tuple(
        (each.name, each.used_for, each.deviation, str(each.origin.path or "PyTorch's operators")) for each in examined
    )
    gains = tuple((each.name, name, gain) for each in examined for name, gain in each.gains.items())
    tables = [
        Table(
            "libraries",
            "Compiled kernels",
            columns("text library used_for", "number deviation", "text file"),
            libraries,
        ),
        Table(
            "gains",
            "Speed by the table of choices: PyTorch's time over the kernel's",
            columns("text library kernel", "number gain"),
            gains,
        ),
    ]
    notes = list(_notes(examined))
    if measure:
        rows = _measured()
        other = [row for row in rows if row[3] == "other"]
        notes.append(f"choices: {len(other)} of {len(rows)} classes are measured on the other side of {CLEARLY} here")
        described = columns("text class", "number table measured", "text choice")
        tables.append(Table("choices", "A kernel's time over PyTorch's", described, tuple(rows)))
    settings = {"version": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    return Report("doctor", tuple(tables), tuple(notes), settings)


def _measured() -> list[tuple[str, float | None, float, str]]:
    """Measure every class: name, the table's ratio, the one here, and ``other`` if another choice is better here."""
    table = read_table()
    best = next((each.name for each in usable_sets()), "")
    column = f"{table.same.get(best, best)} {min(torch.get_num_threads(), MOST_THREADS)}"
    place = table.columns.index(column) if column in table.columns else None
    rows = []
    for name, trials in progress_over(list(every_class()), "measure"):
        ratios = table.ratios.get(name)
        known, found = None if ratios is None or place is None else ratios[place], measured_ratio(trials, _SECONDS)
        prefers = known is not None and known < CLEARLY
        other = found > CLEARLY * _NOISE if prefers else found < CLEARLY / _NOISE
        rows.append((name, known, found, "other" if other else "same"))
    return rows


def check_examined(report: Report) -> None:
    """Check that a machine has every library, unless they are turned off.

    Raises:
        UserError: it has not.
    """
    rows = zip(report.tables[0].column("library"), report.tables[0].column("deviation"), strict=True)
    missing = [str(name) for name, deviation in rows if deviation is None]
    if missing and wanted():
        raise UserError(
            f"compiled kernels are not in use: {', '.join(missing)}",
            where="sparsenmt doctor",
            hint=f"The lines above say why. Install a wheel of this platform, or GCC, and run {COMMAND}.",
        )


def _gains(choices: Choices, *classes: tuple[object, ...]) -> dict[str, float]:
    """PyTorch's time over the kernel's in classes that were measured."""
    ratios = {class_name(str(kind), *sizes): choices.ratio(str(kind), *sizes) for kind, *sizes in classes}
    return {name: 1 / ratio for name, ratio in ratios.items() if ratio < math.inf}


def _decoding() -> Examined:
    found = decoding.kernels()
    if found is None:
        return Examined("decoding", "searches, encoders", None, {})
    classes: list[tuple[object, ...]] = []
    for dtype in sorted(found.layout.dtypes, key=str):
        classes += [("product", dtype, _SIZE, _SIZE), ("decoder step", dtype, _SIZE, _WIDE, _HEADS)]
    classes += [("attention", _INNER, 1, 30), ("best tokens", _VOCABULARY)]
    return Examined("decoding", "searches, encoders", decoding.error(found), _gains(found.choice, *classes))


def _training() -> Examined:
    found = gradients.gradient_kernels()
    if found is None:
        return Examined("training", "loss, attention, dropout", None, {})
    classes: list[tuple[object, ...]] = []
    for dtype in (torch.float32, torch.bfloat16):
        classes += [("loss", dtype, _VOCABULARY), ("trained attention", dtype, _INNER, 30), ("dropout", dtype)]
    return Examined("training", "loss, attention, dropout", gradients.error(found), _gains(found.choice, *classes))


def _entmax() -> Examined:
    found = simplex.native(torch.zeros(1))
    if found is None:
        return Examined("simplex", "entmax", None, {})
    gains = _gains(found.choice, ("entmax forward", 1.5, 30), ("entmax backward", 1.5, 30))
    return Examined("simplex", "entmax", simplex.error(found) / simplex.TOLERANCE, gains)


def _notes(examined: list[Examined]) -> Iterator[str]:
    threads = torch.get_num_threads()
    yield f"sparsenmt {__version__}, Python {platform.python_version()}, torch {torch.__version__}, {threads} threads"
    known, usable = [each.name for each in sets_of_machine()], [each.name for each in usable_sets()]
    limit = f", limited by {CAP}={cap()}" if cap() else ""
    yield f"instruction sets: {', '.join(usable) or 'none'} of {', '.join(known) or 'none'}{limit}"
    yield f"libraries: {len(list(kernel_folder().glob('*.so')))} in {kernel_folder()}"
    try:
        yield f"C++ compiler: {' '.join(find_compiler())}"
    except UserError as error:
        yield f"C++ compiler: none: {error.message}"
    table, best = read_table(), next(iter(usable), "")
    source = table.same.get(best, best)
    made = table.measured.get(source)
    yield (
        f"choices: those of {source}, measured on {made['processor']}, torch {made['torch']}, {made['date']}"
        if made
        else (f"choices: PyTorch's operators, as nothing was measured for {best or 'this processor'}")
    )
    yield f"this processor: {processor_name()}"
    if not wanted():
        yield f"kernels are turned off: {SWITCH}={os.environ.get(SWITCH)}"
    for each in examined:
        yield from (f"not used: {reason}" for reason in each.origin.refused)
