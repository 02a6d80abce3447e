"""A look at this machine: which compiled kernels are in use and why, whether they are right, and how fast they are."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator

import torch

from sparsenmt import __version__
from sparsenmt.engine.numerics import processor_name
from sparsenmt.errors import UserError
from sparsenmt.native import gradients
from sparsenmt.native import kernels as decoding
from sparsenmt.native.build import COMMAND, find_compiler
from sparsenmt.native.choice import CLEARLY, Choices, read_table
from sparsenmt.native.instruction_sets import CAP, cap, sets_of_machine, usable_sets
from sparsenmt.native.library import SWITCH, Origin, origins, wanted
from sparsenmt.native.sources import kernel_folder
from sparsenmt.process.devices import use_threads
from sparsenmt.process.progress import progress_over
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.sparsity.simplex import native as simplex
from sparsenmt.workflows.kernel_trials import every_class, measured_ratio

_USED_FOR = {"decoding": "searches, encoders", "training": "loss, attention, dropout", "simplex": "entmax"}
_CLASSES = {
    "decoding": (
        *(f"product {dtype} 512 512" for dtype in ("bfloat16", "float32", "int8")),
        *(f"decoder step {dtype} 512 2048 8" for dtype in ("bfloat16", "float32", "int8")),
        *("attention 64 1 30", "best tokens 32000"),
    ),
    "training": tuple(
        f"{kind} {dtype}{size}"
        for dtype in ("float32", "bfloat16")
        for kind, size in (("loss", " 32000"), ("trained attention", " 64 30"), ("dropout", ""))
    ),
    "simplex": ("entmax forward 1.5 30", "entmax backward 1.5 30"),
}
"""The classes of a base model that are shown."""
_SECONDS = 0.05  # of a measurement
_NOISE = 1.1  # a ratio is clearly on the other side, if it is by more than this


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
    deviations, choices = _deviations(), Choices(_best_set())
    used = {name: origins.get(name, Origin()) for name in deviations}
    libraries = [
        (name, _USED_FOR[name], deviation, str(used[name].path or "PyTorch's operators"))
        for name, deviation in deviations.items()
    ]
    gains = [
        (name, each, 1 / choices.ratio(each))
        for name, deviation in deviations.items()
        for each in _CLASSES[name]
        if deviation is not None and choices.ratio(each) < math.inf
    ]
    described = columns("text library used_for", "number deviation", "text file")
    tables = [
        Table("libraries", "Compiled kernels", described, tuple(libraries)),
        Table(
            "gains",
            "Speed by the table of choices: PyTorch's time over the kernel's",
            columns("text library kernel", "number gain"),
            tuple(gains),
        ),
    ]
    notes = [*_notes(), *(f"not used: {reason}" for each in used.values() for reason in each.refused)]
    if measure:
        rows = _measured(choices)
        other = [row for row in rows if row[3] == "other"]
        notes.append(f"choices: {len(other)} of {len(rows)} classes are measured on the other side of {CLEARLY} here")
        described = columns("text class", "number table measured", "text choice")
        tables.append(Table("choices", "A kernel's time over PyTorch's", described, tuple(rows)))
    settings = {"version": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    return Report("doctor", tuple(tables), tuple(notes), settings)


def _best_set() -> str:
    return next((each.name for each in usable_sets()), "")


def _deviations() -> dict[str, float | None]:
    """The largest deviation of every library from PyTorch, over the allowed one; None: there is no library."""
    searches, training, entmax = decoding.kernels(), gradients.gradient_kernels(), simplex.native(torch.zeros(1))
    return {
        "decoding": None if searches is None else decoding.error(searches),
        "training": None if training is None else gradients.error(training),
        "simplex": None if entmax is None else simplex.error(entmax) / simplex.TOLERANCE,
    }


def _measured(choices: Choices) -> list[tuple[str, float | None, float, str]]:
    """Measure every class: name, the table's ratio, the one here, and ``other`` if another choice is better here."""
    rows = []
    for name, trials in progress_over(list(every_class()), "measure"):
        known, found = choices.ratio(name), measured_ratio(trials, _SECONDS)
        other = found > CLEARLY * _NOISE if known < CLEARLY else found < CLEARLY / _NOISE
        rows.append((name, None if known == math.inf else known, found, "other" if other else "same"))
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


def _notes() -> Iterator[str]:
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
