"""The names of weights on disk are frozen: models must still open after the next release (design rule 10).

`weight_names.txt` is the golden list. To add a model: add it here, run this file as a module
(`python -m tests.model.test_names`), and look at the difference: no line that stood there before may change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model.support import fresh_model

GOLDEN = Path(__file__).with_name("weight_names.txt")
MODELS: dict[str, dict[str, Any]] = {
    "one table": {"tie_embeddings": "all"},
    "two tables, post-norm": {"tie_embeddings": "target", "norm": "post"},
    "three tables, learned positions": {"tie_embeddings": "none", "positions": "learned"},
    "transforms, given heads, filters, a block twice": {
        "attention": {
            "encoder_self": {
                "transform": {"name": "toy_temperature"},
                "heads": {"given": {"name": "toy_left"}},
                "pattern": {"name": "toy_lookback"},
            },
            "cross": {"transform": {"name": "toy_recency"}},
        },
        "memory": [{"name": "toy_faint", "at": "between"}, {"name": "toy_tags"}],
        "depth": {"name": "toy_revisit"},
    },
    "alphas that are learned, one a head or shared, a block twice": {
        "attention": {
            "encoder_self": {"transform": {"name": "entmax"}},
            "decoder_self": {"transform": {"name": "entmax", "tie": "site"}},
            "cross": {"transform": {"name": "entmax", "tie": "layer", "per": "application"}},
        },
        "depth": {"name": "toy_revisit"},
    },
    "one layer on each side, applied several times": {
        "encoder_layers": 3,
        "attention": {
            "encoder_self": {"transform": {"name": "entmax"}},
            "decoder_self": {"transform": {"name": "entmax", "per": "application"}},
        },
        "memory": [{"name": "toy_faint", "at": "between"}],
        "depth": {"name": "recurrent"},
    },
    "many exits, with filters for all and of their own": {
        "memory": [{"name": "l0drop"}, {"name": "l0drop", "per": "exit"}],
        "depth": {"name": "tied_multi"},
    },
    "normalised embeddings, an output bias, source and target in one table": {
        **{"tie_embeddings": "inputs", "embedding_norm": True, "output_bias": True, "decoder_feed_forward": 32},
        **{"norm": "post", "final_norm": True, "positions": "learned"},
    },
    "nothing learned at a site": {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "attention": {"encoder_self": {"heads": {"count": 2, "given": {"name": "toy_left"}}}},
    },
    "a recurrent layer": {"recurrence": {"name": "ssru"}, "encoder_layers": 1, "decoder_layers": 1},
}


def listing(name: str) -> list[str]:
    """``name: shape`` of every weight of a model."""
    weights = fresh_model(**MODELS[name]).state_dict()
    return [f"{key}: {'x'.join(map(str, value.shape)) or 'scalar'}" for key, value in sorted(weights.items())]


def golden() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in GOLDEN.read_bytes().decode().split("\n"):
        if line.startswith("["):
            sections[line[1:-1]] = lines = []
        elif line:
            lines.append(line)
    return sections


@pytest.mark.parametrize("name", MODELS)
def test_names_are_as_they_were(name: str) -> None:
    assert listing(name) == golden()[name]


def test_every_golden_model_is_tried() -> None:
    assert golden().keys() == MODELS.keys()


if __name__ == "__main__":
    text = "\n\n".join("\n".join([f"[{name}]", *listing(name)]) for name in MODELS)
    GOLDEN.write_text(text + "\n", encoding="utf-8", newline="\n")
