"""A plain Transformer as a model directory of Hugging Face Transformers, written without that package.

Four of its architectures compute exactly the same as this program: with normalisation after each sub-layer Marian,
and BART if embeddings are normalised, too; with normalisation before each sub-layer and after the stack Pegasus, and
mBART if embeddings are normalised, too. All add a table of positions, which is written out: sinusoids may have other
wavelengths there. Marian has a vocabulary for each side; the others have one size, and separate tables from version 5
on.

Shapes: D model dimension, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from sparsenmt.decoding.scores import never
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.errors import UserError
from sparsenmt.export.plain_transformer import PlainTransformer, as_fp32
from sparsenmt.export.target import ExportTarget, length_penalty, longest_output
from sparsenmt.importers.families.family import UNUSED_POSITIONS, Family, load_family, weight_name
from sparsenmt.importers.families.table import FAMILIES
from sparsenmt.model.protocol import NEVER
from sparsenmt.recipe import schema
from sparsenmt.storage.files import write_json
from sparsenmt.storage.tensors import save_tensors

NAME = "Transformers"
_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
_EPSILON = 1e-5  # of all their normalisations
_CODE = """\
{imports}

model = {architecture}.from_pretrained(".")
{tokenizer}
lines = ["..."]
batch = {encode}
for ids in model.generate(**batch):
    print({decode})
