"""Tables of quality and decoding time at every depth of one or several models, with the oracle of depths.

Translations are cached below ``translations/`` of the output directory, in a directory for each model, search and text
(see `decoding.kept_translations`). Beside each cached file lies its plain text, ``N-M.txt``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from sparsenmt.analysis.depth_table import (
    DEFAULT,
    DepthGrid,
    TimeReference,
    TranslatedText,
    full_report,
    heat_maps,
    printed_report,
    score_grid,
)
from sparsenmt.assemble import depth_plan
from sparsenmt.data.text import write_lines
from sparsenmt.decoding.decoding_time import time_decoding
from sparsenmt.decoding.kept_translations import KeptTranslations
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.decoding.translate import translate_texts
from sparsenmt.devices import use_threads
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringOptions, ScoringSettings
from sparsenmt.files import directory_lock, explain_directory_errors, make_directories, write_text
from sparsenmt.interrupts import resumable
from sparsenmt.model.depth_plan import Depth, DepthPlan, fastest_first
from sparsenmt.progress import notify, progress_bar
from sparsenmt.recipe.schema import Decoding
from sparsenmt.report.model_labels import check_models, model_labels
from sparsenmt.report.output_files import ReportFiles
from sparsenmt.report.plots import save, value_maps
from sparsenmt.report.tables import render, write_report
from sparsenmt.store import MANIFEST, RECIPE, Bundle, check_identity, model_identity, open_model, read_recipe
from sparsenmt.workflows.depth_choice import check_layers, warn_untrained
from sparsenmt.workflows.evaluate import check_metrics_fit
from sparsenmt.workflows.input_text import warn_of_single_lines
from sparsenmt.workflows.test_sets import TestText, given_text, shared_text

TRANSLATIONS = "translations"
_SEPARATE = "separate models"


@dataclass(frozen=True)
class DepthTableRequest:
    """The arguments of `depth_table`.

    Args:
        models: model directories, each at all its depths.
        grid: model directories, or directories that hold some; together they make one further system.
        source: text to translate; None: the recipes' text.
        documents: document ids of the source's lines, for d-BLEU.
        kind: the recipes' text, ``test`` or ``dev``.
        scoring: without metrics: BLEU and chrF.
        encoder_layers, decoder_layers: depths of the two sides; None: all trained ones.
        beam_sizes: one table each; 1 is greedy search; None: the recipes' search.
        batch_tokens: source tokens in a batch, padding included, times the beam size; None: the recipes'.
        speed_lines: lines that are timed; 0: none.
        rounds: turns in which every system decodes them.
        plot: file to draw; None: ``table.png`` in ``output``, if matplotlib is installed.
        threads: CPU threads; None: all cores.
    """

    models: tuple[Path, ...]
    grid: tuple[Path, ...]
    output: Path
    source: Path | None = None
    reference: Path | None = None
    documents: Path | None = None
    kind: str = "test"
    scoring: ScoringOptions = DEFAULT
    encoder_layers: Sequence[int] | None = None
    decoder_layers: Sequence[int] | None = None
    beam_sizes: Sequence[int] | None = None
    batch_tokens: int | None = None
    speed_lines: int = 200
    rounds: int = 3
    plot: Path | None = None
    threads: int | None = None


@dataclass(frozen=True)
class DepthTableResult:
    """The printed tables, and the files that were written."""

    text: str
    files: list[Path]


@dataclass(frozen=True)
class DepthSystem:
    """A system of the table: the model that gives each depth."""

    name: str
    models: Mapping[Depth, Path]


@dataclass(frozen=True)
class DepthRun:
    """A system at one depth with one search: a row of the table.

    Args:
        directory: of the model.
        options: decoding options, depth included.
    """

    system: str
    search: str
    depth: Depth
    directory: Path
    options: Decoding


def depth_table(request: DepthTableRequest) -> DepthTableResult:
    """Translate a text at every depth, unless that is cached; score and time the translations; write the report.

    Raises:
        UserError: an option, a model or the text is invalid.
    """
    use_threads(request.threads)
    table = _DepthTable(request)
    table.check()
    with resumable("the depths that were translated are kept"):
        with explain_directory_errors(request.output, another="--output"):
            make_directories(request.output)
        with directory_lock(request.output, "writes a depth table there"):
            translations = table.translate()
            return table.write(translations, table.measure_time())


class _DepthTable:
    """The steps of `depth_table`."""

    def __init__(self, request: DepthTableRequest) -> None:
        self.request = request
        separate = list(_expand_grid(request.grid))
        check_models([*request.models, *separate])
        labels = model_labels(request.models)
        self._recipes = {path: read_recipe(path) for path in (*request.models, *separate)}
        self.systems = [self._exits_of(name, directory) for name, directory in labels.items()]
        if separate:
            self.systems.append(self._grid_of(separate))
        named = {str(path): path for path in (*request.models, *separate)}
        given = given_text(request.source, request.reference, request.documents)
        self.text: TestText = given or shared_text(named, request.kind)
        self.scoring = request.scoring.with_default(DEFAULT.metrics)

    def _plan(self, directory: Path) -> DepthPlan:
        return depth_plan(self._recipes[directory].model)

    @property
    def _wanted(self) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        return self.request.encoder_layers, self.request.decoder_layers

    def _exits_of(self, name: str, directory: Path) -> DepthSystem:
        """Return one model at its trained exits, or at the requested depths."""
        plan = self._plan(directory)
        sides = []
        for side, wanted, exits in zip(
            ("encoder", "decoder"), self._wanted, (plan.encoder_exits, plan.decoder_exits), strict=True
        ):
            for layers in wanted or ():
                check_layers(plan, side, layers, f"{directory}, --{side}-layers {layers}")
            sides.append(wanted or exits)
        depths = fastest_first([(n, m) for n in sides[0] for m in sides[1]])
        trained = plan.pairs()
        everything = self._wanted == (None, None)
        if everything:
            depths = [depth for depth in depths if depth in trained]
        untrained = [depth for depth in depths if depth not in trained]
        if untrained:
            warn_untrained(plan, untrained[0])
        elif len(depths) == 1 and everything:
            text = "has one depth only; --encoder-layers and --decoder-layers name others"
            notify(f"warning: {directory}: {text}")
        return DepthSystem(name, dict.fromkeys(depths, directory))

    def _grid_of(self, directories: Sequence[Path]) -> DepthSystem:
        """Return the system of separate models, each at its full depth."""
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
                "none of its models has a requested depth",
                where="--grid",
                hint="Change --encoder-layers and --decoder-layers, or leave them out.",
            )
        return DepthSystem(_SEPARATE, {depth: found[depth] for depth in fastest_first(found)})

    def check(self) -> None:
        """Refuse output files and texts that are invalid, before anything is translated."""
        check_metrics_fit(self.text, self.scoring, reads_documents=self.request.documents is None)
        _ = self._settings
        inputs = [self.request.source, self.request.reference, self.request.documents]
        ReportFiles(plot=self.request.plot).check(inputs)
        if self.request.output.exists() and not self.request.output.is_dir():
            raise UserError("this is a file", where=str(self.request.output), hint="Name a directory as --output.")
        _ = self._pairs  # reads the text, and refuses files that are not line-aligned

    @cached_property
    def _pairs(self) -> tuple[list[str], list[str]]:
        return self.text.read()

    @cached_property
    def _settings(self) -> ScoringSettings:
        spoken = {str(path): recipe.data.target_language for path, recipe in self._recipes.items()}
        language = self.scoring.language_of(spoken)
        return self.scoring.settings(language=language, documents=self.text.ids(self.sources))

    @property
    def sources(self) -> list[str]:
        """The lines of the source text."""
        return self._pairs[0]

    @cached_property
    def runs(self) -> list[DepthRun]:
        """The rows: system by system, search by search, the fastest depths first."""
        found = []
        for system in self.systems:
            for change in self._searches():
                for depth, directory in system.models.items():
                    options = self._recipes[directory].decoding.model_copy(update=change).at(depth)
                    found.append(DepthRun(system.name, strategy_of(options).label, depth, directory, options))
        return found

    def _searches(self) -> list[dict[str, Any]]:
        """Return the changes to a recipe's decoding options, a dictionary for each search."""
        batch = {} if self.request.batch_tokens is None else {"batch_tokens": self.request.batch_tokens}
        sizes: Sequence[int | None] = self.request.beam_sizes or [None]
        return [
            batch
            | ({} if size is None else {"method": "greedy"} if size == 1 else {"method": "beam", "beam_size": size})
            for size in sizes
        ]

    def translate(self) -> dict[DepthRun, TranslatedText]:
        """Return the translations of every run; a model is opened once, if any of its translations is missing."""
        found: dict[DepthRun, TranslatedText] = {}
        for directory, group in groupby(self.runs, key=lambda run: run.directory):
            identity = model_identity(directory)
            bundle: Bundle | None = None
            for run in group:
                folder = self.request.output / TRANSLATIONS / directory.resolve().name
                kept, (n, m) = KeptTranslations(folder, identity, self.sources, run.options), run.depth
                lines = kept.cached(run.depth)
                if len(lines) < len(self.sources):
                    if bundle is None:
                        bundle = open_model(directory)
                        check_identity(bundle, identity, directory)
                        warn_of_single_lines(bundle)
                    description = f"{run.system}, {run.search}, {n}+{m}"
                    with progress_bar(description, len(self.sources), done=len(lines)) as advance:
                        lines = kept.at(bundle, run.depth, advance=advance)
                write_lines(file := kept.directory / f"{n}-{m}.txt", lines)
                found[run] = TranslatedText(lines, str(directory), str(file))
        return found

    def measure_time(self) -> dict[DepthRun, float]:
        """Return the seconds that every run takes for the first lines of the text."""
        lines = self.sources[: self.request.speed_lines]
        if not lines:
            return {}
        rounds = self.request.rounds
        with progress_bar("decoding time", rounds * len(self.runs), unit="cell") as advance:
            times = time_decoding(self._timed_systems, lines, rounds=rounds, advance=advance)
        return {run: time.seconds for run, time in times.items()}

    def _timed_systems(self) -> Iterator[tuple[DepthRun, Callable[[Sequence[str]], list[str]]]]:
        """Yield every run with its translation function. One model is in memory at a time."""
        for directory, group in groupby(self.runs, key=lambda run: run.directory):
            bundle = open_model(directory)
            for run in group:
                yield run, partial(translate_texts, bundle, options=run.options)
            del bundle  # before the next model is opened

    def write(
        self, translations: Mapping[DepthRun, TranslatedText], seconds: Mapping[DepthRun, float]
    ) -> DepthTableResult:
        """Write the tables and the plot."""
        grids = self._score(translations, seconds)
        reference = self._time_reference(grids)
        title, output = self.text.name, self.request.output
        shown = render(printed_report(title, grids, reference))
        report = full_report(title, grids, reference)
        report = replace(report, settings={**report.settings, **self.scoring.record()})
        files = write_report(report, json=output / "table.json", csv=output / "table.csv")
        files.append(output / "table.txt")
        write_text(files[-1], f"{shown}\n")
        plot = self.request.plot or output / "table.png"
        if self.request.plot is not None or importlib.util.find_spec("matplotlib") is not None:
            save(value_maps(heat_maps(grids, reference)), plot)
            files.append(plot)
        return DepthTableResult(shown, files)

    def _score(
        self, translations: Mapping[DepthRun, TranslatedText], seconds: Mapping[DepthRun, float]
    ) -> list[DepthGrid]:
        grids = []
        with progress_bar("scores", len(self.runs), unit="cell") as advance:
            for (system, search), group in groupby(self.runs, key=lambda run: (run.system, run.search)):
                texts = {run.depth: replace(translations[run], seconds=seconds.get(run)) for run in group}
                grids.append(score_grid(system, search, texts, self._pairs[1], self._settings, advance=advance))
        return grids

    def _time_reference(self, grids: Sequence[DepthGrid]) -> TimeReference | None:
        """Return the reference of relative times: the deepest run of the first system, with its last search."""
        grid = [each for each in grids if each.system == grids[0].system][-1]
        if grid.deepest.text.seconds is None:
            return None
        lines = min(self.request.speed_lines, len(self.sources))
        return TimeReference(grid.name, grid.deepest.depth, grid.deepest.text.seconds, lines)


def _expand_grid(grid: Sequence[Path]) -> Iterator[Path]:
    """Yield the model directories that are named, or that lie in the named directories.

    Raises:
        UserError: there is none in one of them.
    """
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
