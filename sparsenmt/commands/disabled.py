"""``--disable-heads``: heads of a trained model that give zeros, in `decode` and `score`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.model.sites import SiteName

OPTION = "--disable-heads"
HELP = "Heads that give zeros, in every layer: SITE:NUMBERS from 1, as encoder_self:2,4; repeatable."

option = click.option(OPTION, "disabled", multiple=True, metavar="SITE:N,N", help=HELP)


def read_disabled(directory: Path | str, values: Sequence[str]) -> Mapping[SiteName, Collection[int]]:
    """Site -> numbers of the heads that a command line disables in a model.

    Raises:
        UserError: a value is not of that form, or there is no such site or head.
    """
    if not values:
        return {}
    from sparsenmt.model.sites import SITES
    from sparsenmt.store import read_manifest, read_recipe

    read_manifest(Path(directory))
    model = read_recipe(Path(directory)).model
    found: dict[SiteName, set[int]] = {}
    for value in values:
        site, _, numbers = value.partition(":")
        known = next((name for name in SITES if name == site), None)
        where = f"{OPTION} {value}"
        if known is None or not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", numbers):
            raise UserError(
                "is not a site and numbers of heads",
                where=where,
                hint=f"Write it as {SITES[0]}:2,4 ({', '.join(SITES)}).",
            )
        heads = {int(number) for number in numbers.split(",")}
        count = getattr(model.attention, known).heads.count or model.heads
        if max(heads) > count:
            raise UserError(
                f"there is no head {max(heads)} at {known}: it has {count}",
                where=where,
                hint="Numbers count from 1; given heads come first, then learned ones.",
            )
        found.setdefault(known, set()).update(heads)
    return found
