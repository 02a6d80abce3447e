"""``sparsenmt sweep``: one recipe in many variants, trained, evaluated, and shown as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.commands.options import (
    PATH,
    evaluation_options,
    scoring_options,
    trained_and_run,
    training_processor_options,
)
from sparsenmt.commands.output import show, show_written
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.evaluation.scorer import ScoringOptions


@click.command("sweep")
@click.argument("sweep_file", metavar="SWEEP", type=PATH)
@click.argument("overrides", nargs=-1)
@click.option("--only", metavar="NAME", multiple=True, help="Only variants of this name, with * and ?; repeatable.")
@click.option("--list", "lists", is_flag=True, help="List the variants and their progress, and exit.")
@click.option("--table", is_flag=True, help="Print the table of the finished variants; train and evaluate nothing.")
@click.option("--output", "-o", type=PATH, help="Folder of the variants.  [default: the sweep's directory]")
@scoring_options("the sweep's", texts=True)
@evaluation_options
@training_processor_options
def command(
    sweep_file: Path,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    lists: bool,
    table: bool,
    output: Path | None,
    scoring: ScoringOptions,
    **options: Any,
) -> None:
    """Train and evaluate the variants of a recipe that SWEEP describes, each in a directory of its own.

    docs/guides/sweeps.md explains the file. Finished variants are not trained or translated again: after an interrupt
    the same command resumes, and prints the table. OVERRIDES change keys of the recipe in all variants, for instance
    training.threads=1. Scoring options stand in place of the file's keys: kept translations are scored anew.
    """
    if lists and table:
        raise UserError("--list and --table exclude each other", where="--list", hint="Give one of them.")

    from sparsenmt.recipe.sweep import read_sweep
    from sparsenmt.report.columns import aligned
    from sparsenmt.workflows.training.sweep import plan_sweep, sweep

    trained, run = trained_and_run(options)
    changes = [*overrides, *trained]
    if lists or table:
        plan = plan_sweep(read_sweep(sweep_file), changes, output, scoring, run)
        chosen = plan.select(only)
        if lists:
            show("\n".join(aligned([(each.name, each.state(), str(each.directory)) for each in chosen])))
        else:
            written = plan.tabulate()
            show_written(written.text, written.files)
        return
    result = sweep(sweep_file, changes, only=only, output=output, scoring=scoring, model_run=run)
    if result.table is not None:
        show_written(result.table.text, result.table.files)
    if result.failed:
        raise UserError(
            f"{len(result.failed)} of {result.variants} variants failed: {', '.join(result.failed)}",
            where=str(sweep_file),
            hint="See their messages above. The same command tries them again; finished variants are kept.",
        )
