"""``sparsenmt sweep``: one recipe in many variants, trained, evaluated, and shown as a table."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.errors import UserError


@click.command("sweep", short_help="Train and evaluate the variants of a recipe; print their table.")
@click.argument("sweep_file", metavar="SWEEP", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
@click.option("--only", metavar="NAME", multiple=True, help="Only these variants; may be repeated, and hold * and ?.")
@click.option("--list", "lists", is_flag=True, help="List the variants, and how far they are.")
@click.option("--table", is_flag=True, help="Print the table of what is there; train and evaluate nothing.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Where the variants lie, instead of the sweep's directory."
)
def command(
    sweep_file: Path, overrides: tuple[str, ...], only: tuple[str, ...], lists: bool, table: bool, output: Path | None
) -> None:
    """Make what SWEEP describes: variants of a recipe, each in a directory of its own; docs/sweeps.md says how.

    Variants that are finished are left as they are, one that was interrupted goes on, and what was translated is not
    translated again: the same command started again does what is left, and prints the table. OVERRIDES change keys of
    the recipe in all variants, for instance training.threads=1.
    """
    from sparsenmt.interrupts import Interrupted
    from sparsenmt.recipe.sweep import read_sweep
    from sparsenmt.workflows.sweep import choose, leads, plan, run, show, state

    if lists and table:
        raise UserError("--list and --table exclude each other", where="--list", hint="Give one of them.")
    sweep = read_sweep(sweep_file)
    jobs = plan(sweep, overrides, output)
    chosen = choose(jobs, only)
    if lists:
        from sparsenmt.report.columns import aligned

        click.echo("\n".join(aligned([(job.name, state(job), str(job.directory)) for job in chosen])))
        return
    where = output or sweep.directory
    if table:
        show(sweep, jobs, where)
        return
    try:
        failed = run(sweep, jobs, chosen)
    except Interrupted as interrupt:
        interrupt.resumable = leads()
        raise
    if leads():
        show(sweep, jobs, where)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(chosen)} variants failed: {', '.join(failed)}",
            where=str(sweep_file),
            hint="Their messages stand above. The same command tries them again, and leaves the others.",
        )
