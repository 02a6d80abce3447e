"""Names of attention sites, heads and tokens in reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparsenmt.data.vocabulary import SPACE
from sparsenmt.errors import printable
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.model.sites import SiteName
from sparsenmt.report.tables import Value, columns

SITE_NAMES: dict[SiteName, str] = {"encoder_self": "encoder self", "decoder_self": "decoder self", "cross": "cross"}

Head = tuple[SiteName, int, int]
"""Site, layer and number of a head, from 1. Fixed heads come before learned ones."""

HEAD_COLUMNS = columns("text head", "hidden count layer number")
"""The columns of `head_cells`."""


def head_name(layer: int, head: int) -> str:
    """Return the name of a head: ``2.4`` is the fourth of the second layer."""
    return f"{layer}.{head}"


def head_cells(layer: int, head: int) -> tuple[Value, ...]:
    """Return the cells of a row that name a head (`HEAD_COLUMNS`); layer and head count from 1."""
    return head_name(layer, head), layer, head


def by_head(model: TranslationModel, values: Mapping[SiteName, Sequence[Sequence[float]]]) -> dict[Head, float]:
    """Return head -> value; ``values``: site -> for each layer, from the first on, those of its learned heads."""
    return {
        (site, layer, len(model.head_names(site)) - len(own) + i): value
        for site, layers in values.items()
        for layer, own in enumerate(layers, start=1)
        for i, value in enumerate(own, start=1)
    }


def site_title(site: SiteName, model: str | None = None) -> str:
    """Return the title of a diagram of one site, and of one model if it is not about all."""
    title = f"{SITE_NAMES[site]}-attention"
    return title if model is None else f"{model}, {title}"


def layer_label(site: SiteName) -> str:
    """Return the name of an axis of layers."""
    return "encoder layer" if site == "encoder_self" else "decoder layer"


def number_ticks(numbers: Iterable[int]) -> list[tuple[float, str]]:
    """Return the ticks of an axis of layers: one at every number."""
    return [(float(number), str(number)) for number in numbers]


def shown_tokens(tokens: Sequence[str]) -> list[str]:
    """Return tokens without the sign for the space before a word, and with control characters as escapes."""
    return [printable(token.removeprefix(SPACE) or token) for token in tokens]
