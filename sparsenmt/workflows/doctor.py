"""A look at this machine: which compiled kernels are in use and why, whether they are right, and how fast they are."""

from __future__ import annotations

import platform

import torch

from sparsenmt import __version__
from sparsenmt.engine.machine import KernelsHere, check_in_use
from sparsenmt.process.devices import use_threads
from sparsenmt.report.tables import Report, Table, columns

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


def examine(threads: int | None, *, measure: bool = False) -> Report:
    """Load every library, compare it with PyTorch, and show what the table of choices says of it.

    Args:
        threads: None: all cores.
        measure: measure every class of the table on this machine, too, which takes minutes.

    Raises:
        UserError: SPARSENMT_NATIVE_ISA names no instruction set, or the table cannot be read.
    """
    use_threads(threads)
    kernels = KernelsHere()
    libraries = [
        (name, _USED_FOR[name], deviation, str(kernels.origins[name].path or "PyTorch's operators"))
        for name, deviation in kernels.deviations.items()
    ]
    gains = [
        (name, each, gain)
        for name, deviation in kernels.deviations.items()
        for each in _CLASSES[name]
        if deviation is not None and (gain := kernels.gain(each)) is not None
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
    settings = {"version": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    program = f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    refused = [f"not used: {reason}" for each in kernels.origins.values() for reason in each.refused]
    notes = [f"sparsenmt {__version__}, {program}", *kernels.notes(), *refused]
    if measure:
        rows = kernels.measure()
        other = [row for row in rows if row[3] == "other"]
        limit = kernels.limit
        notes.append(f"choices: {len(other)} of {len(rows)} classes are measured on the other side of {limit} here")
        described = columns("text class", "number table measured", "text choice")
        tables.append(Table("choices", "A kernel's time over PyTorch's", described, tuple(rows)))
    return Report("doctor", tuple(tables), tuple(notes), settings)


def check_examined(report: Report) -> None:
    """Raise UserError if a machine lacks a library of kernels, by the report on it, unless they are turned off."""
    libraries = report.tables[0]
    check_in_use(dict(zip(map(str, libraries.column("library")), libraries.column("deviation"), strict=True)))
