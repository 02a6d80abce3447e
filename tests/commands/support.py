"""What the tests of commands share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparsenmt.native.kernels import kernels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of the output; every one must be ended by a line end."""
        text = self.out.decode("utf-8")
        assert not text or text.endswith("\n")
        return text.split("\n")[:-1]


Run = Callable[..., Result]
Plugin = Callable[..., str]


@dataclass(frozen=True)
class Diagram:
    """A diagram of a picture: its title, the titles of its axes, the points of each series, and texts in cells."""

    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    cells: list[str] = field(default_factory=list)


def diagrams(figure: Figure) -> list[Diagram]:
    """Read the diagrams of a figure: curves, and bars, whose points are their numbers and heights."""
    found = []
    for axis in figure.axes:
        if axis.get_label() == "<colorbar>":
            continue
        lines = {
            str(line.get_label()): [(x, y) for x, y in np.asarray(line.get_xydata()).tolist()] for line in axis.lines
        }
        bars = {
            str(each.get_label()): [(float(i), float(bar.get_height())) for i, bar in enumerate(each)]
            for each in axis.containers
        }
        named = {name: points for name, points in (lines | bars).items() if not name.startswith("_")}
        cells = [text.get_text() for text in axis.texts]
        found.append(Diagram(axis.get_title(), axis.get_xlabel(), axis.get_ylabel(), named, cells))
    return found


def program(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Start the program in a process of its own, which has no kernels to build: that would be said on stderr."""
    kernels()
    return python("-m", "sparsenmt", *arguments, **options)


def python(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Start Python in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, env=environment, **{**streams, **options})  # type: ignore[call-overload,no-any-return]
