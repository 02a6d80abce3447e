"""``sparsenmt plan``: the cheapest model, and the cheapest way to decode it, that is still good enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, TEXT, count_option, language_options, processor_options
from sparsenmt.commands.output import show_written

AXES = ("depth", "vocabulary", "shortlist", "dtype", "beam", "batch", "threads")
"""The names of `sparsenmt.workflows.plan.candidate.AXES`, which is slow to import."""


@click.command("plan")
@click.argument("models", metavar="MODEL_DIR...", type=PATH, nargs=-1, required=True)
@click.option("--output", "-o", type=PATH, required=True, help="Folder of the plan; the chosen model is in its model/.")
@click.option(
    "--source",
    type=TEXT,
    help="Text on which quality and time are measured.  [default: `data.dev` of the models' recipes]",
)
@click.option("--reference", type=TEXT, help="Reference translation of --source, line by line.")
@click.option(
    "--corpus",
    "corpora",
    type=(TEXT, TEXT),
    multiple=True,
    metavar="SOURCE TARGET",
    help="Line-aligned texts; shortlists and cut vocabularies are made of them and tried; repeatable.",
)
@click.option(
    "--within",
    metavar="METRIC -LOSS",
    help="The loss that is allowed, as 'bleu -0.5'.  [default: the metric of the first recipe's validation, 0.5]",
)
@click.option("--memory", metavar="SIZE", help="Most memory of the process, as 300MB.")
@click.option("--size", metavar="SIZE", help="Largest model directory, as 80MB.")
@click.option("--latency", metavar="TIME", help="Longest time of a line that is translated alone, as 20ms.")
@click.option("--axis", "axes", type=click.Choice(AXES), multiple=True, help="Try this only; repeatable.")
@count_option("--rounds", 3, "Turns of each candidate on the same lines.")
@click.option("--exhaustive", is_flag=True, help="Measure every combination on the whole text: a check, slow.")
@click.option("--dry-run", is_flag=True, help="Say what would be tried and how long it takes; write nothing.")
@click.option(
    "--with-training",
    is_flag=True,
    help="Write the sweep of steps that need training, too: gates at several targets, a tied-multi student.",
)
@language_options
@processor_options
def command(
    within: str | None, memory: str | None, size: str | None, latency: str | None, rounds: int, **options: Any
) -> None:
    """Find the cheapest of some models, and the cheapest way to decode it, that is good enough, and write it.

    MODEL_DIR may be a folder of models, as `sweep` and `finetune-l0` write them; the first model by its recipe is the
    reference. Tried are what the models allow: trained depths, a cut vocabulary, a shortlist, dtypes, smaller beams;
    then sizes of batches and threads.

    \b
    sparsenmt plan runs/tied runs/l0drop --within "bleu -0.5" --memory 400MB -o runs/plan
    sparsenmt decode runs/plan/model -i text.en

    All candidates translate a few lines in turns with the reference; the most promising fifth translates more, the
    last ones all lines. Of those that meet the budget the fastest is written to model/ of --output, with its choices
    in the section `decoding` of its recipe; of equally fast ones the simplest. If none does, the nearest is named, and
    the exit code is 1. If it is interrupted, the same command resumes; with another budget, no trial is measured twice.
    """
    from sparsenmt.workflows.plan.budget import Budget
    from sparsenmt.workflows.plan.plan import PlanRequest, plan

    budget = Budget.parse(within, memory, size, latency)
    result = plan(PlanRequest(budget=budget, turns=rounds, **options))
    written = [*result.shown.files, *([Path(result.model)] if result.model is not None else [])]
    show_written(result.shown.text, written)
    if not result.meets:
        raise click.exceptions.Exit(1)
