"""``sparsenmt select-depth``: train a selector that chooses a depth for every sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsenmt.commands.options import PATH, batch_tokens_option, numbers, threads_option, whole_numbers
from sparsenmt.strategy import STRATEGIES

_METHODS = [name for name, strategy in STRATEGIES.items() if not strategy.random]


@click.command("select-depth", short_help="Train a depth selector, and evaluate it.")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.option("--source", "-s", type=PATH, required=True, help="Text to learn from, one sentence per line.")
@click.option("--reference", "-r", type=PATH, required=True, help="Translation of --source, line by line.")
@click.option("--test-source", type=PATH, help="Text to evaluate on.  [default: a tenth of --source, held out]")
@click.option("--test-reference", type=PATH, help="Translation of --test-source, line by line.")
@click.option("--lines", type=click.IntRange(1), help="Number of pairs to use, from the first.  [default: all]")
@click.option("--method", type=click.Choice(_METHODS), help="Decoding strategy.  [default: the recipe's]")
@click.option("--beam-size", type=click.IntRange(1), help="Beam size.  [default: the recipe's]")
@batch_tokens_option()
@click.option("--layers", default="1,2", show_default=True, help="Numbers of classifier layers to try.")
@click.option("--heads", default="4", show_default=True, help="Numbers of classifier attention heads to try.")
@click.option(
    "--alpha",
    default="0,1",
    show_default=True,
    help="Exponents of the weight of positive labels to try (selector alpha).",
)
@click.option("--beta", default="1", show_default=True, help="Values of beta in F_beta to try: above 1 favours recall.")
@click.option(
    "--lambda", "lambdas", default="0.5,1", show_default=True, help="Shares of the cross-entropy in the loss to try."
)
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True, help="Most epochs of each trial.")
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Epochs without improvement after which a trial ends.",
)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Sentences of an update.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    default=0.05,
    show_default=True,
    help="Learning rate of SGD.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the classifier's training.  [default: the recipe's]")
@click.option(
    "--time-lines", type=click.IntRange(1), default=200, show_default=True, help="Number of held-out lines to time."
)
@threads_option
def command(
    model: Path,
    source: Path,
    reference: Path,
    test_source: Path | None,
    test_reference: Path | None,
    lines: int | None,
    method: str | None,
    beam_size: int | None,
    batch_tokens: int | None,
    layers: str,
    heads: str,
    alpha: str,
    beta: str,
    lambdas: str,
    **settings: Any,
) -> None:
    """Train a depth selector for the model in MODEL_DIR, which must have several exits, and save it in the directory.

    Every pair of --source and --reference is translated at every trained depth. The labels of a sentence are all depths
    whose translation has the best sentence-level chrF. A classifier learns to predict them from the source alone
    (Dabre, Rubino and Fujita 2020, Section 4). Every combination of --layers, --heads, --alpha, --beta and --lambda,
    each a list with commas, is tried, and the one with the least validation loss is used. A tenth of the text is the
    validation set.

    At the end, a table of quality and time against every fixed depth and the oracle is printed, and written to
    MODEL_DIR/selector also as JSON and CSV. `sparsenmt decode --depth auto` then uses the selector.

    An interrupted command resumes when it is started again: translations are kept in MODEL_DIR/depths, and the search
    resumes after the last completed combination.
    """
    from sparsenmt.workflows.select_depth import SelectDepthRequest, select_depth

    decoding = {"method": method, "beam_size": beam_size, "batch_tokens": batch_tokens}
    request = SelectDepthRequest(
        model=model,
        source=source,
        reference=reference,
        test_source=test_source,
        test_reference=test_reference,
        limit=lines,
        decoding={name: value for name, value in decoding.items() if value is not None},
        layers=whole_numbers(layers, "--layers"),
        heads=whole_numbers(heads, "--heads"),
        alphas=numbers(alpha, "--alpha"),
        betas=numbers(beta, "--beta"),
        lambdas=numbers(lambdas, "--lambda", most=1),
        **settings,
    )
    click.echo(select_depth(request), nl=False)
