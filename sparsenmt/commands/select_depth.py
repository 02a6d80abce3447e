"""``sparsenmt select-depth``: train a selector that chooses a depth for every sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from sparsenmt.commands.options import (
    PATH,
    TEXT,
    Decorator,
    TableChoice,
    count_option,
    evaluation_options,
    language_options,
    numbers,
    parsed,
    processor_options,
    whole_numbers,
)
from sparsenmt.commands.output import show
from sparsenmt.strategy import STRATEGIES

_METHOD = TableChoice(STRATEGIES, offered=lambda strategy: not strategy.random)


def _grid_option(
    option: str, name: str, default: str, text: str, parse: Callable[..., Sequence[float]] = numbers, **limits: Any
) -> Decorator:
    """An option that is a list of values of a hyperparameter."""
    callback = parsed(parse, **limits)
    return click.option(option, name, default=default, show_default=True, callback=callback, help=text)


@click.command("select-depth")
@click.argument("model", metavar="MODEL_DIR", type=PATH)
@click.option("--source", "-s", type=TEXT, required=True, help="Text to learn from, one sentence per line.")
@click.option("--reference", "-r", type=TEXT, required=True, help="Translation of --source, line by line.")
@click.option("--test-source", type=TEXT, help="Text to evaluate on.  [default: a tenth of --source, held out]")
@click.option("--test-reference", type=TEXT, help="Translation of --test-source, line by line.")
@click.option("--finetune-source", type=TEXT, help="Text to fine-tune on after the search, as a development set.")
@click.option("--finetune-reference", type=TEXT, help="Translation of --finetune-source, line by line.")
@click.option(
    "--lines", "limit", type=click.IntRange(1), help="Number of pairs to use, from the first.  [default: all]"
)
@click.option("--method", type=_METHOD, help="Decoding strategy.  [default: the recipe's]")
@evaluation_options
@language_options
@_grid_option("--layers", "layers", "1,2", "Numbers of classifier layers to try.", whole_numbers)
@_grid_option("--heads", "heads", "4", "Numbers of classifier attention heads to try.", whole_numbers)
@_grid_option("--alpha", "alphas", "0,1", "Exponents of the weight of positive labels to try (selector alpha).")
@_grid_option("--beta", "betas", "1", "Values of beta in F_beta to try: above 1 favours recall.")
@_grid_option("--lambda", "lambdas", "0.5,1", "Shares of the cross-entropy in the loss to try.", most=1)
@count_option("--epochs", 10, "Most epochs of each trial.")
@count_option("--patience", 2, "Epochs without improvement after which a trial ends.")
@count_option("--batch-size", 32, "Sentences of an update.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    default=0.05,
    show_default=True,
    help="Learning rate of SGD.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the classifier's training.  [default: the recipe's]")
@count_option("--time-lines", 200, "Number of held-out lines to time.")
@processor_options
def command(**settings: Any) -> None:
    """Train a depth selector for the model in MODEL_DIR, which must have several exits, and save it in the directory.

    Every pair of --source and --reference is translated at every trained depth. The labels of a sentence are all depths
    whose translation has the best sentence-level chrF. A classifier learns to predict them from the source alone
    (Dabre, Rubino and Fujita 2020, Section 4). Every combination of --layers, --heads, --alpha, --beta and --lambda,
    each a list with commas, is tried, and the one with the least validation loss is used. A tenth of the text is the
    validation set.

    With --finetune-source, the best classifier of each size (--layers, --heads) is trained further on that text, and
    the one that the search has chosen is used in this form.

    At the end, a table of quality and time against every fixed depth and the oracle is printed, and one of the
    classifiers of each size (the paper's Table 2). Both are written to MODEL_DIR/selector also as JSON and CSV.
    `sparsenmt decode --depth auto` then uses the selector.

    An interrupted command resumes when it is started again: translations are kept in MODEL_DIR/depths, and the search
    resumes after the last completed combination.
    """
    from sparsenmt.workflows.decoding.select_depth import SelectDepthRequest, select_depth

    show(select_depth(SelectDepthRequest(**settings)).removesuffix("\n"))
