"""Run a sweep: train and evaluate the variants of a recipe, each in a directory of its own, and tabulate them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.methods import load_resolved_recipe, required_features
from sparsenmt.data.prepare.pipeline import preparation_settings
from sparsenmt.data.text import StrPath
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.observation import Observation
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.process.runtime import is_distributed, is_main_process
from sparsenmt.recipe.resolve import Overrides, as_settings
from sparsenmt.recipe.sweep import Layout, Sweep, axes_of, read_sweep
from sparsenmt.recipe.variants import SEED, Variant
from sparsenmt.recipe.yaml_tree import plain
from sparsenmt.report.output_files import ReportFiles, WrittenTable
from sparsenmt.report.plots import curves, describe
from sparsenmt.storage.kept_work import KeptWork, changed_values, describe_changes
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.workflows.evaluation.evaluate import AS_IN_RECIPE, ModelRun, check_metrics_fit
from sparsenmt.workflows.evaluation.evaluate_text import check_text_metrics
from sparsenmt.workflows.evaluation.experiment import Experiment, ExperimentModel, Measured, Text
from sparsenmt.workflows.evaluation.reference_texts import TestText
from sparsenmt.workflows.training.continue_training import (
    check_vocabularies,
    counted_on,
    make_untrained,
    starting_point,
    tell_rate,
)
from sparsenmt.workflows.training.prepare import prepare
from sparsenmt.workflows.training.run_checks import is_same_run
from sparsenmt.workflows.training.sweep_table import grids, notes, panels, report
from sparsenmt.workflows.training.train import train

RECORD = "sweep.json"
"""File of a model directory: the variant that it is; written when the variant is finished."""


@dataclass(frozen=True)
class _VariantRecord:
    """The entry of a finished variant's record whose type is checked."""

    recipe: dict[str, Any]


