"""Options of every command that measures quality: which metrics, and how often the bootstrap draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

resamples_option = click.option(
    "--resamples", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Samples of the bootstrap."
)


def metrics_option(names: Sequence[str], note: str) -> Decorator:
    """``--metric``, repeatable, one of these names; ``note`` is the rest of its help."""
    return click.option(
        "--metric", "-m", "metrics", multiple=True, type=click.Choice(names), help=f"Repeat for more{note}"
    )
