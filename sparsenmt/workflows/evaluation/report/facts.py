"""The facts of a report: models with recipes, sizes, hashes and numerics, and the course of their training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsenmt.analysis.labels import SITE_NAMES
from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.methods import chosen_methods
from sparsenmt.assemble.model_directory import METRICS_FILE, WEIGHTS, parameter_count, read_manifest
from sparsenmt.engine.native_engine import NativeEngine
from sparsenmt.engine.numerics import numerics
from sparsenmt.errors import UserError
from sparsenmt.metric import metric_label
from sparsenmt.recipe.load import dump
from sparsenmt.recipe.schema import ModelSection, Recipe
from sparsenmt.report.page.document import Diagram, Listing, ReportSection
from sparsenmt.report.page.table_views import lines
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Table, Value, columns
from sparsenmt.storage.files import sha256_text
from sparsenmt.training.training_log import logged_values, training_time, training_updates
from sparsenmt.workflows.evaluation.report.report_data import ReportData

Course = list[tuple[float, float | None]]


def describe_models(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the models themselves; all are opened. UserError if one is damaged."""
    rows, listings = [], []
    for model in data.session.opened():
        directory, bundle = data.labels[model.label], model.bundle
        manifest = read_manifest(directory)
        recipe = dump(bundle.recipe)
        rows.append((model.label, *_facts(directory, bundle, manifest, recipe)))
        listings.append(Listing(f"recipe of {model.label}", recipe, "yaml"))
    made_by = json.dumps(numerics(bundle.device), indent=2, sort_keys=True)
    heads = columns(
        *("text model methods kernels languages", "count encoder_layers decoder_layers dimension"),
        *("count source_vocabulary target_vocabulary parameters bytes updates", "rate training_seconds"),
        *("text weights recipe data origin version torch revision",),
    )
    notes = (
        "weights, recipe, data: the first digits of their hashes",
        "version, torch, revision: of this program and of PyTorch in training",
    )
    table = Table("models", "models", heads, rows)
    return replace(
        section, tables=(table,), notes=notes, listings=(*listings, Listing("numerics of this run", made_by, "json"))
    )


def _facts(directory: Path, bundle: Bundle, manifest: dict[str, Any], recipe: str) -> tuple[Value, ...]:
    """Return the cells of a model."""
    made, data = manifest["provenance"], bundle.recipe.data
    encoder, decoder = bundle.depth
    origin = manifest.get("imported_from") or manifest.get("cut_from") or manifest.get("started_from") or {}
    sizes = bundle.tokenizers.source.size, bundle.tokenizers.target.size, parameter_count(directory)
    time = (directory / WEIGHTS).stat().st_size, training_updates(directory), training_time(directory)
    hashes = bundle.weights_digest[:12], sha256_text(recipe)[:12], str(manifest["data_fingerprint"])[:12]
    version = (made.get("sparsenmt"), made.get("torch"), made.get("git_revision"))
    return (
        *(", ".join(sorted(sparsity_methods(bundle.recipe))) or "none", kernels_of(bundle)),
        *(f"{data.source_language}-{data.target_language}", encoder, decoder, bundle.recipe.model.dimension),
        *(*sizes, *time, *hashes, origin.get("path"), *(None if each is None else str(each) for each in version)),
    )


def kernels_of(bundle: Bundle) -> str:
    """Return the kernels that a model decodes with, in a word."""
    return "compiled" if isinstance(bundle.engine, NativeEngine) else "PyTorch"


def sparsity_methods(recipe: Recipe) -> set[str]:
    """Return the names of the methods of a recipe that are not those of a plain Transformer."""
    usual = {method.name for _, method, _ in chosen_methods(ModelSection())}
    return {method.name for _, method, _ in chosen_methods(recipe.model)} - usual


def draw_training(data: ReportData, section: ReportSection) -> ReportSection:
    """Fill the section on the course of training. UserError if no model has a log."""
    if not any((directory / METRICS_FILE).is_file() for directory in data.labels.values()):
        raise UserError(f"no model has a log of its training ({METRICS_FILE})", hint="`sparsenmt train` writes it.")
    rates = _named((label, _course(each, "train", "rate")) for label, each in data.labels.items())
    closed = lines(_of_losses(data, "closed"), "update", "share of gates that are 0")
    diagrams = [
        ("loss", [lines(_losses(data), "update", "loss for each token")]),
        ("quality in validation", _quality(data)),
        ("learning rate", [lines(rates, "update", "learning rate")]),
        ("weight of auxiliary losses (lambda)", [lines(_of_losses(data, "weight"), "update", "weight")]),
        ("gates that are closed", [replace(closed, percent="y")]),
        ("learned values of heads", _of_heads(data)),
    ]
    drawn = [(title, [panel for panel in panels if panel.series]) for title, panels in diagrams]
    missing = [label for label, directory in data.labels.items() if not (directory / METRICS_FILE).is_file()]
    notes = tuple(f"{label}: there is no log of its training" for label in missing)
    made = tuple(Diagram(title, tuple(panels)) for title, panels in drawn if panels)
    return replace(section, diagrams=made, notes=notes)


def _course(directory: Path, kind: str, *keys: str) -> Course:
    """Return update and value of each line of a log, of a key in keys; a value that is not finite leaves a gap."""
    found: Course = []
    for update, value in logged_values(directory, kind, "update", keys[0]):
        for key in keys[1:]:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(update, int):
            found.append((float(update), _mean(value)))
    return found if any(value is not None for _, value in found) else []


def _mean(value: Any) -> float | None:
    """Return a number, or the mean of all numbers in nested lists; None if there is none, or one is not finite."""
    flat = list(_numbers(value))
    return sum(flat) / len(flat) if flat and all(map(math.isfinite, flat)) else None


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield float(value)


def _named(found: Iterable[tuple[str, Course]]) -> dict[str, Course]:
    return {name: course for name, course in found if course}


def _losses(data: ReportData) -> dict[str, Course]:
    kinds = {"train": "training", "validation": "validation"}
    return _named(
        (f"{label}, {name}", _course(directory, kind, "loss"))
        for label, directory in data.labels.items()
        for kind, name in kinds.items()
    )


def _quality(data: ReportData) -> list[Panel]:
    """Return a panel for each metric that models were validated by."""
    metrics = {label: recipe.training.validation.metric for label, recipe in data.recipes.items()}
    panels = []
    for metric in dict.fromkeys(metrics.values()):
        own = {label: data.labels[label] for label, each in metrics.items() if each == metric != "loss"}
        found = _named((label, _course(directory, "validation", metric)) for label, directory in own.items())
        panels += [lines(found, "update", metric_label(metric))] if found else []
    return panels


def _of_losses(data: ReportData, what: str) -> dict[str, Course]:
    """Return the courses of the logged ``what`` of auxiliary losses and filters, by model and name."""
    found = []
    for label, recipe in data.recipes.items():
        for name in dict.fromkeys([*recipe.losses, *(each.name for each in recipe.model.memory)]):
            found.append((f"{label}, {name}", _course(data.labels[label], "train", f"{name}_{what}")))
    return _named(found)


def _of_heads(data: ReportData) -> list[Panel]:
    """Return a panel for each value that heads learn: the means over the heads of each site."""
    panels = []
    for value in ("alpha", "span"):
        found = _named(
            (f"{label}, {name}", _course(directory, "train", "heads", value, site))
            for label, directory in data.labels.items()
            for site, name in SITE_NAMES.items()
        )
        panels += [lines(found, "update", f"{value}, mean over heads")]
    return panels