def _changed(written: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return key, old and new value of what makes a variant another one; a starting model that is gone does not."""
    recipe, asked = (load_resolved_recipe(each["recipe"], origin=RECORD) for each in (written, now))
    same = {"recipe": written["recipe"]} if is_same_run(recipe, asked) else {}
    return changed_values(written, now | same | ({"from": written.get("from")} if now["from"] == "gone" else {}))


@dataclass(frozen=True)
class VariantRun(ExperimentModel):
    """A variant as a model of the experiment; the updates of its recipe count from the beginning of the variant."""

    variant: Variant = field(kw_only=True)

    def is_finished(self) -> bool:
        """Return True if the directory holds the finished variant; it needs no checkpoints and no starting model."""
        try:
            model_directory.read_manifest(self.directory)
            return self.record().find() is not None
        except UserError:
            return False

    def record(self) -> KeptWork[_VariantRecord]:
        """Return the record of the variant as it is asked for now."""
        variant, begin = self.variant, None
        if variant.start is not None:
            there = (variant.start / model_directory.WEIGHTS).exists()
            begin = model_directory.weights_digest(variant.start) if there else "gone"
        asked = {
            "recipe": self.recipe.model_dump(mode="json", by_alias=True),
            "from": begin,
            "updates": variant.updates,
            "restart": variant.restart,
            "weights": model_directory.weights_digest(self.directory),
        }
        return KeptWork(self.directory / RECORD, asked, _VariantRecord, key=None, compare=_changed)

    def state(self) -> str:
        """Return the progress of the variant in words, for lists."""
        if self.is_finished():
            return "finished"
        if not (self.directory / model_directory.MANIFEST).exists():
            return "not begun"
        checkpoints = find_checkpoints(self.directory)
        return f"after update {checkpoints[-1].update:,}" if checkpoints else "begun"

    def needs_checkpoints_of(self, other: VariantRun) -> bool:
        """Return True if the variant continues from the checkpoints of another one."""
        variant = self.variant
        same = variant.start is not None and variant.start.resolve() == other.directory.resolve()
        return same and not variant.restart and variant.updates != 0


@dataclass(frozen=True)
class SweepResult:
    """The number of variants that were run, the names of those that failed, and the table.

    Args:
        table: None in all but the first of several processes.
    """

    variants: int
    failed: list[str]
    table: WrittenTable | None


@dataclass(frozen=True)
class SweepPlan:
    """A sweep with the recipes of all its variants.

    Args:
        output: folder of the variants and of the table.
        experiment: the variants as they are measured.
    """

    sweep: Sweep
    runs: list[VariantRun]
    output: Path
    experiment: Experiment

    def select(self, patterns: Sequence[str]) -> list[VariantRun]:
        """Return the variants whose names match a pattern (`topk-*`), or all; UserError if a pattern matches none."""
        for pattern in patterns:
            if not any(fnmatchcase(run.name, pattern) for run in self.runs):
                names = ", ".join(run.name for run in self.runs)
                raise UserError(f"no variant is named '{pattern}'", where="--only", hint=f"There are: {names}.")
        return [run for run in self.runs if not patterns or any(fnmatchcase(run.name, each) for each in patterns)]

    def run(self, chosen: Sequence[VariantRun]) -> list[str]:
        """Train and evaluate variants, one after the other; a variant that fails does not stop the others.

        Returns:
            names of the variants that failed; their errors are printed.

        Raises:
            UserError: before any work, if a model that a variant begins from is missing; or data cannot be prepared.
        """
        self._check_starts(chosen)
        failed = []
        with resumable():
            for each in chosen:
                if not Path(each.recipe.data.directory).exists() and not is_distributed() and not each.is_finished():
                    notify(prepare(each.recipe).describe())
            for number, each in enumerate(chosen, start=1):
                head = f"[{number}/{len(chosen)}] {each.name}"
                try:
                    if each.is_finished():
                        notify(f"{head}: finished")
                    else:
                        notify(f"{head}: {each.directory}")
                        self._train(each)
                    for text in map(each.text, self.sweep.file.sets):
                        if text is not None and is_main_process():
                            self.experiment.measure(each, text)
                except UserError as error:
                    if is_distributed():
                        raise  # the others wait for this process in the same variant
                    failed.append(each.name)
                    notify(f"{head}: failed: {error}", needed=True)
        return failed

    def _check_starts(self, chosen: Sequence[VariantRun]) -> None:
        """Raise UserError unless every model that a variant begins from exists, or is made before it."""
        made_here = {run.directory.resolve(): run for run in self.runs}
        for number, run in enumerate(chosen):
            start = run.variant.start
            if start is None or run.is_finished():
                continue
            earlier = made_here.get(start.resolve())
            if earlier is None:
                model_directory.read_manifest(start)
            elif not earlier.is_finished() and earlier not in chosen[:number]:
                raise UserError(
                    f"variant {run.name} begins from variant {earlier.name}, which is not finished",
                    where=str(self.sweep.path),
                    hint=f"Put {earlier.name} before it, and name it with `--only` too.",
                )

    def _train(self, run: VariantRun) -> None:
        """Train a variant, or resume it; write its record when it is finished."""
        variant, recipe, origin = run.variant, run.recipe, None
        if variant.start is not None:
            remedy = "Write `restart: true`, to begin with its weights and a new optimizer, or name another model."
            weights_only = variant.restart or variant.updates == 0
            origin, progress = starting_point(variant.start, weights_only=weights_only, remedy=remedy)
            if variant.updates != 0:  # otherwise nothing is trained, and its settings are only read
                tell_rate(recipe, progress)
                recipe = counted_on(recipe, progress, variant.updates)
            check_vocabularies(recipe, variant.start)
        if origin is not None and variant.updates == 0:
            make_untrained(recipe, origin)
        else:
            train(recipe, start=origin)
        if is_main_process():
            run.record().write()
            needed = any(other.needs_checkpoints_of(run) for other in self.runs)
            if self.sweep.file.checkpoints == "remove" and not needed:
                shutil.rmtree(run.directory / "checkpoints", ignore_errors=True)

    def check_scoring(self) -> None:
        """Raise UserError if a variant cannot be scored, or one table would mix metrics, or tokenizers on one text."""
        first: dict[tuple[str, ...], VariantRun] = {}
        checked: set[tuple[Any, ...]] = set()
        texts: dict[tuple[TestText, tuple[str, ...]], tuple[VariantRun, ScoringOptions]] = {}
        for run in self.runs:
            scoring = self.experiment.asked_of(run)
            first.setdefault(scoring.metrics, run)
            if run.recipe.data.is_language_model:
                check_text_metrics(scoring)
                continue
            for text in map(run.text, self.sweep.file.sets):
                if not isinstance(text, TestText):  # the recipe has none
                    continue
                if (scoring, text.documents is None) not in checked:
                    check_metrics_fit(text, scoring)
                    checked.add((scoring, text.documents is None))
                if not (text.source.exists() and text.reference.exists()):
                    continue  # it may be made later; a table of what is kept reads it then
                fitted = self.experiment.scoring_of(run, text)
                before, earlier = texts.setdefault((text, scoring.metrics), (run, fitted))
                if fitted.tokenize != earlier.tokenize:
                    raise UserError(
                        f"{before.name} would be scored by the tokenizer {earlier.tokenize}, and {run.name} by "
                        f"{fitted.tokenize}, in one table",
                        where=str(self.sweep.path),
                        hint="Write `tokenize`, for all variants alike.",
                    )
        layout = self.sweep.file.table
        axes = () if layout is None else (*axes_of(layout.rows), *layout.column_axes, *axes_of(layout.sections))
        if len(first) > 1 and layout is not None and "metric" not in axes:
            (ours, one), (theirs, other) = list(first.items())[:2]
            raise UserError(
                f"{one.name} would be judged by {ours[0]}, and {other.name} by {theirs[0]}, in one table",
                where=str(self.sweep.path),
                hint="Write `metrics`, for all variants alike, or make `metric` an axis of the table.",
            )

    def observations(self) -> list[Observation]:
        """Return the kept results of all variants; trains and translates nothing."""
        finished = {run.name for run in self.runs if run.is_finished()}
        models = [replace(run, baseline=_baseline(self.sweep.file.table, run, self.runs)) for run in self.runs]
        experiment = replace(self.experiment, models=models)

        def kept(model: ExperimentModel, text: Text) -> Measured | None:
            return experiment.kept(model, text) if model.name in finished else None

        return [each for kind in self.sweep.file.sets for each in experiment.observe_set(kind, kept)]

    def tabulate(self) -> WrittenTable:
        """Lay out the cached results; write them as text, CSV, JSON and plot if there are any."""
        file, found = self.sweep.file, self.observations()
        layout, title = file.table, file.title or file.name
        rows = report(file.name, title, found, self.sweep.axes)
        parts = [str(rows)] if layout is None else [title, *(str(grid) for grid in grids(layout, found))]
        text = "\n\n".join(filter(None, [*parts, "\n".join(notes(layout, found, self.experiment.test))]))
        if not any(each.values for each in found):
            return WrittenTable(text, [])
        drawn = [] if layout is None else panels(layout, found)
        draw = (lambda: describe(curves(drawn), title)) if drawn else None
        return WrittenTable(text, ReportFiles.in_folder(self.output, "table").write(rows, draw, text))


def plan_sweep(
    sweep: Sweep,
    overrides: Overrides = (),
    output: Path | None = None,
    scoring: ScoringOptions | None = None,
    model_run: ModelRun = AS_IN_RECIPE,
) -> SweepPlan:
    """Read the recipes of all variants.

    Args:
        overrides: laid over every variant: ``key.path=value`` each, or values by their keys.
        output: folder to use instead of the sweep's directory.
        scoring: what it names stands in place of the file's keys.
        model_run: device of the evaluation, and changes to the decoding options of all variants.

    Raises:
        UserError: a recipe is wrong, or two variants cannot share their prepared data.
    """
    file, folder, runs, settings = sweep.file, output or sweep.directory, [], as_settings(overrides)
    names = {variant.name for variant in sweep.variants}
    for variant in sweep.variants:
        try:
            recipe = load_recipe(variant.recipe, [*variant.settings, *settings])
        except UserError as error:
            error.where = f"{error.where} (variant {variant.name})"
            raise
        if variant.labels.get("seed") is not None and recipe.training.seed != int(float(variant.labels["seed"])):
            keys = [".".join(SEED), SEED[0]]
            written = [each if isinstance(each, str) else f"{each.key}={plain(each.value)}" for each in settings]
            given = [text for text in written if text.partition("=")[0].strip() in keys]
            raise UserError(
                "the sweep has `seeds`, which give the seed",
                where=f"override '{', '.join(given)}'",
                hint=f"Leave it out, or change `seeds` in {sweep.path}.",
            )
        named = {"directory": str(folder / variant.name), "name": f"{file.name}-{variant.name}"}
        if str(variant.start) in names:
            variant = replace(variant, start=folder / str(variant.start))
        recipe = recipe.model_copy(update=named)
        own = variant.name, folder / variant.name, recipe, variant.labels, variant.group
        runs.append(VariantRun(*own, variant=variant))
    _check_together(sweep, runs, model_run)
    asked = scoring or ScoringOptions()
    metrics, tokenize = asked.metrics or tuple(file.metrics), asked.tokenize or file.tokenize
    scored = ScoringOptions(metrics, asked.lowercase or file.lowercase, tokenize, asked.language)
    test = PairedTest(file.significance, file.resamples)
    plan = SweepPlan(sweep, runs, folder, Experiment(runs, scored, test, model_run))
    asks = {"--metric": asked.metrics, "--lowercase": asked.lowercase, "--tokenize": asked.tokenize}
    try:
        plan.check_scoring()
    except UserError as error:
        if error.where in asks and not asks[error.where]:  # it is about a key of the file
            error.where = f"{sweep.path}: {'metrics' if error.where == '--metric' else error.where.strip('-')}"
        raise
    return plan


def _baseline(layout: Layout | None, run: VariantRun, runs: Sequence[VariantRun]) -> VariantRun | None:
    """Return the variant that this one is compared with: of its seed, or the only one; without a layout the first.

    Returns:
        None if there is no baseline, or this variant is one.
    """
    labels = run.labels
    if layout is None:
        found = [other for other in runs if other.group == runs[0].group]
    elif layout.baseline:
        wanted = {**labels, **{axis: str(label) for axis, label in layout.baseline.items()}}
        free = {} if "seed" in layout.baseline else {"seed": ""}
        found = [other for other in runs if {**other.labels, **free} == {**wanted, **free}]
    else:
        return None
    if run in found:
        return None
    alike = [other for other in found if other.labels.get("seed") == labels.get("seed")]
    return next(iter(alike or (found if len(found) == 1 else [])), None)


def _check_together(sweep: Sweep, runs: Sequence[VariantRun], model_run: ModelRun) -> None:
    """Raise UserError unless variants have one task, the texts of the sweep, and equal settings of shared data."""
    first: dict[str, tuple[VariantRun, dict[str, Any]]] = {}
    for run in runs:
        if run.recipe.data.task != runs[0].recipe.data.task:
            raise UserError(
                f"{runs[0].name} and {run.name} have different tasks, whose scores cannot share a table",
                where=f"variant {run.name}: data.task",
                hint="Write a sweep file for each task.",
            )
        for option in ("beam_size", "batch_tokens") if run.recipe.data.is_language_model else ():
            if getattr(model_run, option) is not None:
                where = "--" + option.replace("_", "-")
                raise UserError("language models are not searched", where=where, hint="Leave it out.")
        if "test" in sweep.file.sets and run.recipe.data.test is None:
            raise UserError(
                f"the recipe of variant {run.name} has no `data.test`",
                where=f"{sweep.path}: sets",
                hint="Add it to the recipe, or write `sets: [dev]`.",
            )
        settings = preparation_settings(run.recipe.data, required_features(run.recipe))
        other, theirs = first.setdefault(run.recipe.data.directory, (run, settings))
        if changed := describe_changes(theirs, settings, "data"):
            raise UserError(
                f"the variants {other.name} and {run.name} want different data there: {'; '.join(changed)}",
                where=run.recipe.data.directory,
                hint="Give one of them another `data.directory` under `set`.",
            )


def sweep(
    file: StrPath,
    overrides: Overrides = (),
    *,
    only: Sequence[str] = (),
    output: StrPath | None = None,
    scoring: ScoringOptions | None = None,
    model_run: ModelRun = AS_IN_RECIPE,
) -> SweepResult:
    """Train and evaluate the variants that a file describes, and tabulate them.

    Args:
        overrides: laid over every variant: ``key.path=value`` each, or values by their keys.
        only: names of variants, with ``*`` and ``?``; empty: all.
        output: folder to use instead of the sweep's directory.
        scoring: what it names stands in place of the file's keys.
        model_run: device of the evaluation, and changes to the decoding options of all variants.

    Raises:
        UserError: the file or a recipe is wrong. A variant that fails later is listed in the result.
    """
    check_lists(overrides=overrides, only=only)
    folder = None if output is None else Path(output)
    plan = plan_sweep(read_sweep(Path(file)), overrides, folder, scoring, model_run)
    chosen = plan.select(only)
    failed = plan.run(chosen)
    return SweepResult(len(chosen), failed, plan.tabulate() if is_main_process() else None)
