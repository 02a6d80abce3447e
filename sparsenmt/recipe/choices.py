"""Values that recipes and the command line offer by name; `typing.get_args` of a type gives them in order.

Imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sparsenmt.metric import METRICS
from sparsenmt.strategy import STRATEGIES

# base and big: Vaswani et al. 2017, Table 3; tiny and small are this project's, for tests and small corpora.
_SIZES = {
    "tiny": (64, 256, 4, 2),
    "small": (256, 1024, 4, 3),
    "base": (512, 2048, 8, 6),
    "big": (1024, 4096, 16, 6),
}

PRESETS: dict[str, dict[str, int]] = {
    name: {
        "dimension": dimension,
        "feed_forward": feed_forward,
        "heads": heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    for name, (dimension, feed_forward, heads, layers) in _SIZES.items()
}
"""Model sizes by name: keys of a recipe's `model` section with their values."""

Device = Literal["auto", "cpu", "cuda"]
DecodingDtype = Literal["auto", "fp32", "bf16", "int8"]
LengthPenalty = Literal["gnmt", "average", "none"]
UnknownTokens = Literal["allow", "forbid", "copy"]
SignificanceMethod = Literal["bootstrap", "randomization"]

# Pydantic lists the names in its errors; mypy cannot evaluate a Literal that is computed.
if TYPE_CHECKING:
    from typing import TypeAlias

    Preset: TypeAlias = str
    DecodingMethod: TypeAlias = str
    MetricName: TypeAlias = str
    ValidationMetric: TypeAlias = str
else:
    Preset = Literal[tuple(PRESETS)]
    DecodingMethod = Literal[tuple(STRATEGIES)]
    MetricName = Literal[tuple(METRICS)]
    ValidationMetric = Literal[("loss", *(metric.name for metric in METRICS.values() if metric.validates))]
