"""The files that a report is written to: checked before any work, written complete or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparsenmt.errors import UserError
from sparsenmt.report.plots import check_plot, save
from sparsenmt.report.tables import Report, write_report

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ReportFiles:
    """The files to which a report is written; None: not written."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None

    def check(self, inputs: Sequence[Path | None] = (), others: Mapping[str, Path | None] | None = None) -> None:
        """Raise UserError for files that `check_outputs` refuses, or if plots cannot be drawn.

        Args:
            others: option -> further file that the command writes.
        """
        check_outputs({"--json": self.json, "--csv": self.csv, "--plot": self.plot, **(others or {})}, inputs)
        if self.plot is not None:
            check_plot(self.plot)

    def write(self, report: Report, draw: Callable[[], Figure] | None = None) -> list[Path]:
        """Write the report; ``draw`` makes the figure if a plot is wanted. Returns the files."""
        written = write_report(report, json=self.json, csv=self.csv)
        if self.plot is not None and draw is not None:
            save(draw(), self.plot)
            written.append(self.plot)
        return written


def check_outputs(files: Mapping[str, Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Raise UserError for output files that cannot be written, or would replace an input or one another.

    Args:
        files: option -> the file that it names.
    """
    named = {option: path for option, path in files.items() if path is not None}
    for option, path in named.items():
        if path.is_dir():
            raise UserError("this is a directory", where=str(path), hint=f"Name a file as {option}.")
        if not path.resolve().parent.is_dir():
            raise UserError("there is no such directory", where=str(path.parent), hint="Create it first.")
        others = [*inputs, *(other for before, other in named.items() if before < option)]
        if any(other is not None and path.resolve() == other.resolve() for other in others):
            raise UserError(
                f"{option} names a file that another option names", where=str(path), hint="Name another file."
            )
