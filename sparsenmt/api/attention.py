"""The attention of a model on one sentence as an array with names on both axes.

Shapes: Q queries, K keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.attention_maps import MapChoice, SentenceMap
from sparsenmt.analysis.labels import SITE_NAMES
from sparsenmt.model.sites import SiteName
from sparsenmt.report import html


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap:
    """Attention weights with the tokens of both axes; weights of exactly 0 are exactly 0. A notebook shows a heat map.

    ``numpy.asarray`` gives its values, ``pandas.DataFrame(map.values, map.queries, map.keys)`` a data frame.

    Args:
        values: (Q, K) weights, in float64.
        queries: the Q tokens that attend. At cross-attention, those that are predicted; at the decoder's
            self-attention, those that are read.
        keys: the K tokens that are attended to.
        site: ``encoder_self``, ``decoder_self`` or ``cross``.
        heads: the heads and layers in words.
        dropped: one bool for each key: True if a filter dropped it. All dropped keys are one zero vector to the
            decoder, and have no weight of their own.
        stand_in: (Q,) the weight of that zero vector; None: nothing was dropped.
    """

    values: NDArray[np.float64]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    site: SiteName
    heads: str
    dropped: tuple[bool, ...]
    stand_in: NDArray[np.float64] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return len(self.queries), len(self.keys)

    @property
    def zeros(self) -> int:
        """The number of weights that are exactly 0."""
        return int((self.values == 0).sum())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        sizes = f"{len(self.queries)} queries, {len(self.keys)} keys"
        return f"AttentionMap({self.site}, {self.heads}: {sizes}, {self.zeros} of {self.values.size} weights are 0)"

    def _repr_html_(self) -> str:
        values, keys, gone = self.values, self.keys, self.dropped
        if self.stand_in is not None:
            values = np.concatenate([self.stand_in[:, None], values], 1)
            keys, gone = ("(dropped)", *keys), (False, *gone)
        caption = f"{SITE_NAMES[self.site]}-attention, {self.heads}, in percent; a dot is exactly 0"
        return html.colour_table(values, self.queries, keys, caption=caption, gone=gone)


def attention_map(found: SentenceMap, choice: MapChoice) -> AttentionMap:
    """Return a map of a report as an array of its own: the weight of the stand-in apart from those of the tokens."""
    first = int(found.stand_in)
    weights = np.ascontiguousarray(found.weights[:, first:])
    apart = np.ascontiguousarray(found.weights[:, 0]) if found.stand_in else None
    names = tuple(found.rows), tuple(found.columns[first:])
    return AttentionMap(weights, *names, found.site, heads_in_words(choice), tuple(found.dropped[first:]), apart)


def heads_in_words(choice: MapChoice) -> str:
    """Return the heads and layers of which a map is the mean."""
    parts = []
    for name, numbers in (("head", choice.heads), ("layer", choice.layers)):
        if not numbers:
            parts.append(f"all {name}s")
        else:
            parts.append(f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}")
    mean = len(choice.heads) != 1 or len(choice.layers) != 1
    return f"{'mean of ' if mean else ''}{parts[0]} of {parts[1]}"
