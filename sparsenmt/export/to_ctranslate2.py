"""A plain Transformer as a model directory of CTranslate2 (https://opennmt.net/CTranslate2).

The files are written by that package, so that its version determines the format.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.data.vocabulary import BOS, EOS, SPECIAL_TOKENS, UNK
from sparsenmt.decoding.scores import never
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.errors import UserError
from sparsenmt.export.plain_transformer import PlainTransformer, Weights, as_fp32
from sparsenmt.export.target import ExportTarget, length_penalty, longest_output
from sparsenmt.storage.files import write_bytes

NAME = "CTranslate2"
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
VOCABULARY_MAP = "vmap.txt"
"""The name of a shortlist's file there."""
_EPSILON = 1e-5  # of normalisations, unless the configuration has another one

Array = NDArray[np.float32]

_CODE = """\
import ctranslate2
{imports}

translator = ctranslate2.Translator(".", device="cpu", compute_type="float32")
{tokenizer}
lines = ["..."]
results = translator.translate_batch(
    {encode},
    beam_size={beam},
    length_penalty={penalty},
    max_input_length={positions},
    min_decoding_length={shortest},
    max_decoding_length={longest},
    suppress_sequences={never},{use_map}
)
for result in results:
    print({decode})
"""


def _check_installed() -> None:
    """UserError without the package."""
    if importlib.util.find_spec("ctranslate2") is None:
        raise UserError(
            "the package ctranslate2 is not installed",
            where="--to ctranslate2",
            hint="Install it: pip install 'sparsenmt[export]'.",
        )


def _write(plain: PlainTransformer, bundle: Bundle, directory: Path, sentencepiece: bool) -> None:
    """Write ``model.bin``, ``config.json`` and the vocabularies into a directory.

    Raises:
        UserError: two tokens of a vocabulary have the same name, or the order of normalisations is unknown there.
    """
    if plain.section.norm == "post" and plain.final_norm:
        raise UserError(
            f"{NAME} has no normalisation after the last layer where each sub-layer ends with one",
            where="model.final_norm",
            hint="Run the model with `sparsenmt decode`.",
        )
    from ctranslate2.specs import common_spec, transformer_spec

    common: dict[str, Any] = {
        "pre_norm": plain.section.norm == "pre",
        "no_final_norm": not plain.final_norm,
        "layernorm_embedding": plain.section.embedding_norm,
        "activation": getattr(common_spec.Activation, _ACTIVATIONS[plain.section.activation]),
    }
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(plain.encoder_layers, plain.encoder_heads, **common),
        transformer_spec.TransformerDecoderSpec(plain.decoder_layers, plain.decoder_heads, **common),
    )
    spec.encoder.embeddings[0].weight = _array(plain.source)
    spec.decoder.embeddings.weight = _array(plain.target)
    spec.decoder.projection.weight = _array(plain.output)
    spec.encoder.position_encodings.encodings = _array(plain.source_positions)
    spec.decoder.position_encodings.encodings = _array(plain.target_positions)
    if plain.output_bias is not None:
        spec.decoder.projection.bias = _array(plain.output_bias)
    weights = plain.stacks
    for stack, side, tokens in ((spec.encoder, "encoder", "source"), (spec.decoder, "decoder", "target")):
        stack.scale_embeddings = plain.section.embedding_scale == "sqrt"
        if plain.section.embedding_norm:
            _layer_norm(stack.layernorm_embedding, weights, f"embedding_norm.{tokens}")
        if plain.final_norm:
            _layer_norm(stack.layer_norm, weights, f"{side}.norm")
        for number, part in enumerate(stack.layer):
            _fill(part, weights, f"{side}.layers.{number}")
    spec.register_source_vocabulary(_vocabulary(bundle.tokenizers.source, "source"))
    spec.register_target_vocabulary(_vocabulary(bundle.tokenizers.target, "target"))
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (SPECIAL_TOKENS[i] for i in (UNK, BOS, EOS))
    spec.config.decoder_start_token = SPECIAL_TOKENS[BOS]
    spec.config.add_source_eos = True
    if plain.section.norm_epsilon != _EPSILON:
        spec.config.layer_norm_epsilon = plain.section.norm_epsilon
    spec.validate()
    spec.optimize()  # without quantization; merges equal weights
    spec.save(str(directory))
    shortlist = bundle.shortlist(bundle.recipe.decoding)
    if shortlist is not None:
        write_bytes(directory / VOCABULARY_MAP, vocabulary_map(shortlist, bundle.tokenizers))


