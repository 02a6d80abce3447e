"""A plain Transformer as a model directory of Hugging Face Transformers, written without that package.

Two of its architectures compute exactly the same as this program: ``MarianMTModel`` with normalisation after each
sub-layer, ``PegasusForConditionalGeneration`` with normalisation before it and after the stack. Both scale embeddings
by sqrt(D), add a table of positions (which is written out: their own sinusoids have other wavelengths) and project
without a bias. Pegasus has one size of vocabulary for both sides, and separate tables from version 5 on.

Shapes: D model dimension, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from sparsenmt.decoding.scores import never
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.export.plain_transformer import LayerWeights, PlainTransformer, as_fp32, attention_weights
from sparsenmt.files import write_json
from sparsenmt.model.protocol import NEVER
from sparsenmt.recipe import schema
from sparsenmt.tensors import save_tensors

NAME = "Transformers"


def write_transformers_model(
    plain: PlainTransformer, tokenizers: Tokenizers, recipe: schema.Recipe, directory: Path
) -> None:
    """Write the weights, the configurations and the vocabularies."""
    save_tensors(directory / "model.safetensors", transformers_weights(plain), metadata={"format": "pt"})
    write_json(directory / "config.json", model_config(plain, recipe.model.dropout))
    write_json(directory / "generation_config.json", generation_config(plain, recipe.decoding))
    write_json(directory / "vocab.json", _ids(tokenizers.source))
    if not tokenizers.shared:
        write_json(directory / "target_vocab.json", _ids(tokenizers.target))


def is_pegasus(plain: PlainTransformer) -> bool:
    """True for a Pegasus model, False for a Marian model."""
    return plain.norm == "pre"


def model_config(plain: PlainTransformer, dropout: schema.Dropout) -> dict[str, Any]:
    """The contents of ``config.json``. Dropout matters only for further training."""
    pegasus, tied = is_pegasus(plain), plain.tie == "all"
    sizes = {"vocab_size": _rows(plain)} if pegasus else {
        "vocab_size": plain.source.shape[0],
        "decoder_vocab_size": plain.target.shape[0],
        "share_encoder_decoder_embeddings": tied,
    }  # fmt: skip
    return {
        "architectures": ["PegasusForConditionalGeneration" if pegasus else "MarianMTModel"],
        "model_type": "pegasus" if pegasus else "marian",
        **sizes,
        "d_model": plain.dimension,
        "encoder_layers": len(plain.encoder),
        "decoder_layers": len(plain.decoder),
        "encoder_attention_heads": plain.encoder_heads,
        "decoder_attention_heads": plain.decoder_heads,
        "encoder_ffn_dim": plain.feed_forward,
        "decoder_ffn_dim": plain.feed_forward,
        "activation_function": plain.activation,
        "max_position_embeddings": plain.max_positions,
        "scale_embedding": True,
        "tie_word_embeddings": tied if pegasus else plain.tie != "none",
        "dropout": dropout.residual,
        "attention_dropout": dropout.attention,
        "activation_dropout": dropout.activation,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "is_encoder_decoder": True,
        **_special(),
        "forced_eos_token_id": None,
        "torch_dtype": "float32",
    }


def generation_config(plain: PlainTransformer, decoding: schema.Decoding) -> dict[str, Any]:
    """The contents of ``generation_config.json``: the recipe's search, as far as Transformers supports it."""
    beams = strategy_of(decoding).width
    search: dict[str, Any] = {"num_beams": beams, "do_sample": False}
    if beams > 1:
        search |= {"early_stopping": True, "length_penalty": length_penalty(decoding)}
    return {
        **_special(),
        **search,
        "max_length": plain.max_positions,
        "suppress_tokens": list(never(decoding)),
        "forced_eos_token_id": None,
    }


def length_penalty(decoding: schema.Decoding) -> float:
    """The exponent of the length in the length penalty; 1 if the recipe uses another penalty."""
    return {"average": decoding.alpha, "none": 0.0}.get(decoding.length_penalty, 1.0)


def _special() -> dict[str, int]:
    return {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}


def _rows(plain: PlainTransformer) -> int:
    """The number of rows of every embedding table of a Pegasus model."""
    return max(plain.source.shape[0], plain.target.shape[0])


def transformers_weights(plain: PlainTransformer) -> dict[str, Tensor]:
    """All tensors by their names in Transformers; only the first of tied tables."""
    pegasus = is_pegasus(plain)
    rows = _rows(plain) if pegasus else plain.target.shape[0]
    bias = torch.zeros(1, rows)
    bias[:, plain.target.shape[0] :] = NEVER  # rows that pad the table to the common size
    found = {"final_logits_bias": bias, **_tables(plain)}
    for side, positions, layers, norm in (
        ("encoder", plain.source_positions, plain.encoder, plain.encoder_norm),
        ("decoder", plain.target_positions, plain.decoder, plain.decoder_norm),
    ):
        found[f"model.{side}.embed_positions.weight"] = positions
        for number, layer in enumerate(layers):
            found |= {f"model.{side}.layers.{number}.{name}": tensor for name, tensor in _layer(layer).items()}
        if norm is not None:
            found |= {f"model.{side}.layer_norm.{name}": tensor for name, tensor in norm.items()}
    return {name: as_fp32(tensor) for name, tensor in found.items()}


def _tables(plain: PlainTransformer) -> dict[str, Tensor]:
    if plain.tie == "all":
        return {"model.shared.weight": plain.source}
    tables = {"model.encoder.embed_tokens.weight": plain.source, "model.decoder.embed_tokens.weight": plain.target}
    if not is_pegasus(plain):
        return tables if plain.tie == "target" else {**tables, "lm_head.weight": plain.output}
    # `model.shared` is not used, but must exist.
    tables |= {"lm_head.weight": plain.output, "model.shared.weight": plain.target}
    return {name: _filled(table, _rows(plain)) for name, table in tables.items()}


def _filled(table: Tensor, rows: int) -> Tensor:
    """(V, D) padded with zero rows."""
    return torch.cat([table, table.new_zeros(rows - table.shape[0], table.shape[1])])


def _layer(layer: LayerWeights) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for site, theirs in (("self", "self_attn"), ("cross", "encoder_attn")):
        if f"{site}.q.weight" not in layer:
            continue
        for part, (weight, bias) in attention_weights(layer, site).items():
            name = f"{theirs}.{'out' if part == 'o' else part}_proj"
            found |= {f"{name}.weight": weight, f"{name}.bias": bias}
    names = {
        "self_norm": "self_attn_layer_norm",
        "cross_norm": "encoder_attn_layer_norm",
        "feed_forward.inner": "fc1",
        "feed_forward.outer": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in layer:
                found[f"{theirs}.{kind}"] = layer[f"{ours}.{kind}"]
    return found


def write_tokenizer_config(tokenizers: Tokenizers, data: schema.Data, longest: int, directory: Path) -> None:
    """Write the settings of a ``MarianTokenizer``, which reads SentencePiece models and tables of ids."""
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not tokenizers.shared,
        "source_lang": data.source_language,
        "target_lang": data.target_language,
        "model_max_length": longest,
        "unk_token": SPECIAL_TOKENS[UNK],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[PAD],
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / "tokenizer_config.json", settings)


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Token -> id; of two tokens with the same name the first, which is the special token."""
    pieces = tokenizer.pieces(range(tokenizer.size))
    return {piece: id_ for id_, piece in reversed(list(enumerate(pieces)))}
