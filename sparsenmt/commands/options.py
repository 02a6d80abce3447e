"""Options that several commands share, and the parser of lists of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES
from sparsenmt.recipe.choices import DecodingDtype
from sparsenmt.strategy import STRATEGIES

if TYPE_CHECKING:
    from sparsenmt.workflows.decode import DecodeRequest

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
DTYPES = get_args(DecodingDtype)

dump_config_option = click.option("--dump-config", is_flag=True, help="Print the resolved recipe and exit.")
threads_option = click.option("--threads", type=click.IntRange(1), help="Number of CPU threads.  [default: all cores]")
resamples_option = click.option(
    "--resamples",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Number of bootstrap samples.",
)
disabled_heads_option = click.option(
    "--disable-heads",
    "disabled",
    multiple=True,
    metavar="SITE:N,N",
    help="Attention heads that give zeros, in every layer: SITE:NUMBERS from 1, as encoder_self:2,4; repeatable.",
)
tags_option = click.option(
    "--tags",
    "tags_file",
    type=PATH,
    help="Part-of-speech tags of the source: CoNLL-U or word_TAG.  [default: made by the model's tagger, if needed]",
)
documents_option = click.option(
    "--documents",
    "documents_file",
    type=PATH,
    help="File with the document id of every line; a document ends where the id changes.",
)
sites_option = click.option(
    "--site", "sites", multiple=True, type=click.Choice(SITES), help="Only this attention site; repeatable."
)


def batch_tokens_option(note: str = "source tokens in a batch, padding included, times the beam size") -> Decorator:
    """``--batch-tokens``, described by ``note``."""
    text = f"Most {note}.  [default: the recipe's]"
    return click.option("--batch-tokens", type=click.IntRange(1), help=text)


def depth_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--encoder-layers`` and ``--decoder-layers``, as ``encoder_layers`` and ``decoder_layers``."""
    for side in ("decoder", "encoder"):
        text = f"Run only the first N layers of the {side}.  [default: the recipe's, or all]"
        command = click.option(f"--{side}-layers", type=int, metavar="N", help=text)(command)
    return command


