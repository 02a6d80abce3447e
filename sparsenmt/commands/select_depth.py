"""``sparsenmt select-depth``: train what chooses a depth for every sentence."""

from __future__ import annotations

from pathlib import Path

import click

from sparsenmt.errors import UserError
from sparsenmt.strategy import STRATEGIES

_PATH = click.Path(path_type=Path)
_METHODS = [name for name, strategy in STRATEGIES.items() if not strategy.random]


@click.command("select-depth", short_help="Train what chooses a depth for each sentence, and measure it.")
@click.argument("model", metavar="MODEL_DIR", type=_PATH)
@click.option("--source", "-s", type=_PATH, required=True, help="Text to learn from, a sentence a line.")
@click.option("--reference", "-r", type=_PATH, required=True, help="Its translation, line by line.")
@click.option("--test-source", type=_PATH, help="Text to measure on.  [default: a tenth of --source, held out]")
@click.option("--test-reference", type=_PATH, help="Its translation.")
@click.option("--lines", type=click.IntRange(1), help="Only so many pairs of --source, from the first.")
@click.option("--method", type=click.Choice(_METHODS), help="Search method.  [default: the recipe's]")
@click.option("--beam-size", type=click.IntRange(1), help="Of the translations.  [default: the recipe's]")
@click.option("--batch-tokens", type=click.IntRange(1), help="Source tokens in a batch.  [default: the recipe's]")
@click.option("--layers", default="1,2", show_default=True, help="Layers of the classifier to try.")
@click.option("--heads", default="4", show_default=True, help="Its attention heads.")
@click.option("--alpha", default="0,1", show_default=True, help="Exponents of the positive term's weight.")
@click.option("--beta", default="1", show_default=True, help="Of F_beta: above 1 for recall, below for precision.")
@click.option("--lambda", "weights", default="0.5,1", show_default=True, help="Shares of the cross-entropy.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True, help="At most, of each cell.")
@click.option("--patience", type=click.IntRange(1), default=2, show_default=True, help="Epochs without improvement.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Sentences of an update.")
@click.option(
    "--learning-rate", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True, help="SGD's."
)
@click.option("--seed", type=click.IntRange(0), help="Of the classifier's training.  [default: the recipe's]")
@click.option("--time-lines", type=click.IntRange(1), default=200, show_default=True, help="Held-out lines to time.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]")
def command(
    model: Path,
    source: Path,
    reference: Path,
    test_source: Path | None,
    test_reference: Path | None,
    lines: int | None,
    layers: str,
    heads: str,
    alpha: str,
    beta: str,
    weights: str,
    threads: int | None,
    time_lines: int,
    **given: float | str | None,
) -> None:
    """Train a depth selector for the model in MODEL_DIR, which must have several exits, and put it into the directory.

    Every pair of --source and --reference is translated at every trained depth. A sentence's labels are all depths
    whose translation has the best sentence-level chrF. A classifier learns to tell them from the source alone (Dabre,
    Rubino and Fujita 2020, Section 4); every combination of --layers, --heads, --alpha, --beta and --lambda, each a
    list with commas, is tried, and the least validation loss decides. A tenth of the text is for validation.

    At the end stands a table of quality and time against every fixed depth and the oracle; in MODEL_DIR/selector also
    as JSON and CSV. `sparsenmt decode --depth auto` then uses the selector.

    A command that was interrupted goes on when it is started again: translations stay in MODEL_DIR/depths, and the
    search goes on after the last whole combination.
    """
    from sparsenmt.depth_selector.training import Settings, grid
    from sparsenmt.workflows.select_depth import SelectDepthRequest, run

    cells = grid(
        _whole("--layers", layers),
        _whole("--heads", heads),
        _numbers("--alpha", alpha, 0),
        _numbers("--beta", beta, 0),
        _numbers("--lambda", weights, 0, 1),
    )
    if (test_source is None) != (test_reference is None):
        missing, there = ("--test-source", "--test-reference")[:: 1 if test_source is None else -1]
        raise UserError(f"is missing beside {there}", where=missing, hint="Name both files, or neither.")
    if threads is not None:
        from sparsenmt.devices import use_threads

        use_threads(threads)
    test = None if test_source is None or test_reference is None else (test_source, test_reference)
    search = {name: given.pop(name) for name in ("method", "beam_size", "batch_tokens")}
    settings = {name: value for name, value in given.items() if value is not None}
    job = SelectDepthRequest(
        directory=model,
        text=(source, reference),
        test=test,
        limit=lines,
        decoding={name: value for name, value in search.items() if value is not None},
        cells=cells,
        settings=lambda seed: Settings(**{"seed": seed, **settings}),  # type: ignore[arg-type]
        time_lines=time_lines,
    )
    run(job)


def _whole(option: str, value: str) -> list[int]:
    """Whole numbers from 1 on; UserError if they are not."""
    found = _numbers(option, value, 1)
    if any(number != int(number) for number in found):
        raise UserError(f"'{value}' is not a list of whole numbers", where=option, hint="Write it as 2,4.")
    return [int(number) for number in found]


def _numbers(option: str, value: str, least: float, most: float = 1e6) -> list[float]:
    """Different numbers in a range; UserError if they are not."""
    try:
        found = list(dict.fromkeys(float(part) for part in value.split(",")))
    except ValueError:
        found = []
    if not found or not all(least <= number <= most for number in found):
        raise UserError(
            f"'{value}' is not a list of numbers from {least:g} to {most:g}",
            where=option,
            hint="Write them with commas between them, as 0.5,1.",
        )
    return found
