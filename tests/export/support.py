"""Models to export: random weights, with biases, outputs that end, and distributions with peaks."""

from __future__ import annotations

from typing import Any

import torch

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.model import build_model
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.model.transformer import table_keys
from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.schema import TokenizerSection as TokenizerOptions
from sparsenmt.sparsity.registry import methods
from tests.decoding.support import invented_lines

CORPUS = {"source": "/a", "target": "/b"}
LINES = [line for line in invented_lines(40, 1) if line]
LIMIT = 40  # pieces of an output
SIZES: dict[str, Any] = {
    **{"dimension": 16, "feed_forward": 24, "heads": 2, "encoder_layers": 2, "decoder_layers": 3, "max_positions": 72},
}


def make_recipe(*, decoding: dict[str, Any] | None = None, **model: Any) -> Recipe:
    mapping = {
        "name": "test",
        "directory": "unused",
        "model": {**SIZES, **model},
        "data": {"directory": "unused", "train": [CORPUS], "dev": CORPUS, "source_language": "de"},
        "decoding": {"beam_size": 3, "length_penalty": "average", "alpha": 1.0, "max_length_factor": 0.0}
        | {"max_length_offset": LIMIT}
        | (decoding or {}),
    }
    return load_resolved(mapping, methods())


def make_tokenizers(kind: str, *, shared: bool, lowercase: bool = False) -> Tokenizers:
    """Of the same lines; the target's vocabulary is smaller where it is not shared."""

    def train(lines: list[str], size: int) -> Any:
        options = TokenizerOptions.model_validate({"kind": kind, "vocabulary_size": size, "lowercase": lowercase})
        return train_tokenizer(options, iter(lines))

    source = train(LINES, 40)
    return Tokenizers(source, source if shared else train(LINES[:20], 36), shared)


def make_bundle(
    kind: str = "bpe", *, ending: float = 3.0, decoding: dict[str, Any] | None = None, **model: Any
) -> Bundle:
    """A bundle as `open_model(dtype=None)` gives it.

    Args:
        ending: added to the logit of EOS at every step.
    """
    recipe = make_recipe(decoding=decoding, **model)
    tokenizers = make_tokenizers(kind, shared=recipe.model.shares_vocabulary)
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    built = build_model(recipe.model, **sizes, seed=3)
    state, generator = built.state_dict(), torch.Generator().manual_seed(4)
    for name, value in state.items():
        if name.startswith("embeddings."):
            continue
        if value.dim() == 2:
            value *= 2.5  # more of attention and less of the piece that was read
        else:
            value += 0.1 * torch.randn(value.shape, generator=generator)  # away from zero biases and unit norms
    table = table_keys(recipe.model.tie_embeddings)[2]
    output, direction = state[f"embeddings.{table}"], torch.ones(recipe.model.dimension) / recipe.model.dimension**0.5
    # LayerNorm's output is orthogonal to the ones-vector: along it lies a constant that only EOS looks at.
    output *= 2.0
    output -= (output @ direction)[:, None] * direction
    output[EOS] += ending * direction
    output[[PAD, BOS]] -= 30.0 * direction  # forbidden pieces: other programs would take them out of the normaliser too
    block = max(built.plan.decoder)
    last = "decoder.norm" if "decoder.norm.weight" in state else f"decoder.layers.{block}.feed_forward_norm"
    state[f"{last}.weight"].fill_(1.0)
    state[f"{last}.bias"].copy_(direction)
    return Bundle(recipe, tokenizers, FeatureSet({}), built.eval(), torch.device("cpu"))


VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post-learned-gelu": {"ending": 4.0, "norm": "post", "positions": "learned", "activation": "gelu"},
    "pre-two-vocabularies-silu": {"tie_embeddings": "target", "activation": "silu"},
    "post-two-vocabularies": {"ending": 2.0, "norm": "post", "tie_embeddings": "target"},
    "pre-three-tables-learned": {"tie_embeddings": "none", "positions": "learned"},
    "post-three-tables": {"ending": 4.0, "norm": "post", "tie_embeddings": "none"},
    "heads": {
        "ending": 5.0,
        "attention": {
            "encoder_self": {"heads": {"count": 4, "disabled": [1, 4]}},
            "cross": {"heads": {"disabled": [2]}},
        },
    },
    "bart": {
        **{"ending": 6.0, "norm": "post", "embedding_norm": True, "embedding_scale": "none", "output_bias": True},
        **{"positions": "learned", "activation": "gelu_tanh", "decoder_feed_forward": 32},
    },
    "mbart": {"ending": 5.0, "embedding_norm": True, "tie_embeddings": "inputs", "output_bias": True},
    "m2m": {"ending": 4.0, "first_position": 2, "sinusoids": "paper", "activation": "gelu"},
    "recurrent": {"ending": 2.0, "depth": {"name": "recurrent"}},
}
