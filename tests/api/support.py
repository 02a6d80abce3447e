"""Model directories with random weights, for tests of the Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsenmt.assemble.methods import load_resolved_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_directory import initialise, write_weights
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from tests.analysis.support import add_gates

SENTENCES = [
    "the old house stands at the river .",
    "two cats see a house",
    "cats never play there",
    "the river and the <b>house</b> & two trees",
    "we see the old trees",
]
SIZES: dict[str, Any] = {"dimension": 16, "feed_forward": 24, "heads": 4, "max_positions": 64}
ENTMAX = {"cross": {"transform": {"name": "entmax15"}}}


def write_model(directory: Path, model: Mapping[str, Any], *, text: bool = False, **decoding: Any) -> Path:
    """Write a model directory whose recipe has this section; ``text``: of a language model."""
    corpus = {"text": "none"} if text else {"source": "none.en", "target": "none.de"}
    data: dict[str, Any] = {"directory": "none", "train": [corpus], "dev": corpus}
    data |= {"task": "language_model"} if text else {"source_language": "en", "target_language": "de"}
    more = {"training": {"segment_length": 16}} if text else {}
    data["tokenizer"] = {"kind": "bpe", "vocabulary_size": 60, "character_coverage": 1.0}
    recipe = load_resolved_recipe(
        {
            "name": directory.name,
            "directory": str(directory),
            "model": {**SIZES, **model},
            "data": data,
            **more,
            "decoding": {"beam_size": 3, "max_length_factor": 0, "max_length_offset": 12, **decoding},
        }
    )
    tokenizer = train_tokenizer(recipe.data.tokenizer, SENTENCES * 4)
    initialise(directory, recipe, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), "random")
    built = build_model(recipe.model, source_size=tokenizer.size, target_size=tokenizer.size, seed=2)
    for name, weight in built.state_dict().items():
        if weight.ndim > 1 and "norm" not in name:
            weight *= 3.0  # attention and outputs that are far from uniform
    write_weights(directory, built.state_dict(), after=0, made_of=[])
    return directory


def write_models(folder: Path, sentences: Sequence[str] = SENTENCES) -> dict[str, Path]:
    """Write a dense model, one with gates that close about a third of the sentences' tokens, and a language model."""
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    dense = write_model(folder / "dense", {**layers, "attention": ENTMAX})
    add_gates(dense, folder / "gated", list(sentences), 0.35)
    language = write_model(folder / "language", {"decoder_layers": 2}, text=True)
    return {"dense": dense, "gated": folder / "gated", "language": language}