"""


def _write(plain: PlainTransformer, bundle: Bundle, directory: Path, sentencepiece: bool) -> None:
    """Write the weights, the configurations and the vocabularies."""
    tokenizers, recipe = bundle.tokenizers, bundle.recipe
    save_tensors(directory / "model.safetensors", transformers_weights(plain), metadata={"format": "pt"})
    write_json(directory / "config.json", model_config(plain, recipe.model.dropout))
    write_json(directory / "generation_config.json", generation_config(plain, recipe.decoding, tokenizers.frames))
    write_json(directory / "vocab.json", _ids(tokenizers.source))
    if not tokenizers.shared:
        write_json(directory / "target_vocab.json", _ids(tokenizers.target))
    if sentencepiece:
        _write_tokenizer_config(tokenizers, recipe.data, plain.max_positions, directory)


def architecture(plain: PlainTransformer) -> tuple[str, Family]:
    """The `model_type` and the family that compute the same.

    Raises:
        UserError: there is none.
    """
    hint = "Run the model with `sparsenmt decode`."
    if plain.final_norm != (plain.section.norm == "pre"):
        order = "before each sub-layer and none" if plain.section.norm == "pre" else "after each sub-layer and one"
        raise UserError(
            f"{NAME} has no model with normalisation {order} after the last layer", where="model.final_norm", hint=hint
        )
    if plain.section.norm_epsilon != _EPSILON:
        raise UserError(
            f"{NAME} normalises with the epsilon {_EPSILON:g}, not {plain.section.norm_epsilon:g}",
            where="model.norm_epsilon",
            hint=hint,
        )
    families = {name: load_family(name) for name in FAMILIES}
    return next(
        (name, family)
        for name, family in families.items()
        if family.model_class
        and (family.norm, family.embedding_norm) == (plain.section.norm, plain.section.embedding_norm)
    )


def model_config(plain: PlainTransformer, dropout: schema.Dropout) -> dict[str, Any]:
    """The contents of ``config.json``. Dropout matters only for further training."""
    (model_type, family), tied = architecture(plain), plain.section.tie_embeddings == "all"
    sizes = {"vocab_size": _rows(plain)}
    if family.two_vocabularies:
        sizes = {
            "vocab_size": plain.source.shape[0],
            "decoder_vocab_size": plain.target.shape[0],
            "share_encoder_decoder_embeddings": tied,
        }
    return {
        "architectures": [family.model_class],
        "model_type": model_type,
        **sizes,
        "d_model": plain.section.dimension,
        "encoder_layers": plain.encoder_layers,
        "decoder_layers": plain.decoder_layers,
        "encoder_attention_heads": plain.encoder_heads,
        "decoder_attention_heads": plain.decoder_heads,
        "encoder_ffn_dim": plain.section.feed_forward,
        "decoder_ffn_dim": plain.section.decoder_feed_forward or plain.section.feed_forward,
        "activation_function": _ACTIVATIONS.get(plain.section.activation, plain.section.activation),
        "max_position_embeddings": plain.max_positions,
        "scale_embedding": plain.section.embedding_scale == "sqrt",
        "tie_word_embeddings": tied or (family.two_vocabularies and plain.section.tie_embeddings == "target"),
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


def generation_config(plain: PlainTransformer, decoding: schema.Decoding, frames: Frames) -> dict[str, Any]:
    """The contents of ``generation_config.json``: the recipe's search, as far as Transformers supports it.

    Lengths there count the tokens that the decoder is given, too: its start, and a first token (without languages).
    """
    beams = strategy_of(decoding).width
    search: dict[str, Any] = {"num_beams": beams, "do_sample": decoding.method == "sample"}
    if beams > 1:
        search |= {"early_stopping": True, "length_penalty": length_penalty(decoding)}
    if decoding.method == "sample":
        search |= {"temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p}
    given = 1 + len(frames.target_prefix)
    if decoding.min_length:
        search["min_length"] = decoding.min_length + given
    if decoding.no_repeat_ngram:
        search["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    first = [token for token in frames.target_prefix if isinstance(token, int)]
    return {
        **_special(),
        **search,
        "max_length": min(longest_output(plain, decoding) + given, plain.max_positions),
        "suppress_tokens": list(never(decoding)),
        "forced_bos_token_id": first[0] if len(first) == 1 else None,
        "forced_eos_token_id": None,
    }


def _special() -> dict[str, int]:
    return {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}


def _rows(plain: PlainTransformer) -> int:
    """The number of rows of every embedding table of a model with one size of vocabulary."""
    return max(plain.source.shape[0], plain.target.shape[0])


def transformers_weights(plain: PlainTransformer) -> dict[str, Tensor]:
    """All tensors by their names in Transformers; only the first of tied tables."""
    family = architecture(plain)[1]
    rows = plain.target.shape[0] if family.two_vocabularies else _rows(plain)
    bias = torch.zeros(1, rows)
    if plain.output_bias is not None:
        bias[0, : plain.target.shape[0]] = plain.output_bias
    bias[:, plain.target.shape[0] :] = NEVER  # rows that pad the table to the common size
    found = {"final_logits_bias": bias, **_tables(plain)}
    found |= {weight_name(name): tensor for name, tensor in plain.stacks.items()}
    for side, positions in (("encoder", plain.source_positions), ("decoder", plain.target_positions)):
        unused = UNUSED_POSITIONS if family.positions == "learned" else 0
        found[f"model.{side}.embed_positions.weight"] = pad(positions, (0, 0, unused, 0))
    return {name: as_fp32(tensor) for name, tensor in found.items()}


def _tables(plain: PlainTransformer) -> dict[str, Tensor]:
    if plain.section.tie_embeddings == "all":
        return {"model.shared.weight": plain.source}
    tables = {"model.encoder.embed_tokens.weight": plain.source, "model.decoder.embed_tokens.weight": plain.target}
    if architecture(plain)[1].two_vocabularies:
        return tables if plain.section.tie_embeddings == "target" else {**tables, "lm_head.weight": plain.output}
    # `model.shared` is not used, but must exist in a Pegasus model.
    tables |= {"lm_head.weight": plain.output, "model.shared.weight": plain.target}
    return {name: pad(table, (0, 0, 0, _rows(plain) - len(table))) for name, table in tables.items()}  # rows of zeros


def _write_tokenizer_config(tokenizers: Tokenizers, data: schema.Data, longest: int, directory: Path) -> None:
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


def _usage(plain: PlainTransformer, bundle: Bundle, sentencepiece: bool) -> str:
    """The code that runs the model."""
    name = str(architecture(plain)[1].model_class)
    if sentencepiece:
        own = {
            "imports": f"from transformers import {', '.join(sorted(('MarianTokenizer', name)))}",
            "tokenizer": 'tokenizer = MarianTokenizer.from_pretrained(".")',
            "encode": 'tokenizer(lines, return_tensors="pt", padding=True)',
            "decode": "tokenizer.decode(ids, skip_special_tokens=True)",
        }
    else:
        own = {
            "imports": "from pathlib import Path\n\nfrom sparsenmt.data.batching import pad\n"
            "from sparsenmt.data.tokenizers.tokenizer import Tokenizers\nfrom sparsenmt.data.vocabulary import EOS\n"
            f"from transformers import {name}",
            "tokenizer": 'tokenizers = Tokenizers.load(Path("tokenizers"))',
            "encode": 'dict(zip(("input_ids", "attention_mask"), pad([[*tokenizers.source.encode(line), EOS] '
            "for line in lines])))",
            "decode": "tokenizers.target.decode(ids.tolist())",
        }
    return _CODE.format(architecture=name, **own)


def _notes(plain: PlainTransformer) -> list[str]:
    if plain.section.tie_embeddings == "all" or architecture(plain)[1].two_vocabularies:
        return []
    return ["Transformers 5 or later: earlier ones give both sides of such a model one table, silently."]


TARGET = ExportTarget(
    NAME,
    lambda: None,
    _write,
    _usage,
    _notes,
    searches=frozenset({"sample", "min_length", "no_repeat_ngram"}),
)
