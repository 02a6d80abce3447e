"""Values that recipes and the command line offer by name; `typing.get_args` of a type gives them in order.

Imports nothing heavy.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

# base and big: Vaswani et al. 2017, Table 3; tiny and small are this project's, for tests and small corpora.
_SIZES = {
    "tiny": (64, 256, 4, 2),
    "small": (256, 1024, 4, 3),
    "base": (512, 2048, 8, 6),
    "big": (1024, 4096, 16, 6),
}

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
"""Programs that get the numbers of a training run; `training.trackers` has them by these names."""

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

LARGEST_BEAM = 10_000

DecodingDtype = Literal["auto", "fp32", "bf16", "fp16", "int8"]
LengthPenalty = Literal["gnmt", "average", "none"]
UnknownTokens = Literal["allow", "forbid", "copy"]
LongLines = Literal["split", "cut", "refuse"]
NO_SHORTLIST, OWN_SHORTLIST = "none", "model"
"""Values of `decoding.shortlist` that are no file."""
SignificanceMethod = Literal["bootstrap", "randomization"]

ScoringTokenizer = Literal[
    "13a", "char", "zh", "ja-mecab", "ko-mecab", "intl", "none", "spm", "flores101", "flores200", "spBLEU-1K"
]
"""sacrebleu's tokenizers; a test compares them with the installed version's."""

# Pydantic lists the names in its errors; mypy cannot evaluate a Literal that is computed.
if TYPE_CHECKING:
    from typing import TypeAlias

    Preset: TypeAlias = str
else:
    Preset = Literal[tuple(PRESETS)]


def is_device_name(name: str) -> bool:
    """Return True for ``auto``, ``cpu``, ``cuda`` and ``cuda:N``."""
    return re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", name, re.ASCII) is not None


def device_name(name: str) -> str:
    """Return the name of a device.

    Raises:
        ValueError: it is none.
    """
    if not is_device_name(name):
        raise ValueError(f"must be one of auto, cpu, cuda, cuda:N; not '{name}'")
    return name
