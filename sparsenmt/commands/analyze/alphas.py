"""``sparsenmt analyze alphas``: the alphas that attention heads have learned, and their course over training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.analyzing import AnalysisRequest, analysis_options
from sparsenmt.errors import UserError
from sparsenmt.progress import progress_bar

if TYPE_CHECKING:
    from sparsenmt.analysis.alphas import AlphaResult

_HINT = "Take the model directory from a copy, or train it again."


@click.command("alphas", short_help="Learned alphas, and their course over training.")
@analysis_options(reads=False)
def command(job: AnalysisRequest) -> None:
    """Alphas that attention heads have learned (transform `entmax` with `alpha: learned`): 1 is softmax, 2 sparsemax.

    The course over training is read from the checkpoints that a model directory still has; `training.keep_last` says
    how many are kept. Without final weights, the alphas are those of the newest checkpoint.
    """
    from dataclasses import replace

    from sparsenmt.analysis.alphas import panels, report
    from sparsenmt.report.plots import panel_grid

    found, notes = [], []
    for label, directory in job.labels().items():
        one = _measure(label, directory)
        if one is None:
            notes.append(f"{label}: no alpha is learned")
        else:
            found.append(one)
    if not found:
        raise UserError(
            "no alpha is learned in this model",
            where=", ".join(str(directory) for directory in job.models),
            hint="Name a model with `transform: {name: entmax, alpha: learned}` at one of its attention sites.",
        )
    made = report(found)
    job.finish(replace(made, notes=(*made.notes, *notes)), draw=lambda: panel_grid(panels(found)))


def _measure(label: str, directory: Path) -> AlphaResult | None:
    """One model's alphas; None if it learns none."""
    from sparsenmt.analysis.alphas import AlphaResult, alphas_at, learned_alphas
    from sparsenmt.assemble import build_model
    from sparsenmt.store import WEIGHTS, read_recipe
    from sparsenmt.tensors import load_tensors
    from sparsenmt.training.checkpoints import find_checkpoints

    model = build_model(read_recipe(directory).model, source_size=8, target_size=8, seed=1)  # embeddings do not matter
    if not learned_alphas(model):
        return None
    course = {}
    checkpoints = find_checkpoints(directory)
    with progress_bar(f"{label}: checkpoints", len(checkpoints)) as advance:
        for each in checkpoints:
            course[each.update] = alphas_at(model, each.weights(), str(each.path))
            advance(1)
    path = directory / WEIGHTS
    if not path.exists() and course:
        return AlphaResult(label, course[max(course)], course)
    return AlphaResult(label, alphas_at(model, load_tensors(path, hint=_HINT), str(path)), course)