def vocabulary_map(shortlist: Shortlist, tokenizers: Tokenizers) -> bytes:
    """Return a shortlist as CTranslate2 reads it, a line for each source token: the token, a tab, its translations.

    The first line is of tokens that always may come out. Those of `</s>` are among them, as every source ends with it.

    Raises:
        UserError: a token has a space or a tab, which divide the tokens of a line.
    """
    pieces = [_vocabulary(side, name) for side, name in ((tokenizers.source, "source"), (tokenizers.target, "target"))]
    own = shortlist.translations()
    lines = {"": sorted({*shortlist.always.tolist(), *own[EOS].tolist()})}
    lines |= {pieces[0][id_]: found.tolist() for id_, found in enumerate(own) if id_ != EOS and len(found)}
    for name in (*lines, *(pieces[1][id_] for found in lines.values() for id_ in found)):
        if set(name) & set(" \t\n"):
            raise UserError(
                f"the token {name!r} has a space, at which {NAME} would divide it",
                where="decoding.shortlist",
                hint="Export the model without a shortlist: decoding.shortlist is `none` in its recipe.",
            )
    return "".join(f"{name}\t{' '.join(pieces[1][id_] for id_ in found)}\n" for name, found in lines.items()).encode()


def _fill(part: Any, weights: Weights, layer: str) -> None:
    """Fill a layer. CTranslate2 joins the projections of query, key and value, at cross-attention of key and value."""
    _linear(part.self_attention.linear[0], weights, *(f"{layer}.self.{each}" for each in "qkv"))
    _linear(part.self_attention.linear[1], weights, f"{layer}.self.o")
    _layer_norm(part.self_attention.layer_norm, weights, f"{layer}.self_norm")
    if f"{layer}.cross.q.weight" in weights:
        for spec, parts in zip(part.attention.linear, ("q", "kv", "o"), strict=True):
            _linear(spec, weights, *(f"{layer}.cross.{each}" for each in parts))
        _layer_norm(part.attention.layer_norm, weights, f"{layer}.cross_norm")
    _linear(part.ffn.linear_0, weights, f"{layer}.feed_forward.inner")
    _linear(part.ffn.linear_1, weights, f"{layer}.feed_forward.outer")
    _layer_norm(part.ffn.layer_norm, weights, f"{layer}.feed_forward_norm")


def _linear(spec: Any, weights: Weights, *modules: str) -> None:
    spec.weight = np.concatenate([_array(weights[f"{module}.weight"]) for module in modules])
    spec.bias = np.concatenate([_array(weights[f"{module}.bias"]) for module in modules])


def _layer_norm(spec: Any, weights: Weights, module: str) -> None:
    spec.gamma, spec.beta = _array(weights[f"{module}.weight"]), _array(weights[f"{module}.bias"])


def _array(tensor: Tensor) -> Array:
    array: Array = as_fp32(tensor).numpy()
    return array


def _vocabulary(tokenizer: Tokenizer, side: str) -> list[str]:
    """The tokens of the vocabulary, in the order of their ids."""
    pieces = tokenizer.pieces(range(tokenizer.size))
    if len(set(pieces)) < len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if piece in pieces[:i])
        raise UserError(
            f"the {side} vocabulary has two tokens named {twice}, which {NAME} cannot tell apart",
            where="data.tokenizer",
            hint="A word of the text looks like a special token: replace it in the text, and train again.",
        )
    return pieces


def _usage(plain: PlainTransformer, bundle: Bundle, sentencepiece: bool) -> str:
    """The code that runs the model."""
    decoding = bundle.recipe.decoding
    if sentencepiece:
        own = {
            "imports": "import sentencepiece",
            "tokenizer": 'source, target = (sentencepiece.SentencePieceProcessor(f"{side}.spm") for side in '
            '("source", "target"))',
            "encode": "[source.encode(line, out_type=str) for line in lines]",
            "decode": "target.decode(result.hypotheses[0])",
        }
    else:
        own = {
            "imports": "from pathlib import Path\n\nfrom sparsenmt.data.tokenizers.tokenizer import Tokenizers",
            "tokenizer": 'tokenizers = Tokenizers.load(Path("tokenizers"))\n'
            "source, target = tokenizers.source, tokenizers.target\n"
            "ids = {token: id_ for id_, token in enumerate(target.pieces(range(target.size)))}",
            "encode": "[source.pieces(source.encode(line)) for line in lines]",
            "decode": "target.decode([ids[token] for token in result.hypotheses[0]])",
        }
    return _CODE.format(
        **own,
        beam=strategy_of(decoding).width,
        penalty=f"{length_penalty(decoding):g}",
        positions=plain.max_positions,
        shortest=decoding.min_length,
        longest=min(longest_output(plain, decoding), plain.max_positions, 256),
        never=[[SPECIAL_TOKENS[token]] for token in never(decoding)],
        use_map="\n    use_vmap=True," if bundle.shortlist(decoding) is not None else "",
    )


TARGET = ExportTarget(
    NAME,
    _check_installed,
    _write,
    _usage,
    lambda plain: [],
    "; `replace_unknowns=True` copies a token",
    searches=frozenset({"min_length"}),
)
