"""T5 (Raffel et al. 2020), its version 1.1, FLAN-T5 (Chung et al. 2022), and MADLAD-400 (Kudugunta et al. 2023).

Other than BART: distances in buckets in the place of positions, normalisation by the root mean square, no biases, heads
of any size whose scores are not divided by its square root, and, where input and output share one table and the model
is of the first version, outputs that are scaled by the dimension^-0.5. The last two are put into the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.importers.families.family import Family
from sparsenmt.importers.families.tokens import TokenizerFiles, Tokens
from sparsenmt.importers.foreign_files import SWITCH, TEXT, ForeignTensors, real_number, whole_number

EXTRA = re.compile(r"<extra_id_\d+>")
"""A mark of pre-training in the place of a gap."""
_PARTS = {
    **{f"self.{part}": f"SelfAttention.{part}" for part in "qkvo"},
    **{f"cross.{part}": f"EncDecAttention.{part}" for part in "qkvo"},
    **{"feed_forward.value": "DenseReluDense.wi_1", "feed_forward.outer": "DenseReluDense.wo"},
}


def _keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of BART's configuration."""
    kind, _, function = values["feed_forward_proj"].rpartition("-")
    activation = {"gated-gelu": "gelu_new"}.get(values["feed_forward_proj"], function)
    layers, heads, dropout = values["num_layers"], values["num_heads"], values["dropout_rate"]
    return {
        **values,
        **{f"{side}_ffn_dim": values["d_ff"] for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": heads for side in ("encoder", "decoder")},
        **{"encoder_layers": layers, "decoder_layers": values.get("num_decoder_layers") or layers},
        **{"dropout": dropout, "attention_dropout": dropout, "activation_dropout": dropout},
        "activation_function": activation if kind in ("", "gated") else values["feed_forward_proj"],
        "max_position_embeddings": values["n_positions"],
        "scale_embedding": False,
    }


def _model(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the `model` section beside those of BART."""
    buckets = {"buckets": values["relative_attention_num_buckets"]}
    position = {"name": "distance_buckets", **buckets, "maximum": values["relative_attention_max_distance"]}
    return {
        **{"norm_kind": "rms", "norm_epsilon": values["layer_norm_epsilon"], "head_size": values["d_kv"]},
        "glu": values["feed_forward_proj"].startswith("gated-"),
        "attention": {"encoder_self": {"position": position}, "decoder_self": {"position": position}},
    }


def _take(taken: ForeignTensors, values: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of a stack; of a bias, zeros. Scores here are divided by the square root of the head size."""
    side, part, *rest = name.split(".")
    place, scale = f"model.{side}.", math.sqrt(values["d_kv"])
    if part == "steps":  # the first one's, which all share
        return taken.take(f"{place}block.0.layer.0.SelfAttention.relative_attention_bias.weight", shape) * scale
    if rest[-1] == "bias":
        return torch.zeros(shape)
    if part == "norm":
        first = values.get("scale_decoder_outputs", values["tie_word_embeddings"])
        factor = 1 / math.sqrt(values["d_model"]) if side == "decoder" and first else 1.0
        return taken.take(f"{place}final_layer_norm.weight", shape) * factor
    block, module = rest[0], ".".join(rest[1:-1])
    last = 2 if side == "decoder" else 1
    layer = last if module.startswith("feed_forward") else int(module.startswith("cross"))
    if module.endswith("_norm"):
        theirs = "layer_norm"
    elif module == "feed_forward.inner":
        theirs = f"DenseReluDense.{'wi_0' if values['feed_forward_proj'].startswith('gated-') else 'wi'}"
    else:
        theirs = _PARTS[module]
    found = taken.take(f"{place}block.{block}.layer.{layer}.{theirs}.weight", shape)
    return found * scale if module.endswith(".q") else found


def _read(files: TokenizerFiles) -> Tokens:
    """The tokens: SentencePiece's, then marks of pre-training, the first of which is the last token."""
    model, pieces = files.sentencepiece()
    count = files.settings.get("extra_ids", 100)
    fits = type(count) is int and 0 <= count <= files.config["vocab_size"] - len(pieces)
    own = [f"<extra_id_{number}>" for number in reversed(range(count if fits else 0))]
    names = [*pieces, *own]
    marked = {"<s>"} | {name for name in names if EXTRA.fullmatch(name) or files.language_of(name)}
    markers = frozenset(id_ for id_, name in enumerate(names) if name in marked)
    return Tokens(names, markers, sentencepiece=model).with_added(files)


def _frames(files: TokenizerFiles, codes: Collection[str]) -> Frames:
    """The frames of MADLAD-400: the target's language stands before a source."""
    return Frames(source_prefix=["target"])


FAMILY = Family(
    norm="pre",
    positions="none",
    tokenizers=("T5",),
    read_tokens=_read,
    output_bias=False,
    language=re.compile(r"<2([a-z]{2,3}(?:_\w+)?)>"),
    language_frames=_frames,
    defaults={
        **{"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128},
        **{"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "n_positions": 512},
        **{"dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "tie_word_embeddings": True},
        **{"pad_token_id": 0, "eos_token_id": 1},
    },
    kinds={
        **dict.fromkeys(("d_kv", "d_ff"), whole_number(1, 1 << 16)),
        **dict.fromkeys(("num_layers", "num_decoder_layers", "num_heads"), whole_number(1, 1000)),
        **{"relative_attention_num_buckets": whole_number(4, 1 << 16), "n_positions": whole_number(2, 1 << 17)},
        "relative_attention_max_distance": whole_number(2, 1 << 20),
        **{"dropout_rate": real_number(0, 0.999), "layer_norm_epsilon": real_number(1e-12, 1)},
        **{"feed_forward_proj": TEXT, "scale_decoder_outputs": SWITCH},
    },
    keys=_keys,
    model=_model,
    unused=("model.decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    take=_take,
)
