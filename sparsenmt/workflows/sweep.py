"""Running a sweep: what each variant is, which are finished, how one is made, and what all of them give."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError
from sparsenmt.runtime import is_distributed, is_main_process

if TYPE_CHECKING:
    from sparsenmt.recipe.schema import Recipe
    from sparsenmt.recipe.sweep import Sweep
    from sparsenmt.recipe.variants import Variant
    from sparsenmt.workflows.evaluate import Evaluation
    from sparsenmt.workflows.sweep_table import Observation

RECORD = "sweep.json"
"""File of a model directory: which variant it is, and that it is finished."""


@dataclass(frozen=True)
class VariantRun:
    """A variant with its recipe, whose updates count from the beginning of the variant."""

    variant: Variant
    recipe: Recipe

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def directory(self) -> Path:
        return Path(self.recipe.directory)


def plan(sweep: Sweep, overrides: Sequence[str] = (), output: Path | None = None) -> list[VariantRun]:
    """All variants with their recipes.

    Args:
        overrides: laid over every variant.
        output: instead of the sweep's directory.

    Raises:
        UserError: something is wrong with a recipe, or two variants cannot share what they share.
    """
    from sparsenmt.assemble import load_recipe

    where, jobs = output or sweep.directory, []
    names = {variant.name for variant in sweep.variants}
    for variant in sweep.variants:
        try:
            recipe = load_recipe(variant.recipe, [*variant.settings, *overrides])
        except UserError as error:
            error.where = f"{error.where} (variant {variant.name})"
            raise
        named = {"directory": str(where / variant.name), "name": f"{sweep.name}-{variant.name}"}
        if str(variant.start) in names:
            variant = replace(variant, start=where / str(variant.start))
        jobs.append(VariantRun(variant, recipe.model_copy(update=named)))
    _check_texts(sweep, jobs)
    _check_data(jobs)
    return jobs


def _check_texts(sweep: Sweep, jobs: Sequence[VariantRun]) -> None:
    for job in jobs:
        if "test" in sweep.sets and job.recipe.data.test is None:
            raise UserError(
                f"the recipe of variant {job.name} has no `data.test`",
                where=f"{sweep.path}: sets",
                hint="Add it to the recipe, or write `sets: [dev]`.",
            )


def _check_data(jobs: Sequence[VariantRun]) -> None:
    """Variants that share a data directory must want the same data there."""
    from sparsenmt.assemble import required_features
    from sparsenmt.data.prepare.pipeline import preparation_settings
    from sparsenmt.files import describe_changes

    first: dict[str, tuple[VariantRun, dict[str, Any]]] = {}
    for job in jobs:
        settings = preparation_settings(job.recipe.data, required_features(job.recipe))
        other, theirs = first.setdefault(job.recipe.data.directory, (job, settings))
        if changed := describe_changes(theirs, settings, "data"):
            raise UserError(
                f"the variants {other.name} and {job.name} want different data there: {'; '.join(changed)}",
                where=job.recipe.data.directory,
                hint="Give one of them another `data.directory` under `set`.",
            )


def choose(jobs: Sequence[VariantRun], patterns: Sequence[str]) -> list[VariantRun]:
    """The jobs whose name fits a pattern (`topk-*`), all without patterns.

    Raises:
        UserError: a pattern fits none.
    """
    for pattern in patterns:
        if not any(fnmatchcase(job.name, pattern) for job in jobs):
            names = ", ".join(job.name for job in jobs)
            raise UserError(f"no variant is named '{pattern}'", where="--only", hint=f"There are: {names}.")
    return [job for job in jobs if not patterns or any(fnmatchcase(job.name, pattern) for pattern in patterns)]


def run(sweep: Sweep, jobs: Sequence[VariantRun], chosen: Sequence[VariantRun]) -> list[str]:
    """Make and measure the chosen variants, one after the other; a variant that fails does not stop the others.

    Args:
        jobs: all of them.

    Returns:
        the names of those that failed; what is wrong with each was shown.

    Raises:
        UserError: before any work, if a model that a variant begins from is not there; or data cannot be prepared.
    """
    _check_starts(sweep, jobs, chosen)
    for job in chosen:
        _prepare(job)
    failed = []
    for number, job in enumerate(chosen, start=1):
        head = f"[{number}/{len(chosen)}] {job.name}"
        try:
            if is_finished(job):
                click.echo(f"{head}: finished", err=True)
            else:
                click.echo(f"{head}: {job.directory}", err=True)
                _make(sweep, job, jobs)
            _measure(sweep, job)
        except UserError as error:
            failed.append(job.name)
            click.echo(f"{head}: failed: {error}", err=True)
    return failed


def _check_starts(sweep: Sweep, jobs: Sequence[VariantRun], chosen: Sequence[VariantRun]) -> None:
    """Every model that a variant begins from must be there, or come before it."""
    from sparsenmt.store import read_manifest

    to_come = {job.directory.resolve(): job for job in jobs}
    for job in chosen:
        start = job.variant.start
        if start is None or is_finished(job):
            continue
        earlier = to_come.get(start.resolve())
        if earlier is None:
            read_manifest(start)
        elif not is_finished(earlier) and earlier not in chosen[: list(chosen).index(job)]:
            raise UserError(
                f"variant {job.name} begins from variant {earlier.name}, which is not finished",
                where=str(sweep.path),
                hint=f"Let {earlier.name} stand before it, and name it with `--only` too.",
            )


def _prepare(job: VariantRun) -> None:
    """Prepare the data of a variant, where nothing is there yet."""
    from sparsenmt.assemble import required_features
    from sparsenmt.data.prepare.pipeline import prepare

    if not Path(job.recipe.data.directory).exists() and not is_distributed() and not is_finished(job):
        report = prepare(job.recipe.data, features=required_features(job.recipe))
        click.echo(report.describe(), err=True)


def _make(sweep: Sweep, job: VariantRun, jobs: Sequence[VariantRun]) -> None:
    """Train a variant, or go on with it; and write down that it is finished."""
    from sparsenmt.files import write_sealed
    from sparsenmt.workflows.continue_training import check_vocabularies, counted_on, make_untrained, starting_point
    from sparsenmt.workflows.train import train

    variant, recipe, origin = job.variant, job.recipe, None
    if variant.start is not None:
        remedy = "Write `restart: true`, to begin with its weights and a new optimizer, or name another model."
        weights_only = variant.restart or variant.updates == 0
        origin, start = starting_point(variant.start, weights_only=weights_only, remedy=remedy)
        if variant.updates != 0:  # else nothing is trained, and its settings are only read
            recipe = counted_on(recipe, start, variant.updates)
        check_vocabularies(recipe, variant.start)
    if origin is not None and variant.updates == 0:
        make_untrained(recipe, origin)
    else:
        train(recipe, origin)
    if leads():
        write_sealed(job.directory / RECORD, _record(job))
        if sweep.remove_checkpoints and not any(_needs(other, job) for other in jobs):
            shutil.rmtree(job.directory / "checkpoints", ignore_errors=True)


def _needs(other: VariantRun, job: VariantRun) -> bool:
    """Whether a variant goes on from the checkpoints of another one."""
    variant = other.variant
    same = variant.start is not None and variant.start.resolve() == job.directory.resolve()
    return same and not variant.restart and variant.updates != 0


def leads() -> bool:
    """Whether this is the only process, or the first of several."""
    return is_main_process()


def _record(job: VariantRun) -> dict[str, Any]:
    """What a finished variant was made of."""
    from sparsenmt import store

    variant = job.variant
    there = variant.start is not None and (variant.start / store.WEIGHTS).exists()
    return {
        "recipe": job.recipe.model_dump(mode="json", by_alias=True),
        "from": None if variant.start is None else store.weights_digest(variant.start) if there else "gone",
        "updates": variant.updates,
        "restart": variant.restart,
        "weights": store.weights_digest(job.directory),
    }


def is_finished(job: VariantRun) -> bool:
    """Whether the variant stands there as the sweep wants it. Checkpoints are not needed, nor what it began from."""
    from sparsenmt import store
    from sparsenmt.assemble import load_resolved_recipe
    from sparsenmt.files import read_sealed
    from sparsenmt.workflows.run_checks import is_same_run

    path = job.directory / RECORD
    try:
        if not path.exists():
            return False
        written, now = read_sealed(path, hint="The variant is made again."), _record(job)
        recipe = load_resolved_recipe(written["recipe"], origin=str(path))
        store.read_manifest(job.directory)
    except (UserError, KeyError):
        return False
    same = all(written.get(key) == now[key] for key in ("updates", "restart", "weights"))
    return same and now["from"] in (written.get("from"), "gone") and is_same_run(recipe, job.recipe)


def state(job: VariantRun) -> str:
    """How far a variant is, for `--list`."""
    from sparsenmt import store
    from sparsenmt.training.checkpoints import find_checkpoints

    if is_finished(job):
        return "finished"
    if not (job.directory / store.MANIFEST).exists():
        return "not begun"
    checkpoints = find_checkpoints(job.directory)
    return f"after update {checkpoints[-1].update:,}" if checkpoints else "begun"


def _metrics(sweep: Sweep, job: VariantRun) -> tuple[str, ...]:
    from sparsenmt.workflows.evaluate import metric_of

    return sweep.metrics or (metric_of(job.recipe),)


def _measure(sweep: Sweep, job: VariantRun) -> None:
    """Translate and score; what is kept is not measured again."""
    from sparsenmt.workflows.evaluate import evaluate, text_of

    for kind in sweep.sets:
        text = text_of(job.recipe, kind)
        if text is not None and leads():
            evaluate(job.directory, text, _metrics(sweep, job))


def observations(sweep: Sweep, jobs: Sequence[VariantRun]) -> list[Observation]:
    """What is kept of all variants: nothing is trained or translated here."""
    from sparsenmt.workflows.evaluate import kept_evaluation, text_of

    finished = {job.name: is_finished(job) for job in jobs}
    found: list[Observation] = []
    for kind in sweep.sets:
        kept: dict[str, Evaluation] = {}
        for job in jobs:
            text = text_of(job.recipe, kind)
            if text is not None and finished[job.name]:
                evaluation = kept_evaluation(job.directory, text, _metrics(sweep, job))
                if evaluation is not None:
                    kept[job.name] = evaluation
        for job in jobs:
            found += _observed(sweep, job, jobs, kind, kept)
    return found


def _observed(
    sweep: Sweep, job: VariantRun, jobs: Sequence[VariantRun], kind: str, kept: dict[str, Evaluation]
) -> list[Observation]:
    """One variant on one set, a metric each."""
    from sparsenmt.workflows.evaluate import text_of
    from sparsenmt.workflows.sweep_table import Observation
    from sparsenmt.workflows.timing import training_speed

    own, baseline = kept.get(job.name), _baseline(sweep, job, jobs)
    result = []
    for metric in _metrics(sweep, job):
        labels = {**job.variant.labels, "set": kind, "metric": metric}
        if own is None:
            result.append(Observation(job.name, labels, {}))
            continue
        values = {
            "quality": own.scores[metric],
            "parameters": own.parameters,
            "sparsity": own.sparsity,
            "attended": own.overall("attended"),
            "density": own.overall("density"),
            "training_speed": training_speed(job.directory),
        }
        other = None if baseline is None else kept.get(baseline.name)
        text = text_of(job.recipe, kind)
        tested = None
        if other is not None and text is not None:
            tested = own.against(other, metric, text, job.recipe.data.target_language)
        result.append(Observation(job.name, labels, values, tested, own.sentences))
    return result


def _baseline(sweep: Sweep, job: VariantRun, jobs: Sequence[VariantRun]) -> VariantRun | None:
    """The variant that this one is tested against: where nothing is laid out, the first one with its seed."""
    if sweep.layout is None:
        seed = job.variant.labels.get("seed")
        found = next((other for other in jobs if other.variant.labels.get("seed") == seed), None)
    elif sweep.layout.baseline:
        wanted = {**job.variant.labels, **{axis: str(label) for axis, label in sweep.layout.baseline.items()}}
        found = next((other for other in jobs if other.variant.labels == wanted), None)
    else:
        return None
    return None if found is job else found


def show(sweep: Sweep, jobs: Sequence[VariantRun], output: Path) -> None:
    """Print the table; write it as text, CSV, JSON and plot beside the variants."""
    from sparsenmt.files import write_text
    from sparsenmt.report.tables import render, write_report
    from sparsenmt.workflows.sweep_table import grids, notes, panels, report

    found = observations(sweep, jobs)
    rows = report(sweep.name, sweep.title, found, [axis for axis in sweep.axes if axis not in ("set", "metric")])
    legend = "\n".join(notes(sweep.layout, found))
    if sweep.layout is None:
        text = render(rows)
    else:
        text = "\n\n".join([sweep.title, *(str(grid) for grid in grids(sweep.layout, found))])
    text = "\n\n".join(filter(None, [text, legend]))
    if any(each.values for each in found):
        paths = write_report(rows, json=output / "table.json", csv=output / "table.csv")
        paths.append(output / "table.txt")
        write_text(paths[-1], f"{text}\n")
        drawn = [] if sweep.layout is None else panels(sweep.layout, found)
        if drawn and importlib.util.find_spec("matplotlib") is not None:
            from sparsenmt.report.plots import curves, save

            paths.append(output / "table.png")
            save(curves(drawn), paths[-1])
        click.echo(text)
        click.echo("written: " + ", ".join(map(str, paths)), err=True)
        return
    click.echo(text)
