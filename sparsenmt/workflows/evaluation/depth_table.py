"""Tables of quality and decoding time at every depth of one or several models, with the oracle of depths.

Translations are cached below ``translations/`` of the output directory, in a directory for each model, search and text
(see `decoding.kept_translations`). Beside each cached file lies its plain text, ``N-M.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.depth_table import (
    DEFAULT,
    DepthGrid,
    SystemSize,
    TimeReference,
    TranslatedText,
    heat_maps,
    report,
    score_grid,
)
from sparsenmt.assemble.bundle import Bundle, check_identity, open_model
from sparsenmt.assemble.long_lines import recorded_division
from sparsenmt.assemble.model import depth_plan
from sparsenmt.assemble.model_directory import model_identity, parameter_count, read_recipe
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.text import write_lines
from sparsenmt.decoding.decoding_time import time_decoding
from sparsenmt.decoding.inputs import read_sources, warn_of_unusual_sources
from sparsenmt.decoding.kept_translations import KeptTranslations
from sparsenmt.decoding.model_options import ModelOptions
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.decoding.translate import translate_texts
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.model.depth_plan import Depth, fastest_first
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify, progress_bar
from sparsenmt.recipe.model_use import with_given, with_languages
from sparsenmt.recipe.schema import Decoding
from sparsenmt.report.model_labels import check_models, model_labels, models_in
from sparsenmt.report.output_files import ReportFiles, WrittenTable
from sparsenmt.report.plots import describe, value_maps
from sparsenmt.report.tables import Report
from sparsenmt.storage.files import directory_lock, explain_directory_errors, make_directories
from sparsenmt.training.training_log import training_time
from sparsenmt.workflows.decoding.depth_choice import check_layers, warn_untrained
from sparsenmt.workflows.decoding.input_text import warn_of_single_lines
from sparsenmt.workflows.evaluation.experiment import agreed_scoring
from sparsenmt.workflows.evaluation.reference_texts import TestText, given_text, shared_text

TRANSLATIONS = "translations"
_SEPARATE = "separate models"


@dataclass(frozen=True)
class DepthTableRequest(ModelOptions):
    """The arguments of `depth_table`.

    Args:
        models: model directories, each at all its depths.
        grid: model directories, or directories that hold some; together they make one further system. A directory
            whose models have depths that are there already makes one of its own.
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


@dataclass(frozen=True)
class DepthSystem:
    """A system of the table: the model that gives each depth."""

    name: str
    models: Mapping[Depth, Path]
    separate: bool = False

    @property
    def directories(self) -> list[Path]:
        """The models, the one of the deepest depth last."""
        return list(dict.fromkeys(self.models.values()))


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


def depth_table(request: DepthTableRequest) -> WrittenTable:
    """Translate a text at every depth, unless that is cached; score and time the translations; write the report.

    Raises:
        UserError: an option, a model or the text is invalid.
    """
    with _measured(request) as (table, grids):
        return table.write(grids)


def depth_report(request: DepthTableRequest) -> Report:
    """Return the report of `depth_table`, which is not written; errors are the same."""
    with _measured(request) as (table, grids):
        return table.report(grids)


@contextmanager
def _measured(request: DepthTableRequest) -> Iterator[tuple[_DepthTable, list[DepthGrid]]]:
    """Yield the scored and timed translations at every depth, while the output directory is locked."""
    request.use_processors()
    table = _DepthTable(request)
    with resumable("the depths that were translated are kept"):
        with explain_directory_errors(request.output, another="--output"):
            make_directories(request.output)
        with directory_lock(request.output, "writes a depth table there"):
            yield table, table.measure_time(table.score(table.translate()))


