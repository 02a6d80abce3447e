"""A look at this machine: which compiled kernels are in use and why, whether they are right, and how fast they are."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from sparsenmt import __version__
from sparsenmt.errors import UserError
from sparsenmt.native import build, cache, gradients, training_trials
from sparsenmt.native import kernels as decoding
from sparsenmt.native.compiler import find_compiler
from sparsenmt.native.instruction_sets import CAP, cap, sets_of_machine, usable_sets
from sparsenmt.native.sources import SHIPPED
from sparsenmt.process.devices import use_threads
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.sparsity.simplex import native as simplex

_WAYS = {"wheel": "the wheel", "built": "built on this machine", "none": "PyTorch's operators"}
_SIZE, _INNER, _HEADS, _WIDE, _VOCABULARY = 512, 64, 8, 2048, 32000  # of a base model


@dataclass(frozen=True)
class Examined:
    """A library of kernels.

    Args:
        deviation: the largest one from PyTorch, over the allowed one; None: there is no library.
        gains: kernel -> PyTorch's time over the kernel's.
    """

    name: str
    used_for: str
    deviation: float | None
    gains: dict[str, float]

    @property
    def origin(self) -> build.Origin:
        """The place that the library is from."""
        return build.origins.get(self.name, build.Origin("none", None))


def examine(threads: int | None) -> Report:
    """Load every library, compare it with PyTorch, and measure a few kernels; this takes some seconds.

    Args:
        threads: None: all cores.

    Raises:
        UserError: SPARSENMT_NATIVE_ISA names no instruction set.
    """
    use_threads(threads)
    cap()  # refused before anything is built
    examined = [_decoding(), _training(), _entmax()]
    libraries = tuple(
        (each.name, each.used_for, _WAYS[each.origin.way], each.deviation, str(each.origin.path or ""))
        for each in examined
    )
    gains = tuple((each.name, name, gain) for each in examined for name, gain in each.gains.items())
    tables = (
        Table(
            "libraries",
            "Compiled kernels",
            columns("text library used_for from", "number deviation", "text file"),
            libraries,
        ),
        Table("gains", "Speed: PyTorch's time over the kernel's", columns("text library kernel", "number gain"), gains),
    )
    settings = {"version": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    return Report("doctor", tables, tuple(_notes(examined)), settings)


def check_examined(report: Report) -> None:
    """Check that a machine has every library, unless they are turned off.

    Raises:
        UserError: it has not.
    """
    ways = report.tables[0].column("from")
    missing = [
        str(name) for name, way in zip(report.tables[0].column("library"), ways, strict=True) if way == _WAYS["none"]
    ]
    if missing and build.wanted():
        raise UserError(
            f"compiled kernels are not in use: {', '.join(missing)}",
            where="sparsenmt doctor",
            hint="The lines above say why. Install a wheel of this platform, or a C++ compiler.",
        )


def _decoding() -> Examined:
    found = decoding.kernels()
    if found is None:
        return Examined("decoding", "searches, encoders", None, {})
    gains = {}
    for dtype in sorted(found.layout.dtypes, key=str):
        name = str(dtype).removeprefix("torch.")
        gains[f"product {name}"] = _gain(found.ratios("product", dtype, _SIZE, _SIZE))
        gains[f"decoder step {name}"] = _gain(found.ratios("decoder step", dtype, _SIZE, _WIDE, _HEADS))
    gains["attention"] = _gain(found.ratios("attention", _INNER, 1, 30))
    gains["best tokens"] = _gain(found.ratios("best tokens", _VOCABULARY))
    return Examined("decoding", "searches, encoders", decoding.error(found), gains)


def _training() -> Examined:
    found = gradients.gradient_kernels()
    if found is None:
        return Examined("training", "loss, attention, dropout", None, {})
    measured: dict[str, Callable[[torch.dtype], object]] = {
        "loss": lambda dtype: found.faster_loss(torch.empty(1, _VOCABULARY, dtype=dtype)),
        "attention": lambda dtype: found.faster_attention(dtype, _INNER, 30),
        "dropout": found.faster_dropout,
    }
    for dtype in (torch.float32, torch.bfloat16):
        for measure in measured.values():
            measure(dtype)
    gains = {name: 1 / ratio for name, ratio in sorted(found.choice.ratios.items())}
    return Examined("training", "loss, attention, dropout", training_trials.error(found), gains)


def _entmax() -> Examined:
    found = simplex.native(torch.zeros(1))
    if found is None:
        return Examined("simplex", "entmax", None, {})
    found.faster("forward", 30, 1.5)
    found.faster("backward", 30, 1.5)
    gains = {name: 1 / ratio for name, ratio in sorted(found.choice.ratios.items())}
    return Examined("simplex", "entmax", simplex.error(found) / simplex.TOLERANCE, gains)


def _gain(ratios: list[float]) -> float:
    return 1 / max(ratios)


def _notes(examined: list[Examined]) -> Iterator[str]:
    threads = torch.get_num_threads()
    yield f"sparsenmt {__version__}, Python {platform.python_version()}, torch {torch.__version__}, {threads} threads"
    known, usable = [each.name for each in sets_of_machine()], [each.name for each in usable_sets()]
    limit = f", limited by {CAP}={cap()}" if cap() else ""
    yield f"instruction sets: {', '.join(usable) or 'none'} of {', '.join(known) or 'none'}{limit}"
    shipped = len(list(SHIPPED.glob("*.so")))
    yield f"libraries of the wheel: {shipped} in {SHIPPED}" if shipped else "libraries of the wheel: none"
    compiler = find_compiler()
    yield f"C++ compiler: {' '.join(compiler.words) if compiler else 'none'}"
    try:
        yield f"folder of kernels that are built, and of measurements: {cache.folder()}"
    except (UserError, OSError) as error:
        yield f"folder of kernels: not usable: {error}"
    if not build.wanted():
        yield f"kernels are turned off: {build.SWITCH}={os.environ.get(build.SWITCH)}"
    for each in examined:
        yield from (f"not used: {reason}" for reason in each.origin.refused)
        if each.origin.lost:
            yield f"warning: {each.origin.lost}"