def decoding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The decoding options of `decode` and `distill`; see `decode_request`."""
    options: list[Decorator] = [
        click.option("--method", type=click.Choice(list(STRATEGIES)), help="Decoding strategy."),
        click.option("--beam-size", type=click.IntRange(1), help="Beam size."),
        click.option(
            "--length-penalty",
            type=click.Choice(["gnmt", "average", "none"]),
            help="Length penalty: gnmt (Wu et al. 2016), the average log-probability, or none.",
        ),
        click.option("--alpha", type=click.FloatRange(0), help="Exponent of the length penalty."),
        click.option(
            "--max-length-factor",
            type=click.FloatRange(0),
            help="Longest output in tokens: factor x source tokens + offset.",
        ),
        click.option("--max-length-offset", type=click.IntRange(0), help="Offset of --max-length-factor."),
        click.option("--min-length", type=click.IntRange(0), help="Shortest output in tokens."),
        click.option(
            "--no-repeat-ngram", type=click.IntRange(0), help="Forbid repeated n-grams of this length; 0: allow all."
        ),
        click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sampling temperature."),
        click.option("--top-k", type=click.IntRange(0), help="Sample from the k most probable tokens; 0: from all."),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1, min_open=True),
            help="Sample from the smallest set with this probability.",
        ),
        click.option("--seed", type=click.IntRange(0), help="Seed of sampling."),
        batch_tokens_option(),
        click.option(
            "--dtype", type=click.Choice(DTYPES), help="Data type of matrix products; auto measures which is fastest."
        ),
        depth_options,
        click.option(
            "--depth",
            type=click.Choice(["auto"]),
            help="auto: let the model's selector choose the layers for every line; see `sparsenmt select-depth`.",
        ),
        disabled_heads_option,
        threads_option,
        click.option(
            "--window",
            type=click.IntRange(1, 2**31),
            help="Lines, or blocks of documents, read before the first is written.  [default: 4096; 256; 1 at a "
            "terminal]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def decode_request(model: Path, values: Mapping[str, Any], **files: Any) -> DecodeRequest:
    """Make the request of `workflows.decode` from the values of `decoding_options`.

    Args:
        files: further fields of the request.
    """
    from sparsenmt.workflows.decode import DecodeRequest

    settings = dict(values)
    runtime = {name: settings.pop(name) for name in ("dtype", "encoder_layers", "decoder_layers", "threads", "window")}
    select_depth, disabled = settings.pop("depth") is not None, settings.pop("disabled")
    return DecodeRequest(
        model=model, settings=settings, select_depth=select_depth, disabled_heads=disabled, **runtime, **files
    )


def metrics_option(names: Sequence[str], note: str) -> Decorator:
    """``--metric``, repeatable, one of these names; ``note`` ends its help."""
    return click.option(
        "--metric", "-m", "metrics", multiple=True, type=click.Choice(names), help=f"Metric; repeatable{note}"
    )


def report_options(csv: bool = True, plot: str | None = "Draw the report to this file, .png or .svg.") -> Decorator:
    """``--json``, ``--csv`` and ``--plot``, as ``json_file``, ``csv_file`` and ``plot_file``.

    Args:
        csv: whether there is a ``--csv``.
        plot: help of ``--plot``; None: there is none.
    """
    options = [click.option("--json", "json_file", type=PATH, help="Write the report as JSON to this file.")]
    if csv:
        text = "Write the main table as CSV to this file; further tables beside it."
        options.append(click.option("--csv", "csv_file", type=PATH, help=text))
    if plot is not None:
        options.append(click.option("--plot", "plot_file", type=PATH, help=plot))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def numbers(
    text: str,
    option: str,
    *,
    least: float = 0,
    most: float = 1e6,
    above: bool = False,
    example: str = "0.5,1",
) -> list[float]:
    """Parse a list of numbers with commas between them, without repetitions.

    Args:
        most: infinity if there is no upper bound.
        above: True if ``least`` itself is not allowed, and neither is ``most``.

    Raises:
        UserError: a part is no number, or lies outside of the range.
    """
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = []
    inside = (least < value < most if above else least <= value <= most for value in found)
    if not found or not all(inside) or any(math.isinf(value) for value in found):
        bounds = f"between {least:g} and {most:g}" if above else f"from {least:g} to {most:g}"
        bounds = bounds if math.isfinite(most) else f"of at least {least:g}"
        hint = f"Write them with commas between them, as {example}."
        raise UserError(f"'{text}' is not a list of numbers {bounds}", where=option, hint=hint)
    return found


def whole_numbers(
    text: str, option: str, *, most: int = 1000, ranges: bool = False, rising: bool = False, example: str = "2,4"
) -> list[int]:
    """Parse a list of whole numbers from 1 on, with commas between them.

    Args:
        ranges: True if ``1-3`` stands for 1, 2, 3; the result is sorted then.
        rising: True if every number must be larger than the one before it.

    Raises:
        UserError: the text is no such list.
    """
    found: list[int] = []
    sound = True
    for part in text.replace(" ", "").split(","):
        ends = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (0, 0) if ends is None else (int(ends[1]), int(ends[2] or ends[1]))
        sound &= 1 <= first <= last <= most and (ranges or first == last)
        found += range(first, last + 1) if sound else []
    if rising and sound:
        sound = all(a < b for a, b in pairwise(found))
    if not sound:
        kind = "rising whole numbers" if rising else "whole numbers"
        raise UserError(
            f"'{text}' is not a list of {kind} from 1 to {most:,}",
            where=option,
            hint=f"Write them with commas between them, as {example}.",
        )
    return sorted(set(found)) if ranges else list(dict.fromkeys(found))
