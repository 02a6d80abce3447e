"""What commands say of sources that are not read to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sparsenmt.decoding.inputs import SourceLine
    from sparsenmt.store import Bundle


def tell_cuts(bundle: Bundle, lines: Sequence[SourceLine], source: str, done: str) -> None:
    """How many sources were cut where the recipe says so; otherwise every line that was too long.

    Args:
        source: what messages call the text.
        done: what happens to the pieces that are kept, e.g. "translated".
    """
    from sparsenmt.decoding.inputs import cut_summary, cut_warning

    cut = [line for line in lines if line.cut]
    if cut and bundle.cuts_by_choice:
        click.echo(cut_summary(len(cut), bundle.max_source_length), err=True)
        return
    for line in cut:
        click.echo(cut_warning(f"{source}, line {line.number + 1},", line.kept, line.cut, done), err=True)
