"""Add memory filters to a trained model and train on, once or for a list of weights and targets that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sparsenmt.arguments import from_fields, strings_to_paths
from sparsenmt.assemble import model_directory
from sparsenmt.assemble.checks import check_recipe, load_recipe
from sparsenmt.errors import UserError, check_lists
from sparsenmt.evaluation.observation import signature_notes
from sparsenmt.metric import METRICS
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.process.runtime import is_main_process
from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss, Ramp
from sparsenmt.recipe.method_choice import MemoryChoice
from sparsenmt.recipe.resolve import Overrides, as_settings
from sparsenmt.recipe.schema import Recipe
from sparsenmt.report.output_files import ReportFiles
from sparsenmt.report.plots import Panel, Points, curves, describe
from sparsenmt.report.tables import Report, Table, Value, columns
from sparsenmt.storage.tensors import read_header
from sparsenmt.training.state import Progress
from sparsenmt.workflows.evaluation.evaluate import AS_IN_RECIPE, ModelRun
from sparsenmt.workflows.evaluation.experiment import Experiment, ExperimentModel
from sparsenmt.workflows.training.continue_training import (
    check_vocabularies,
    counted_on,
    make_untrained,
    starting_point,
    tell_rate,
)
from sparsenmt.workflows.training.train import StartingPoint, train

_FEW_UPDATES, _SMALL_TARGET = 0.1, 0.2  # of the model's own; a share (docs/records/experiments.md, 2026-11-21)
_AVERAGED = 5  # checkpoints, where the recipe does not say: as in the paper


@dataclass(frozen=True)
class FinetuneRequest:
    """The arguments of `finetune`.

    Args:
        model: directory of the dense model.
        recipe: recipe with filters; None: the model's own, with l0drop at the encoder's output.
        overrides: laid over the recipe: ``key.path=value`` each, or values by their keys.
        weights: weights of the penalty (lambda), a run each.
        targets: shares of gates to close, a run each.
        updates: updates to train on; 0: only add the filters; None: the recipe's.
        ramp: updates over which weight or target rise from 0.
        restart: begin with the model's final weights, without the optimizer's moments, at update 0.
        keep: weights of the finished model: a mean of the last checkpoints, the last or the best one; None: as the
            recipe says, and the last one if it averages none.
        baseline: also train on without filters.
        output: model directory, or the folder of several; None: the recipe's, or that of the model with ``-l0drop``.
        run: device and changes to the decoding options, for the comparison of several.
    """

    model: Path
    recipe: Path | None = None
    overrides: Overrides = ()
    weights: tuple[float, ...] = ()
    targets: tuple[float, ...] = ()
    updates: int | None = None
    ramp: int | None = None
    restart: bool = False
    keep: Literal["average", "last", "best"] | None = None
    baseline: bool = False
    output: Path | None = None
    run: ModelRun = AS_IN_RECIPE

    def __post_init__(self) -> None:
        check_lists(overrides=self.overrides, weights=self.weights, targets=self.targets)
        strings_to_paths(self)

    @property
    def is_sweep(self) -> bool:
        """True if there are several runs, each in a directory of its own."""
        return max(len(self.weights) + len(self.targets), 1) + self.baseline > 1


@dataclass(frozen=True)
class FinetuneResult:
    """The models of a fine-tuning by name; if there are several, their comparison and its files.

    Of several processes, only the first one compares.
    """

    models: Mapping[str, Path]
    report: Report | None = None
    files: list[Path] = field(default_factory=list)


@from_fields(FinetuneRequest, FinetuneRequest)
def finetune(request: FinetuneRequest) -> FinetuneResult:
    """Train all runs of a request, one after the other, and compare them if there are several.

    Args:
        request: or its fields: ``finetune("runs/de-en", targets=(0.3, 0.5))``.

    Raises:
        UserError: the model has filters already, or nothing to continue from; or the recipe is wrong.
    """
    start, progress = _starting_point(request)
    recipe = _read_recipe(request)
    usual = recipe.directory if request.recipe is not None else f"{request.model}-l0drop"
    output = request.output or Path(usual)
    runs = _recipes(request, recipe, output, progress)
    for each in runs.values():
        check_vocabularies(each, request.model)
    models = {name: Path(each.directory) for name, each in runs.items()}
    if request.updates != 0:
        tell_rate(recipe.model_copy(update={"directory": next(iter(runs.values())).directory}), progress)
        _warn_of_few_updates(request, recipe, progress)
    with resumable():
        for name, each in runs.items():
            if request.is_sweep:
                notify(f"{name}: {each.directory}")
            if request.updates == 0:
                make_untrained(each, StartingPoint(request.model))
            else:
                train(each, start=start)
        if not request.is_sweep or not is_main_process():
            return FinetuneResult(models)
        report = _compare(models, request.run)
    title = f"quality against sparsity\n{output}"
    caption = f"vertical lines: 95% interval of the difference from {next(iter(models))}, added to its quality"
    files = ReportFiles.in_folder(output, "sweep")
    return FinetuneResult(
        models, report, files.write(report, lambda: describe(curves(_panels(report)), title, caption=caption))
    )


def _warn_of_few_updates(request: FinetuneRequest, recipe: Recipe, progress: Progress) -> None:
    """Warn if a share of gates is to close in too few updates; ``progress``: of the model, where the runs begin."""
    own = progress.update or model_directory.weights_after(request.model) or 0
    further = recipe.training.max_updates if request.updates is None else request.updates
    if (target := max(request.targets, default=0.0)) >= _SMALL_TARGET and further < own * _FEW_UPDATES:
        notify(
            f"warning: {further:,} updates are few to close {target:.0%} of the gates of a model of {own:,} updates: "
            f"quality comes back while it is trained on; the paper takes a sixth to a quarter, --updates {own // 6}"
        )


def _starting_point(request: FinetuneRequest) -> tuple[StartingPoint, Progress]:
    """Return the beginning of the runs, and its progress; UserError if the model has filters already."""
    model_directory.read_manifest(request.model)
    if model_directory.read_recipe(request.model).model.memory:
        raise UserError(
            "the model already has gates",
            where=str(request.model),
            hint="Name the dense model that it came from; `sparsenmt train` resumes a run that was interrupted.",
        )
    remedy = "Use --restart, to begin with its weights and a new optimizer, or name a directory with checkpoints."
    return starting_point(request.model, weights_only=request.restart or request.updates == 0, remedy=remedy)


def _read_recipe(request: FinetuneRequest) -> Recipe:
    """Return the recipe with filters, whose updates count from the beginning of the fine-tuning."""
    if request.recipe is not None:
        recipe = load_recipe(request.recipe, request.overrides)
        if not recipe.model.memory:
            raise UserError(
                "the recipe has no filter to train",
                where=f"{request.recipe}: model.memory",
                hint="Add one, as in `memory: [{name: l0drop}]`, or leave the recipe out.",
            )
        return recipe
    overrides = ["model.memory=[{name: l0drop}]", "losses={l0: {}}", *as_settings(request.overrides)]
    recipe = load_recipe(request.model / model_directory.RECIPE, overrides)
    given = {name: each for name, each in recipe.losses.items() if each.target is not None or each.weight is not None}
    free = {name: each.model_copy(update={"weight": 0.0}) for name, each in recipe.losses.items()}
    if request.updates is None:
        raise UserError(
            "the number of updates is missing",
            where="--updates",
            hint="The paper takes a sixth of the model's own updates; or name a recipe.",
        )
    set_by_hand = any(each.weight != 0 for each in given.values())
    if not request.weights and not request.targets and request.updates and not set_by_hand:
        raise UserError(
            "neither the share of gates to close nor the weight of their penalty is given",
            where="--target",
            hint="Give --target X, the share; or --weight X; or a recipe.",
        )
    return recipe.model_copy(update={"losses": {**free, **given}})


def _recipes(request: FinetuneRequest, recipe: Recipe, output: Path, progress: Progress) -> dict[str, Recipe]:
    """Return name -> recipe of every run: one run a value; without values, the recipe as it is.

    Args:
        output: the directory of a single run, or the folder of several.
        progress: of the dense model, from whose beginning updates count in the recipes.
    """
    values: dict[str, dict[str, float | Ramp | None]] = {}
    for key, other, numbers in (("weight", "target", request.weights), ("target", "weight", request.targets)):
        for number in numbers:
            name = f"{key}-{number:g}"
            if name in values:  # the directory of another run
                raise UserError(f"{number:g} is in the list twice", where=f"--{key}", hint="Write every number once.")
            value = Ramp(from_=0.0, to=number, steps=request.ramp) if request.ramp else number
            values[name] = {key: value, other: None}
    runs = {}
    if request.baseline:
        runs["dense"] = dense = _absolute(request, recipe, {}, [], output / "dense", progress)
        try:
            check_recipe(dense)
        except UserError as error:
            hint = "Leave it out: the model itself is what the gates are compared with."
            raise UserError(f"without gates, {error.message}", where="--baseline", hint=hint) from None
    for name, change in (values or {"recipe": {}}).items():
        directory = output / name if request.is_sweep else output
        losses = {loss: options.model_copy(update=change) for loss, options in recipe.losses.items()}
        if change and not losses:
            raise UserError(
                "the recipe's filters have no penalty to weigh",
                where=f"--{name.partition('-')[0]}",
                hint="Leave it out, or name a recipe with l0drop.",
            )
        runs[name] = _absolute(request, recipe, losses, recipe.model.memory, directory, progress)
    return runs


def _absolute(
    request: FinetuneRequest,
    recipe: Recipe,
    losses: Mapping[str, AuxiliaryLoss],
    memory: list[MemoryChoice],
    directory: Path,
    progress: Progress,
) -> Recipe:
    """Return the recipe of one run, with these losses and filters; its updates count as for `_recipes`."""
    training = recipe.training
    averaged = {"average": training.average_last or _AVERAGED, "last": 1, "best": 0, None: training.average_last or 1}
    average_last = averaged[request.keep]
    # One checkpoint is the last one: the best one may be an early one, before a weight or target has risen.
    choose = training.choose_average if average_last > 1 else "none"
    changed = {
        "average_last": average_last,
        "choose_average": choose,
        "keep_last": max(training.keep_last, average_last),
    }
    own = recipe.model_copy(
        update={
            "directory": str(directory),
            "model": recipe.model.model_copy(update={"memory": memory}),
            "losses": dict(losses),
            "training": training.model_copy(update=changed),
        }
    )
    return counted_on(own, progress, request.updates)


def _compare(models: Mapping[str, Path], run: ModelRun) -> Report:
    """Evaluate models on the dev and test sets of their recipes: one row for each model and set.

    Args:
        models: name -> model directory; the first is the baseline of the significance tests.
        run: device and changes to the decoding options.
    """
    measured = ("number quality against_first", "hidden number low high", "number p_value", "share sparsity")
    heads = columns("text model set", "count sentences", "text metric", *measured)
    names, base = list(models), None
    compared: list[ExperimentModel] = []
    for name, path in models.items():
        compared.append(ExperimentModel(name, path, model_directory.read_recipe(path), baseline=base))
        base = compared[0]
    experiment = Experiment(compared, run=run, attention=False)
    observed = [each for kind in ("dev", "test") for each in experiment.observe_set(kind) if each.values]
    observed.sort(key=lambda each: names.index(each.variant))
    first = {each.labels["set"]: each.values["quality"] for each in observed if each.variant == names[0]}
    rows: list[tuple[Value, ...]] = []
    for each in observed:
        kind, quality = each.labels["set"], each.values["quality"]
        difference = (quality or 0.0) - (first[kind] or 0.0)
        tested = ((each.test or {}).get(name) for name in ("low", "high", "p_value"))
        values = (quality, difference, *tested, each.values["sparsity"])
        rows.append((each.variant, kind, each.sentences, each.labels["metric"], *values))
    segments = [int(each.test["segments"]) for each in observed if each.test]
    averaged = {name: _averaged(directory) for name, directory in models.items()}
    means = [f"{name} {', '.join(updates)}" for name, updates in averaged.items() if updates]
    notes = (
        f"p value: against the first model, {experiment.test.describe(segments)}",
        "sparsity: share of source tokens, </s> included, whose gate is 0 in evaluation",
        *([f"weights: the means of the checkpoints of updates: {'; '.join(means)}"] if means else []),
        *(
            f"beam search: {name.replace('_', ' ')} {value} in place of the recipe's"
            for name, value in run.record().items()
        ),
        *signature_notes(observed),
    )
    return Report("sweep", (Table("sweep", "quality against sparsity", heads, tuple(rows)),), notes)


def _averaged(directory: Path) -> list[str]:
    """Return the updates whose checkpoints a model's weights are the mean of, as text; empty if it was not trained."""
    notes = read_header(directory / model_directory.WEIGHTS, hint="Train the model again.")[1]
    return [each for each in notes.get("made_of", "").split(",") if each]


def _panels(report: Report) -> list[Panel]:
    """Return a diagram of quality against sparsity for each set, with the intervals of the differences."""
    panels = []
    for name in dict.fromkeys(report.tables[0].column("set")):
        rows = [row for row in report.tables[0].records() if row["set"] == name]
        base = float(rows[0]["quality"] or 0)
        series: dict[str, Points] = {}
        intervals: dict[str, list[tuple[float, float] | None]] = {}
        for row in sorted(rows, key=lambda row: float(row["sparsity"] or 0)):
            model, low, high = str(row["model"]), row["low"], row["high"]
            series[model] = [(float(row["sparsity"] or 0), float(row["quality"] or 0))]
            intervals[model] = [None if low is None or high is None else (base + float(low), base + float(high))]
        label = METRICS[str(rows[0]["metric"])].label
        y_label, level = f"{label} on the {name} set", (f"{label} of {rows[0]['model']}", base)
        panels.append(
            Panel("sparsity rate", y_label, series, percent="x", style="points", intervals=intervals, level=level)
        )
    return panels
