"""The steps of a plan that need training, as files and commands: gates at several targets, and a tied-multi student."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsenmt.recipe.load import dump
from sparsenmt.recipe.method_choice import MethodChoice
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.yaml_tree import write
from sparsenmt.storage.files import make_directories, write_text

TARGETS = (0.3, 0.5, 0.7)
"""Shares of encoder outputs that the gates are trained to close."""
_UPDATES = 0.2  # of the model's own: fewer do not reach a target (docs/records/experiments.md, 2026-11-21)


def write_training_steps(
    model: Path, recipe: Recipe, folder: Path, models: Sequence[Path], options: Sequence[object]
) -> list[str]:
    """Write the recipe of a student and a sweep of all steps; returns the commands, in their order.

    Args:
        model: the directory of the model that gets gates, and that the student learns from.
        folder: where the files are written.
        models, options: of the plan, which is made again with the new models.
    """
    make_directories(folder)
    dense, student = folder / "dense.yaml", folder / "student.yaml"
    write_text(dense, dump(recipe))
    write_text(student, dump(_student(recipe, folder)))
    sweep = folder / "sweep.yaml"
    gates, text = not recipe.model.memory, f"{_student(recipe, folder).data.directory}-text"
    write_text(sweep, write(_sweep(model, recipe, folder, Path(text), gates=gates)))
    return [
        shlex.join(["sparsenmt", *map(str, words)])
        for words in (
            ("distill", model, student, "--until", "data"),
            ("sweep", sweep),
            ("plan", *models, folder / "models", *options),
        )
    ]


def _student(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe of a tied-multi student of the same size, which reads the model's translations."""
    data = recipe.data.model_copy(update={"directory": str((folder / "student-data").resolve())})
    changed: dict[str, Any] = {
        "name": f"{recipe.name}-tied",
        "directory": str(folder / "models" / "student"),
        "model": recipe.model.model_copy(update={"depth": MethodChoice(name="tied_multi")}),
        "data": data,
        "decoding": recipe.decoding.at(None),
    }
    return recipe.model_copy(update=changed)


def _sweep(model: Path, recipe: Recipe, folder: Path, text: Path, *, gates: bool) -> dict[str, Any]:
    """Return the sweep as plain values; ``gates``: the model has no filters yet."""
    targets = [{"label": f"{target:.0%} closed", "name": f"l0drop-{target:g}", "target": target} for target in TARGETS]
    with_gates = {
        "name": "${gates.name}",
        "from": str(model),
        "updates": max(round(_UPDATES * recipe.training.max_updates), 1),
        "at": {"gates": targets},
        "set": {
            "model.memory": [{"name": "l0drop", "at": "output"}],
            "losses.l0.target": "${gates.target}",
        },
    }
    student = {
        "name": "student",
        "recipe": str((text / "student.yaml").resolve()),
        "at": {"gates": "tied-multi student"},
    }
    return {
        "name": f"{recipe.name}-plan",
        "directory": str(folder / "models"),
        "recipe": "dense.yaml",
        "sets": ["dev"],
        "variants": [*([with_gates] if gates else []), student],
    }
