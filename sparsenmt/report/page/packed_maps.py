"""The attention maps of a page: whole percents in one byte each, compressed, as many sentences as fit into a page.

Shapes: M maps, Q queries, K keys.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsenmt.errors import printable
from sparsenmt.report.page.document import AttentionMaps, HeadDescription, ReportSection

MOST_TOKENS = 100
"""Most rows, and most columns, of a map in a page."""
_LONGEST_TOKEN = 60


@dataclass(frozen=True)
class PackedMaps:
    """The maps of a section, as the script of the page reads them.

    Args:
        content: an object for JSON.
        sentences: those whose maps are in it.
        left_out: the number of the other sentences.
        cut: True if a map has more rows or columns than are shown.
    """

    content: dict[str, Any]
    sentences: tuple[int, ...]
    left_out: int
    cut: bool


def packed_maps(section: ReportSection, models: Sequence[str], most_bytes: int) -> PackedMaps:
    """Pack the maps of a section, the first sentences first, until ``most_bytes`` bytes are full.

    Args:
        models: the labels of all models.
    """
    packed: list[dict[str, Any]] = []
    sentences: list[int] = []
    numbers = sorted({each.number for each in section.attention})
    ordered = sorted(section.attention, key=lambda each: each.number)  # models and sites keep their order
    for number, maps in groupby(ordered, key=lambda each: each.number):
        own = [_packed(each, models) for each in maps]
        most_bytes -= sum(map(_size, own))
        if most_bytes < 0:
            break
        packed += own
        sentences.append(number)
    content = {
        "models": [printable(model) for model in models],
        "heads": [_described(each, models) for each in section.heads],
        "maps": packed,
    }
    long = any(max(len(each.rows), len(each.columns)) > MOST_TOKENS for each in section.attention)
    return PackedMaps(content, tuple(sentences), len(numbers) - len(sentences), long)


def levels(weights: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return 0 where a weight is exactly 0, and 1 more than its percent, rounded, elsewhere: 1 is below half of one."""
    rounded = np.rint(np.clip(weights, 0.0, 1.0) * 100).astype(np.uint8) + np.uint8(1)
    return np.where(weights == 0, np.uint8(0), rounded).astype(np.uint8)


def _packed(each: AttentionMaps, models: Sequence[str]) -> dict[str, Any]:
    rows, columns = len(each.rows[:MOST_TOKENS]), len(each.columns[:MOST_TOKENS])
    values = b"".join(
        levels(np.array(one.weights, np.float64).reshape(len(each.rows), len(each.columns))[:rows, :columns]).tobytes()
        for one in each.maps
    )
    return {
        "number": each.number,
        "model": models.index(each.model),
        "site": each.site,
        "rows": list(map(_token, each.rows[:rows])),
        "columns": list(map(_token, each.columns[:columns])),
        "rowWords": list(each.row_words[:rows]),
        "columnWords": list(each.column_words[:columns]),
        "dropped": [i for i, gone in enumerate(each.dropped[:columns]) if gone],
        "standIn": each.stand_in,
        "heads": [[one.layer, one.head] for one in each.maps],
        "levels": base64.b64encode(zlib.compress(values)).decode("ascii"),
    }


def _described(each: HeadDescription, models: Sequence[str]) -> dict[str, Any]:
    return {
        "model": models.index(each.model),
        "site": each.site,
        "head": [each.layer, each.head],
        "role": printable(each.role),
        "transform": printable(each.transform),
        "alpha": each.alpha,
        "density": each.density,
    }


def _token(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_TOKEN else f"{shown[:_LONGEST_TOKEN]}…"


def _size(packed: dict[str, Any]) -> int:
    """Return about how many bytes a map takes in the page: a few less, where HTML needs escapes."""
    return len(json.dumps(packed, separators=(",", ":")))
