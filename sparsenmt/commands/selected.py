"""``--depth auto``: every line at the depth that the model's selector chooses for it, in `decode`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.commands.depth import OPTIONS
from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from collections import Counter

    from sparsenmt.depth_selector.translate import SelectedDepths
    from sparsenmt.store import Bundle

OPTION = "--depth"
HELP = "auto: every line at the depth that the model's selector chooses; see `sparsenmt select-depth`."
_ONE = "Leave one of the two out."

option = click.option(OPTION, "depth", type=click.Choice(["auto"]), help=HELP)


def check_selected(
    depth: str | None, encoder_layers: int | None, decoder_layers: int | None, documents: Path | None
) -> None:
    """Find out what is wrong with the options before the model is loaded.

    Raises:
        UserError: another option says how deep to go, or lines are joined to blocks.
    """
    if depth is None:
        return
    for other, value in zip(OPTIONS, (encoder_layers, decoder_layers), strict=True):
        if value is not None:
            raise UserError(f"is given beside {OPTION}", where=other, hint=_ONE)
    if documents is not None:
        raise UserError(
            f"is given beside {OPTION}, and a selector chooses for single sentences, not for blocks",
            where="--documents",
            hint=_ONE,
        )


def open_selected(depth: str | None, model: Path, bundle: Bundle) -> SelectedDepths | None:
    """The model's selector, if it is asked for.

    Raises:
        UserError: there is none, or it is damaged, or of another model.
    """
    if depth is None:
        return None
    from sparsenmt.depth_selector.selector import open_selector
    from sparsenmt.depth_selector.translate import SelectedDepths

    return SelectedDepths(open_selector(model, bundle))


def tell_depths(counts: Counter[tuple[int, int]]) -> None:
    """Say how many lines each depth got."""
    from sparsenmt.model.depth_plan import fastest_first

    parts = [f"({n}, {m}) {counts[n, m]:,}" for n, m in fastest_first(counts)]
    if parts:
        click.echo(f"lines at (encoder, decoder) layers: {', '.join(parts)}", err=True)
