"""Attention heads of a trained model that are disabled for one run, as ``SITE:N,N``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sparsenmt.assemble.model_directory import read_manifest, read_recipe
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName


def heads_by_model(models: Mapping[str, Path], values: Sequence[str]) -> dict[str, Mapping[SiteName, Collection[int]]]:
    """Return the disabled heads of each of several models.

    Args:
        models: name -> directory.
        values: ``SITE:N,N`` for all models, ``NAME=SITE:N,N`` for one of them.

    Raises:
        UserError: as for `read_disabled_heads`; or there is no model at all, or none of that name.
    """
    named = []
    for text in values:
        name, _, value = text.rpartition("=")
        where = f"--disable-heads {text}"
        if not models:
            hint = "Name a model directory, or leave it out."
            raise UserError("there is no model, and files have no heads", where=where, hint=hint)
        if name and name not in models:
            raise UserError(f"there is no model '{name}'", where=where, hint=f"The models are: {', '.join(models)}.")
        named.append((name, value))
    return {
        label: read_disabled_heads(directory, [value for name, value in named if name in ("", label)])
        for label, directory in models.items()
    }


def read_disabled_heads(directory: Path, values: Sequence[str]) -> Mapping[SiteName, Collection[int]]:
    """Parse ``SITE:N,N`` values into site -> head numbers, and check them against a model.

    Raises:
        UserError: a value has another form, or there is no such site or head.
    """
    if not values:
        return {}
    read_manifest(directory)
    model = read_recipe(directory).model
    found: dict[SiteName, set[int]] = {}
    for value in values:
        site, _, numbers = value.partition(":")
        known = next((name for name in SITES if name == site), None)
        where = f"--disable-heads {value}"
        if known is None or not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", numbers):
            raise UserError(
                "is not a site and numbers of heads",
                where=where,
                hint=f"Write it as {SITES[0]}:2,4 ({', '.join(SITES)}).",
            )
        if known == "decoder_self" and model.recurrence is not None:
            raise UserError(
                "the decoder has no self-attention: a recurrent layer is in its place",
                where=where,
                hint="Name heads of encoder_self or cross.",
            )
        heads = {int(number) for number in numbers.split(",")}
        count = getattr(model.attention, known).heads.count or model.heads
        if max(heads) > count:
            raise UserError(
                f"there is no head {max(heads)} at {known}: it has {count}",
                where=where,
                hint="Heads are numbered from 1; fixed heads come first, then learned ones.",
            )
        found.setdefault(known, set()).update(heads)
    return found
