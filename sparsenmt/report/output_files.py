"""The files that a report is written to: checked before any work, written complete or not at all."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from sparsenmt.arguments import strings_to_paths
from sparsenmt.assemble.model_directory import MANIFEST, METRICS_FILE, RECIPE, WEIGHTS
from sparsenmt.errors import UserError
from sparsenmt.report.plots import check_plot, save
from sparsenmt.report.tables import Report, write_report
from sparsenmt.storage.files import hidden_path, partial_path, write_text

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure

_MODEL_PARTS = {MANIFEST, RECIPE, WEIGHTS, METRICS_FILE, "tokenizers", "features", "checkpoints", "selector"}


@dataclass(frozen=True)
class WrittenTable:
    """A table as a terminal shows it, and the files that it was written to."""

    text: str = field(repr=False)
    files: list[Path]


@dataclass(frozen=True)
class ReportFiles:
    """The files to which a report is written; None: not written.

    Args:
        text: what the terminal shows.
    """

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None
    text: Path | None = None

    def __post_init__(self) -> None:
        strings_to_paths(self)

    @classmethod
    def in_folder(cls, folder: Path, name: str, plot: Path | None = None) -> ReportFiles:
        """Return all four files, of one name; ``plot``: in place of the one in the folder, if matplotlib is there."""
        if plot is None and importlib.util.find_spec("matplotlib") is not None:
            plot = folder / f"{name}.png"
        return cls(folder / f"{name}.json", folder / f"{name}.csv", plot, folder / f"{name}.txt")

    def check(self, inputs: Sequence[Path | None] = (), others: Mapping[str, Path | None] | None = None) -> None:
        """Raise UserError for files that cannot be written, or would replace others, or if plots cannot be drawn.

        Args:
            others: option -> further file that the command writes.
        """
        check_outputs({"--json": self.json, "--csv": self.csv, "--plot": self.plot, **(others or {})}, inputs)
        if self.plot is not None:
            check_plot(self.plot)

    def write(self, report: Report, draw: Callable[[], Figure] | None = None, shown: str | None = None) -> list[Path]:
        """Write the report, the figure that ``draw`` makes, and the text ``shown``; returns the files."""
        written = write_report(report, json=self.json, csv=self.csv)
        if self.text is not None and shown is not None:
            write_text(self.text, f"{shown}\n")
            written.append(self.text)
        if self.plot is not None and draw is not None:
            save(draw(), self.plot)
            written.append(self.plot)
        return written


def check_outputs(files: Mapping[str, Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Raise UserError for output files that cannot be written, or would replace an input, one another or a model.

    Args:
        files: option -> the file that it names.
    """
    named = {option: path for option, path in files.items() if path is not None}
    for option, path in named.items():
        if path.is_dir():
            raise UserError("this is a directory", where=str(path), hint=f"Name a file as {option}.")
        # /dev/stdout may be a link to a file: a result would replace the link, for all programs if root runs this.
        if path.absolute().parent == Path("/dev") and path.is_file():
            raise UserError("a device cannot be replaced by a file", where=str(path), hint=f"Name a file as {option}.")
        if not path.exists() and not path.resolve().parent.is_dir():
            folder = path.parent
            raise UserError("there is no such directory", where=str(folder), hint="Create it first.", missing=folder)
    for option, path in named.items():
        _check_no_model(option, path)
        for other in inputs:
            if other is not None:
                _check_apart(option, path, other)
    for (option, path), (other_option, other) in combinations(sorted(named.items()), 2):
        _check_apart(other_option, other, path)
        _check_apart(option, path, other)


def _check_apart(option: str, path: Path, other: Path) -> None:
    """Refuse an output if ``other`` is the file or has one of the hidden names that are replaced with it."""
    if _is_same(path, other):
        raise UserError(f"{option} names a file that another option names", where=str(path), hint="Name another file.")
    if any(_is_same(hidden, other) for hidden in _hidden_names(path)):
        raise UserError(
            f"{option} needs the temporary name {other}, which another option names",
            where=str(path),
            hint="Name another file.",
        )


def _hidden_names(path: Path) -> set[Path]:
    """Return the names that are removed or written while ``path`` is; those of a link may be its target's."""
    found: set[Path] = set()
    for each in (path, path.resolve()):
        journal = hidden_path(each, "journal")
        found |= {partial_path(each), journal, partial_path(journal), hidden_path(each, "old")}
    return found


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.resolve() == other.resolve() or path.samefile(other)
    except OSError:  # one of them does not exist
        return False


def _check_no_model(option: str, path: Path) -> None:
    """Refuse an output that is a part of a model directory; a report beside the parts is none."""
    for each in (path.parent.resolve() / path.name, path.resolve()):
        for directory in each.parents:
            is_model = (directory / MANIFEST).is_file() and (directory / RECIPE).is_file()
            if is_model and each.relative_to(directory).parts[0] in _MODEL_PARTS:
                raise UserError(
                    f"{option} names a part of the model in {directory}", where=str(path), hint="Name another file."
                )
