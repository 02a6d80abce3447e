"""The stages of `sparsenmt depth-table`: find the cells, translate those that are not kept, time them, report.

Translations lie below ``translations/`` of the output folder, a folder for each model, search and text (see
`decoding.depths.KeptTranslations`): they are used as long as model, text and options are the same. Beside each stands
its text alone, ``N-M.txt``.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.analysis.depth_table import DepthGrid, TimeReference, Translated
    from sparsenmt.decoding.kept_translations import KeptTranslations
    from sparsenmt.model.depth_plan import Depth, DepthPlan
    from sparsenmt.recipe.schema import Decoding, Recipe
    from sparsenmt.store import Bundle
    from sparsenmt.workflows.test_sets import TestText

TRANSLATIONS = "translations"
_GRID = "separate models"
_WARM_UP = 4  # lines that are translated before the clock starts


@dataclass(frozen=True)
class DepthTableRequest:
    """What was asked for.

    Args:
        grid: model directories, or folders with some, that make one table together.
        text: files of sources and references; None: that of the recipes, ``kind`` says which.
        encoder: the depths that are wanted; None: all.
        beams: sizes, a table each; 1 is greedy search; None: as the recipes say.
        speed_lines: lines that are timed; 0: none.
    """

    models: tuple[Path, ...]
    grid: tuple[Path, ...]
    text: tuple[Path | None, Path | None]
    kind: str
    encoder: list[int] | None
    decoder: list[int] | None
    beams: list[int] | None
    batch_tokens: int | None
    speed_lines: int
    rounds: int
    output: Path
    plot: Path | None


@dataclass(frozen=True)
class DepthSystem:
    """What makes one table a search: the model that gives each depth."""

    name: str
    models: Mapping[Depth, Path]


@dataclass(frozen=True)
class DepthRun:
    """A model at a depth with a search; what decides about its translations."""

    system: str
    search: str
    depth: Depth
    directory: Path
    options: Decoding

    @property
    def block(self) -> tuple[str, str]:
        return self.system, self.search


def run(job: DepthTableRequest) -> None:
    """Do what is not done, write the report and print it.

    Raises:
        UserError: an option, a model or the text is not what it must be.
    """
    from sparsenmt.files import directory_lock, explain_directory_errors, make_directories

    work = DepthTableStages(job)
    work.check()
    with explain_directory_errors(job.output, another="--output"):
        make_directories(job.output)
    with directory_lock(job.output, "writes a depth table there"):
        translations = work.translate()
        seconds = work.measure_time()
        work.write(translations, seconds)


class DepthTableStages:
    """The stages."""

    def __init__(self, job: DepthTableRequest) -> None:
        from sparsenmt.report.model_labels import check_models, model_labels
        from sparsenmt.workflows.test_sets import given_text, shared_text

        self.job = job
        separate = list(_expanded(job.grid))
        check_models([*job.models, *separate])
        labels = model_labels(job.models)
        self._recipes: dict[Path, Recipe] = {}
        self.systems = [self._exits_of(name, directory) for name, directory in labels.items()]
        if separate:
            self.systems.append(self._grid_of(separate))
        everybody = {str(path): path for path in (*job.models, *separate)}
        self.text: TestText = given_text(*job.text) or shared_text(everybody, job.kind)

    def _recipe(self, directory: Path) -> Recipe:
        from sparsenmt.store import read_recipe

        if directory not in self._recipes:
            self._recipes[directory] = read_recipe(directory)
        return self._recipes[directory]

    def _plan(self, directory: Path) -> DepthPlan:
        from sparsenmt.assemble import depth_plan

        return depth_plan(self._recipe(directory).model)

    def _exits_of(self, name: str, directory: Path) -> DepthSystem:
        """One model at its exits, or at those that are asked for."""
        from sparsenmt.model.depth_plan import fastest_first
        from sparsenmt.workflows.depth_choice import check_layers, warn_untrained

        plan = self._plan(directory)
        sides = []
        for side, wanted, exits in (
            ("encoder", self.job.encoder, plan.encoder_exits),
            ("decoder", self.job.decoder, plan.decoder_exits),
        ):
            for layers in wanted or ():
                check_layers(plan, side, layers, f"{directory}, --{side}-layers {layers}")
            sides.append(wanted or exits)
        depths = fastest_first([(n, m) for n in sides[0] for m in sides[1]])
        trained = plan.pairs()
        if self._wanted == (None, None):  # else pairs that are asked for, trained or not
            depths = [depth for depth in depths if depth in trained]
        untrained = [depth for depth in depths if depth not in trained]
        if untrained:
            warn_untrained(plan, untrained[0])
        elif len(depths) == 1 and self._wanted == (None, None):
            text = "has one depth only; --encoder-layers and --decoder-layers name others"
            click.echo(f"warning: {directory}: {text}", err=True)
        return DepthSystem(name, dict.fromkeys(depths, directory))

    def _grid_of(self, directories: Sequence[Path]) -> DepthSystem:
        """Separate models, each at its full depth."""
        from sparsenmt.model.depth_plan import fastest_first

        found: dict[Depth, Path] = {}
        for directory in directories:
            depth = self._plan(directory).deepest
            if depth in found:
                raise UserError(
                    f"{found[depth]} has {depth[0]} encoder and {depth[1]} decoder layers too",
                    where=str(directory),
                    hint="Let --grid name one model of each depth.",
                )
            if all(wanted is None or layers in wanted for wanted, layers in zip(self._wanted, depth, strict=True)):
                found[depth] = directory
        if not found:
            raise UserError(
                "none of its models has a depth that is asked for",
                where="--grid",
                hint="Change --encoder-layers and --decoder-layers, or leave them out.",
            )
        return DepthSystem(_GRID, {depth: found[depth] for depth in fastest_first(found)})

    @property
    def _wanted(self) -> tuple[list[int] | None, list[int] | None]:
        return self.job.encoder, self.job.decoder

    def check(self) -> None:
        """Find out what is wrong before anything is translated.

        Raises:
            UserError: it cannot be drawn; or the output is no place to write to.
        """
        from sparsenmt.report.output_files import check_outputs
        from sparsenmt.report.plots import check_plot

        if self.job.plot is not None:
            check_plot(self.job.plot)
            check_outputs({"--plot": self.job.plot}, list(self.job.text))
        if self.job.output.exists() and not self.job.output.is_dir():
            raise UserError("this is a file", where=str(self.job.output), hint="Name another folder with --output.")
        self.sources  # noqa: B018 - read, and refused where they are not line-aligned

    @cached_property
    def _pairs(self) -> tuple[list[str], list[str]]:
        return self.text.read()

    @property
    def sources(self) -> list[str]:
        return self._pairs[0]

    @cached_property
    def cells(self) -> list[DepthRun]:
        """System by system, search by search, the fastest depths first."""
        found = []
        for system in self.systems:
            for change in self._searches():
                for depth, directory in system.models.items():
                    options = self._recipe(directory).decoding.model_copy(update=change).at(depth)
                    if self.job.batch_tokens is not None:
                        options = options.model_copy(update={"batch_tokens": self.job.batch_tokens})
                    found.append(DepthRun(system.name, strategy_of(options).label, depth, directory, options))
        return found

    def _searches(self) -> list[dict[str, Any]]:
        """Changes to a recipe's decoding options."""
        sizes: Sequence[int | None] = self.job.beams or [None]
        return [
            {} if size is None else {"method": "greedy"} if size == 1 else {"method": "beam", "beam_size": size}
            for size in sizes
        ]

    def _kept(self, cell: DepthRun) -> KeptTranslations:
        from sparsenmt.decoding.kept_translations import KeptTranslations
        from sparsenmt.files import sha256_text
        from sparsenmt.store import read_manifest, weights_digest

        recipe = self._recipe(cell.directory)
        files = sorted((name, entry["sha256"]) for name, entry in read_manifest(cell.directory)["files"].items())
        model = recipe.model.model_dump(mode="json", by_alias=True)
        most = recipe.data.filters.max_source_length
        identity = sha256_text(repr((weights_digest(cell.directory), files, model, most)))
        folder = self.job.output / TRANSLATIONS / cell.directory.resolve().name
        return KeptTranslations(folder, identity, self.sources, cell.options)

    def translate(self) -> dict[DepthRun, Translated]:
        """The translations of every cell; a model is read once, if any of its cells is not kept."""
        from sparsenmt.analysis.depth_table import Translated
        from sparsenmt.data.text import write_lines
        from sparsenmt.progress import progress_bar
        from sparsenmt.store import open_model
        from sparsenmt.workflows.input_text import warn_of_single_lines

        found: dict[DepthRun, Translated] = {}
        for directory, group in groupby(self.cells, key=lambda cell: cell.directory):
            bundle: Bundle | None = None
            for cell in group:
                kept, (n, m) = self._kept(cell), cell.depth
                done = kept.done(cell.depth)
                if len(done) < len(self.sources):
                    if bundle is None:
                        bundle = open_model(directory)
                        warn_of_single_lines(bundle)
                    with progress_bar(f"{cell.system}, {cell.search}, {n}+{m}", len(self.sources)) as advance:
                        advance(len(done))
                        done = kept.at(bundle, cell.depth, advance=advance)
                write_lines(file := kept.directory / f"{n}-{m}.txt", done)
                found[cell] = Translated(done, str(directory), str(file))
        return found

    def measure_time(self) -> dict[DepthRun, float]:
        """Seconds that each cell takes for the first lines: the cells take turns, the fastest turn counts."""
        from sparsenmt.progress import progress_bar

        lines, found = self.sources[: self.job.speed_lines], dict[DepthRun, float]()
        if not lines:
            return found
        with progress_bar("decoding time", self.job.rounds * len(self.cells), unit="cell") as advance:
            for _ in range(self.job.rounds):
                for cell, seconds in self._turn(lines):
                    found[cell] = min(seconds, found.get(cell, seconds))
                    advance(1)
        return found

    def _turn(self, lines: Sequence[str]) -> Iterator[tuple[DepthRun, float]]:
        """Every cell once. No more than one model is in memory; reading it is not timed."""
        from sparsenmt.decoding.translate import translate_texts
        from sparsenmt.store import open_model

        for directory, group in groupby(self.cells, key=lambda cell: cell.directory):
            bundle = open_model(directory)
            for cell in group:
                translate_texts(bundle, lines[:_WARM_UP], cell.options)
                began = time.perf_counter()
                translate_texts(bundle, lines, cell.options)
                yield cell, time.perf_counter() - began

    def write(self, translations: Mapping[DepthRun, Translated], seconds: Mapping[DepthRun, float]) -> None:
        """Write tables and the plot; print the tables."""
        from sparsenmt.analysis.depth_table import maps, report, views
        from sparsenmt.files import write_text
        from sparsenmt.report.plots import save, value_maps
        from sparsenmt.report.tables import render, write_report

        blocks = self._blocks(translations, seconds)
        timed = self._timed(blocks)
        title, output = self.text.name, self.job.output
        shown = render(views(title, blocks, timed))
        paths = write_report(report(title, blocks, timed), json=output / "table.json", csv=output / "table.csv")
        paths.append(output / "table.txt")
        write_text(paths[-1], f"{shown}\n")
        plot = self.job.plot or output / "table.png"
        if self.job.plot is not None or importlib.util.find_spec("matplotlib") is not None:
            save(value_maps(maps(blocks, timed)), plot)
            paths.append(plot)
        click.echo(shown)
        click.echo("written: " + ", ".join(map(str, paths)), err=True)

    def _blocks(
        self, translations: Mapping[DepthRun, Translated], seconds: Mapping[DepthRun, float]
    ) -> list[DepthGrid]:
        from sparsenmt.analysis.depth_table import measure
        from sparsenmt.progress import progress_bar

        blocks = []
        with progress_bar("scores", len(self.cells), unit="cell") as advance:
            for (system, search), group in groupby(self.cells, key=lambda cell: cell.block):
                made = {cell.depth: replace(translations[cell], seconds=seconds.get(cell)) for cell in group}
                blocks.append(measure(system, search, made, self._pairs[1], advance=advance))
        return blocks

    def _timed(self, blocks: Sequence[DepthGrid]) -> TimeReference | None:
        """What others are relative to: the deepest cell of the first system, with its last search."""
        from sparsenmt.analysis.depth_table import TimeReference

        block = [each for each in blocks if each.system == blocks[0].system][-1]
        if block.deepest.seconds is None:
            return None
        lines = min(self.job.speed_lines, len(self.sources))
        return TimeReference(block.name, block.deepest.depth, block.deepest.seconds, lines)


def _expanded(grid: Sequence[Path]) -> Iterator[Path]:
    """The model directories that are named, or lie in the folders that are.

    Raises:
        UserError: there is none in one of them.
    """
    from sparsenmt.store import MANIFEST, RECIPE

    for place in grid:
        if (place / MANIFEST).exists() and (place / RECIPE).exists():
            yield place
            continue
        inside = sorted(path.parent for path in place.glob(f"*/{RECIPE}") if (path.parent / MANIFEST).exists())
        if not inside:
            raise UserError(
                "is no model directory, and holds none",
                where=str(place),
                hint="Name one that `train` or `sweep` wrote.",
            )
        yield from inside
