"""Draw every report of trained models, and put all pictures into one sheet, to be looked at.

python -m tools.plot_gallery runs/demo/model runs/demo/l0 --output gallery.png

Reports that fit none of the models (gates, learned alphas, depths) are named when the sheet is written. Without --input
the models read `data.test` of the first one's recipe.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.cli import run
from sparsenmt.command import REPORTS
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.report.plots import check_plot, save
from sparsenmt.workflows.evaluation.reference_texts import TestText, evaluation_text

if TYPE_CHECKING:  # matplotlib is an optional package
    from matplotlib.figure import Figure

_LINES = 200
_SENTENCES = {"annotate": 3, "maps": 2, "ablate-heads": 60}
"""Report -> lines that it reads, where those of all reports are too many for a picture or take long."""
_TRANSLATING = {"ablate-heads", "by-length"}
_WIDTH, _NAME, _DPI = 36.0, 0.4, 150  # of the sheet, and above each picture, in inches; pixels an inch
_APART = ("--apart", "--site", "encoder_self")


class Gallery:
    """The pictures of a few models on one text, in a folder; ``refused``: picture -> why there is none."""

    def __init__(self, folder: Path, models: Sequence[Path], source: Path, reference: Path, tags: Path | None) -> None:
        self.folder, self.models = folder, models
        self.source, self.reference, self.tags = source, reference, tags
        self.refused: dict[str, str] = {}

    def draw(self) -> list[Path]:
        """Draw all pictures; returns their files."""
        return [path for name, arguments in self._commands() if (path := self._run(name, arguments)) is not None]

    def _commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of every picture, and the command that draws it."""
        models = list(map(str, self.models))
        gated = [str(each) for each in self.models if read_recipe(each).model.memory] or models
        for report in REPORTS:
            own = gated if report in ("pos", "position", "entropy", "layers", "annotate") else models
            text = ["--input", str(self.source)] if report != "alphas" else []
            limit = ["--limit", str(_SENTENCES.get(report, _LINES))] if text else []
            against = ["--reference", str(self.reference)] if report in _TRANSLATING else []
            tags = ["--tags", str(self.tags)] if self.tags is not None and report == "pos" else []
            yield report, ["analyze", report, *own, *text, *limit, *against, *tags]
            if report == "pos" and len(own) > 1:
                yield "pos-one", ["analyze", report, own[0], *text, *limit, *tags]
            if report == "maps":
                yield "maps-apart", ["analyze", report, gated[-1], *text, "--limit", "1", *_APART]
        yield "compare", ["compare", *models, "--source", str(self.source), "--reference", str(self.reference)]
        yield "contrast", ["contrast", *models, *self._contrastive()]
        for number, each in enumerate(
            each for each in self.models if read_recipe(each).model.depth.name == "tied_multi"
        ):
            output = self.folder / f"depths-{number}"
            yield f"depth-table-{number}", ["depth-table", str(each), "--output", str(output), "--beam-size", "1"]

    def _contrastive(self) -> list[str]:
        """Write a wrong translation of every line (`_exchanged`); returns the arguments."""
        pairs = zip(read_lines(self.source), read_lines(self.reference), strict=True)
        lines = [(source, right, _exchanged(right)) for source, right in pairs]
        chosen = [line for line in lines if line[1] != line[2]][:_LINES]
        arguments = []
        for option, texts in zip(("--source", "--correct", "--incorrect"), zip(*chosen, strict=True), strict=True):
            path = self.folder / f"contrast{option}.txt"
            write_lines(path, texts)
            arguments += [option, str(path)]
        return arguments

    def _run(self, name: str, arguments: Sequence[str]) -> Path | None:
        """Run a command that draws a picture; returns its file, or None if the command refuses the models."""
        picture, messages = self.folder / f"{name}.png", io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(messages):
            code = run([*arguments, "--plot", str(picture)])
        if code == 0:
            return picture
        lines = [line for line in messages.getvalue().splitlines() if line.strip()]
        self.refused[name] = next((line for line in lines if line.startswith("error: ")), lines[-1] if lines else "")
        return None


def _exchanged(line: str) -> str:
    """The line with two neighbouring words exchanged, or two characters where there are no spaces between words."""
    parts, space = (list(line), "") if is_unspaced([line]) else (line.split(), " ")
    middle = len(parts) // 2
    return space.join([*parts[: middle - 1], *reversed(parts[middle - 1 : middle + 1]), *parts[middle + 1 :]])


def sheet(pictures: Sequence[Path]) -> Figure:
    """Put pictures into lines, all on one scale unless one is wider than the sheet, each below its name."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    places: list[tuple[str, Any, int, float, float, float]] = []
    lines: list[tuple[float, float]] = []  # the width and the height of what stands in each
    for path in pictures:
        image = imread(path)
        scale = min(1 / _DPI, _WIDTH / image.shape[1])
        height, width = (size * scale for size in image.shape[:2])
        free = (i for i, (used, high) in enumerate(lines) if used + width < _WIDTH + 0.01 and height < high)
        line = next(free, len(lines))
        lines[line:] = lines[line:] or [(0.0, height + _NAME)]
        places.append((path.stem, image, line, lines[line][0], width, height))
        lines[line] = lines[line][0] + width, lines[line][1]
    tops = [sum(high for _, high in lines[:i]) for i in range(len(lines))]
    size = _WIDTH, sum(high for _, high in lines)
    figure = Figure(figsize=size)
    for name, image, line, x, width, height in places:
        y = tops[line] + _NAME
        axis = figure.add_axes((x / size[0], 1 - (y + height) / size[1], width / size[0], height / size[1]))
        axis.imshow(image)
        axis.set_axis_off()
        axis.set_title(name, fontsize=12, fontweight="bold", loc="left", pad=3)
    return figure


@click.command()
@click.argument("models", metavar="MODEL_DIR...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--input", "source", type=click.Path(path_type=Path), help="Source text.  [default: the recipe's test set]"
)
@click.option("--reference", type=click.Path(path_type=Path), help="Its translation.")
@click.option("--tags", type=click.Path(path_type=Path), help="Its part-of-speech tags.  [default: by HanTa]")
@click.option("--picture", "others", type=click.Path(path_type=Path), multiple=True, help="A PNG to add; repeatable.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the single pictures here.")
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The sheet, .png.")
def main(
    models: tuple[Path, ...],
    source: Path | None,
    reference: Path | None,
    tags: Path | None,
    others: tuple[Path, ...],
    folder: Path | None,
    output: Path,
) -> None:
    """Draw every report of the models on one text, and put all pictures into one sheet."""
    check_plot(output)
    if source is None or reference is None:
        text = evaluation_text(read_recipe(models[0]), "test")
        if not isinstance(text, TestText):
            raise click.UsageError("the first model's recipe has no test set: name --input and --reference")
        source, reference = text.source, text.reference
    with tempfile.TemporaryDirectory() as place:
        where = folder or Path(place)
        where.mkdir(parents=True, exist_ok=True)
        gallery = Gallery(where, models, source, reference, tags)
        save(sheet([*gallery.draw(), *others]), output)
    for name, why in gallery.refused.items():
        click.echo(f"not drawn: {name}: {why}")
    click.echo(f"written: {output}")


if __name__ == "__main__":
    main()