class _DepthTable:
    """The steps of `depth_table`. Making one raises UserError for what is invalid, before anything is translated."""

    def __init__(self, request: DepthTableRequest) -> None:
        self.request, self._wanted = request, (request.encoder_layers, request.decoder_layers)
        places = [(place, models_in(place)) for place in request.grid]
        separate = [directory for _, directories in places for directory in directories]
        check_models([*request.models, *separate])
        paths = (*request.models, *separate)
        self._recipes = {path: with_languages(read_recipe(path), *request.languages) for path in paths}
        self.systems = [self._exits_of(name, directory) for name, directory in model_labels(request.models).items()]
        self.systems += self._grids_of(places)
        given = given_text(request.source, request.reference, request.documents)
        self.text = given or shared_text({str(path): path for path in paths}, request.kind, TestText)
        ReportFiles(plot=request.plot).check([request.source, request.reference, request.documents])
        if request.output.exists() and not request.output.is_dir():
            raise UserError("this is a file", where=str(request.output), hint="Name a directory as --output.")
        recipes = {str(path): recipe for path, recipe in self._recipes.items()}
        asked, known = request.scoring.with_default(DEFAULT.metrics), request.documents is None
        self.scoring, language = agreed_scoring(self.text, asked, recipes, reads_documents=known)
        self.sources, self.references = self.text.read()
        self._settings = self.scoring.settings(language=language, documents=self.text.ids(self.sources))

    def _exits_of(self, name: str, directory: Path) -> DepthSystem:
        """Return one model at its trained exits, or at the requested depths, with warnings of untrained ones."""
        plan = depth_plan(self._recipes[directory].model)
        sides = []
        for side, wanted, exits in zip(
            ("encoder", "decoder"), self._wanted, (plan.encoder_exits, plan.decoder_exits), strict=True
        ):
            for layers in wanted or ():
                check_layers(plan, side, layers, f"{directory}, --{side}-layers {layers}")
            sides.append(wanted or exits)
        everything = self._wanted == (None, None)
        depths = plan.depths() if everything else fastest_first(product(sides[0], sides[1]))
        untrained = [depth for depth in depths if depth not in plan.pairs()]
        if untrained:
            warn_untrained(plan, untrained[0])
        elif len(depths) == 1 and everything:
            text = "has one depth only; --encoder-layers and --decoder-layers name others"
            notify(f"warning: {directory}: {text}")
        return DepthSystem(name, dict.fromkeys(depths, directory))

    def _grids_of(self, places: Sequence[tuple[Path, Sequence[Path]]]) -> list[DepthSystem]:
        """Return the systems of separate models, each model at its full depth; there is one unless depths repeat."""
        found: list[tuple[str, dict[Depth, Path]]] = []
        for place, directories in places:
            own: dict[Depth, Path] = {}
            known = found[0][1] if found and len(directories) == 1 else {}
            for directory in directories:
                depth = depth_plan(self._recipes[directory].model).deepest
                if other := known.get(depth) or own.get(depth):
                    raise UserError(
                        f"{other} has {depth[0]} encoder and {depth[1]} decoder layers too",
                        where=str(directory),
                        hint="Let --grid name one model of each depth.",
                    )
                own[depth] = directory
            joined = next((models for _, models in found if not models.keys() & own.keys()), None)
            if joined is None:
                found.append((f"{_SEPARATE}, {place}" if found else _SEPARATE, own))
            else:
                joined.update(own)
        systems = [
            DepthSystem(name, {depth: models[depth] for depth in fastest_first(models) if self._is_wanted(depth)}, True)
            for name, models in found
        ]
        if not all(system.models for system in systems):
            raise UserError(
                "none of its models has a requested depth",
                where="--grid",
                hint="Change --encoder-layers and --decoder-layers, or leave them out.",
            )
        return systems

    def _is_wanted(self, depth: Depth) -> bool:
        """Return True if the numbers of layers of both sides are asked for."""
        return all(wanted is None or layers in wanted for wanted, layers in zip(self._wanted, depth, strict=True))

    @cached_property
    def runs(self) -> list[DepthRun]:
        """The rows: system by system, search by search, the fastest depths first."""
        searches: list[dict[str, object]] = [
            {"method": "greedy"} if size == 1 else {"method": "beam", "beam_size": size}
            for size in self.request.beam_sizes or ()
        ]
        found = []
        for system in self.systems:
            for search in searches or [{}]:
                for depth, directory in system.models.items():
                    usual = self._recipes[directory].decoding.at(depth)
                    options = with_given(usual, batch_tokens=self.request.batch_tokens, **search)
                    found.append(DepthRun(system.name, strategy_of(options).label, depth, directory, options))
        return found

    def translate(self) -> dict[DepthRun, TranslatedText]:
        """Return the translations of every run; a model is opened once, if any of its translations is missing."""
        found: dict[DepthRun, TranslatedText] = {}
        for directory, group in groupby(self.runs, key=lambda run: run.directory):
            identity, runs = model_identity(directory), list(group)
            divided = recorded_division(directory, identity, runs[0].options, self.sources)
            bundle: Bundle | None = None
            for run in runs:
                folder = self.request.output / TRANSLATIONS / directory.resolve().name
                usual = self._recipes[directory].decoding.batch_tokens
                options, (n, m) = with_given(run.options, long=divided), run.depth
                kept = KeptTranslations(folder, identity, self.sources, options, usual)
                lines = kept.cached(run.depth)
                if len(lines) < len(self.sources):
                    if bundle is None:
                        bundle = open_model(directory, device=self.request.device, languages=self.request.languages)
                        check_identity(bundle, identity, directory)
                        warn_of_single_lines(bundle)
                        warn_of_unusual_sources(bundle, read_sources(bundle, input_lines(self.sources)), run.system)
                    description = f"{run.system}, {run.search}, {n}+{m}"
                    with progress_bar(description, len(self.sources), done=len(lines)) as advance:
                        lines = kept.at(bundle, run.depth, advance=advance)
                write_lines(file := kept.directory / f"{n}-{m}.txt", lines)
                found[run] = TranslatedText(lines, str(directory), str(file))
        return found

    def measure_time(self, grids: Sequence[DepthGrid]) -> list[DepthGrid]:
        """Return the grids with the seconds that each depth, and the oracle, take for the first lines of the text."""
        lines = self.sources[: self.request.speed_lines]
        if not lines:
            return list(grids)
        rounds, oracle = self.request.rounds, {(grid.system, grid.search): grid.depths for grid in grids}
        with progress_bar("decoding time", 2 * rounds * len(self.runs), unit="cell") as advance:
            times = time_decoding(lambda: self._timed_systems(oracle), lines, rounds=rounds, advance=advance)
        found = []
        for grid in grids:
            own = [run for run in self.runs if (run.system, run.search) == (grid.system, grid.search)]
            each = {run.depth: times[run, False] for run in own}
            seconds = {depth: (time.seconds, time.spread) for depth, time in each.items()}
            found.append(grid.timed(seconds, sum(times[run, True].seconds for run in own)))
        return found

    def _timed_systems(
        self, oracle: Mapping[tuple[str, str], NDArray[np.int64]]
    ) -> Iterator[tuple[tuple[DepthRun, bool], Callable[[Sequence[str]], list[str]]]]:
        """Yield every run twice, each with its translation function; one model is in memory at a time.

        With False the function translates all lines, with True those for which the oracle takes the depth of the run.

        Args:
            oracle: (system, search) -> (S, 2) the oracle's depth for each line, in their order.
        """

        def translate_own(
            lines: Sequence[str], translate: Callable[[Sequence[str]], list[str]], run: DepthRun
        ) -> list[str]:
            depths = map(tuple, oracle[run.system, run.search].tolist())
            own = [line for line, depth in zip(lines, depths, strict=False) if depth == run.depth]
            return translate(own) if own else []

        for directory, group in groupby(self.runs, key=lambda run: run.directory):
            bundle = open_model(directory, device=self.request.device, languages=self.request.languages)
            for run in group:
                translate = partial(translate_texts, bundle, options=run.options)
                yield (run, False), translate
                yield (run, True), partial(translate_own, translate=translate, run=run)
                del translate
            del bundle  # before the next model is opened

    def sizes(self) -> list[SystemSize]:
        """Return the number of parameters and the seconds of training of every system."""
        found = []
        for system in self.systems:
            models = system.directories
            parameters = sum(map(parameter_count, models))
            times = [training_time(each) for each in models]
            known = [seconds for seconds in times if seconds is not None]
            training = sum(known) if len(known) == len(times) else None
            found.append(SystemSize(system.name, len(models), parameters, training, times[-1], system.separate))
        return found

    def report(self, grids: Sequence[DepthGrid]) -> Report:
        """Return the tables."""
        made = report(self.text.name, grids, self._time_reference(grids), self.sizes())
        return replace(made, settings={**made.settings, **self.scoring.record()})

    def write(self, grids: Sequence[DepthGrid]) -> WrittenTable:
        """Write the tables and the plot."""
        made, reference = self.report(grids), self._time_reference(grids)
        shown, systems = str(made), ", ".join(each.name for each in self.systems)
        timed = " and decoding time" * (reference is not None)
        drawn = f"quality{timed} at every depth\n{systems}; text: {self.text.name}"
        files = ReportFiles.in_folder(self.request.output, "table", self.request.plot)
        written = files.write(made, lambda: describe(value_maps(heat_maps(grids, reference)), drawn), shown)
        return WrittenTable(shown, written)

    def score(self, translations: Mapping[DepthRun, TranslatedText]) -> list[DepthGrid]:
        """Return the scores of every system with every search, in the order of `runs`."""
        grids = []
        with progress_bar("scores", len(self.runs), unit="cell") as advance:
            for (system, search), group in groupby(self.runs, key=lambda run: (run.system, run.search)):
                texts = {run.depth: translations[run] for run in group}
                grids.append(score_grid(system, search, texts, self.references, self._settings, advance=advance))
        return grids

    def _time_reference(self, grids: Sequence[DepthGrid]) -> TimeReference | None:
        """Return the reference of relative times: the deepest run of the first system, with its last search."""
        grid = [each for each in grids if each.system == grids[0].system][-1]
        if grid.deepest.text.seconds is None:
            return None
        lines = min(self.request.speed_lines, len(self.sources))
        return TimeReference(grid.name, grid.deepest.depth, grid.deepest.text.seconds, lines)
