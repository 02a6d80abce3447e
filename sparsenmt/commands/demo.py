"""``sparsenmt demo``: everything from raw text to a scored translation, on the built-in corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.options import PATH, evaluation_options, training_overrides, training_processor_options
from sparsenmt.commands.output import show

if TYPE_CHECKING:
    from sparsenmt.workflows.training.demo import DemoResult

_SAMPLES = 5


@click.command("demo")
@click.argument("overrides", nargs=-1)
@click.option("--directory", type=PATH, default=Path("runs/demo"), show_default=True, help="Directory to write.")
@evaluation_options
@training_processor_options
def command(
    overrides: tuple[str, ...],
    directory: Path,
    beam_size: int | None,
    batch_tokens: int | None,
    threads: int | None,
    device: str | None,
) -> None:
    """Write a small English-German corpus, train a model on it, translate its test set and score the translations.

    Stages that are finished in the directory are not run again: after an interrupt the same command resumes. OVERRIDES
    change single keys of the demo's recipe, for instance training.max_updates=200.
    """
    from sparsenmt.evaluation.score_table import table
    from sparsenmt.workflows.evaluation.evaluate import ModelRun
    from sparsenmt.workflows.training.demo import demo

    run = ModelRun(device=device or "auto", beam_size=beam_size, batch_tokens=batch_tokens)
    result = demo(directory, [*overrides, *training_overrides(threads, device)], run)
    show(f"{_samples(result)}\n")
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in result.seconds.items())
    show(table(result.scores, note=seconds))


def _samples(result: DemoResult) -> str:
    """Return some translations, evenly spread over the test set."""
    count = len(result.sources)
    return "\n".join(
        f"\n  source     {result.sources[i]}\n  reference  {result.references[i]}\n  output     {result.outputs[i]}"
        for i in range(0, count, max(count // _SAMPLES, 1))[:_SAMPLES]
    )
