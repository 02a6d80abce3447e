"""The weights of a plain Transformer as Marian's tensors, with the configuration that says what they are.

Marian begins every target with a vector of zeros, this program with the row of ``<s>``. A row that is not zero is
subtracted from the target's embeddings at all positions, which are then the same but for a constant; what reads them
first adds it again. With the norms after the sub-layers that are the biases of the first self-attention; with the
norms before them a layer in front that adds nothing else.

Shapes: D model dimension, V and U tokens of a vocabulary in this program and in Marian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, PAD
from sparsenmt.export.plain_transformer import PlainTransformer, as_fp32
from sparsenmt.importers.marian_names import new_weight_name, weight_name
from sparsenmt.model.protocol import NEVER

ACTIVATIONS = {"relu": "relu", "silu": "swish", "gelu": "gelu"}
_OPERATIONS = {"pre": ("n", "da"), "post": ("", "dan")}
"""`transformer-preprocess` and `-postprocess` by the place of the norms; d: dropout, a: add, n: normalise."""


@dataclass(frozen=True)
class MarianWeights:
    """A model as Marian computes it.

    Args:
        configuration: `special:model.yml`.
        tensors: in fp32, by Marian's names; matrices are multiplied from the right, vectors are (1, n), and (n) in
            `transformer-new`.
    """

    configuration: dict[str, Any]
    tensors: dict[str, Tensor]


def start_vector(plain: PlainTransformer) -> Tensor:
    """(D): the row with which the decoder begins, as it stands in the table."""
    return plain.target[BOS]


def is_new(plain: PlainTransformer) -> bool:
    """True if the model is a `transformer-new`.

    With the norms first, the decoder of `transformer` normalises the queries of self-attention, not keys and values.
    """
    return plain.section.norm == "pre" and plain.section.recurrence is None


def marian_weights(plain: PlainTransformer, ids: tuple[Sequence[int], Sequence[int]], *, new: bool) -> MarianWeights:
    """Convert a model.

    Args:
        ids: of source and target, (V): Marian's id of each token; -1: it has no such token.
        new: use the names of a `transformer-new`.
    """
    sizes = [max(each) + 1 for each in ids]
    moved = bool(start_vector(plain).any())
    if moved:
        plain = _begin_with_zeros(plain)
    recurrent = plain.section.recurrence is not None
    tensors = _tables(plain, ids, sizes, tied="none" if moved else plain.section.tie_embeddings)
    for name, tensor in plain.stacks.items():
        own = as_fp32(tensor.t() if tensor.dim() == 2 else tensor)
        if new:
            theirs = new_weight_name(name, relu=plain.section.activation == "relu")
        else:
            theirs = weight_name(name, norm=plain.section.norm, recurrent=recurrent)
        tensors[theirs] = own if new or own.dim() == 2 else own[None]
    return MarianWeights(_configuration(plain, sizes, moved=moved), tensors)


def _begin_with_zeros(plain: PlainTransformer) -> PlainTransformer:
    """The same model, whose decoder begins with zeros."""
    row = start_vector(plain)
    added = row * (math.sqrt(plain.section.dimension) if plain.section.embedding_scale == "sqrt" else 1.0)
    target, stacks, layers = plain.target - row, dict(plain.stacks), plain.decoder_layers
    if plain.section.norm == "post":
        first = "decoder.layers.0.self."
        for part in "qkv":
            stacks[f"{first}{part}.bias"] = stacks[f"{first}{part}.bias"] + stacks[f"{first}{part}.weight"] @ added
        stacks[f"{first}o.bias"] = stacks[f"{first}o.bias"] + added
    else:
        prefix, moved = "decoder.layers.", {}
        for name, tensor in stacks.items():
            if name.startswith(prefix):
                number, rest = name.removeprefix(prefix).split(".", 1)
                moved[f"{prefix}{int(number) + 1}.{rest}"] = tensor
                if number == "0":  # the layer in front
                    ones = rest.endswith("norm.weight")
                    moved[name] = torch.ones_like(tensor) if ones else torch.zeros_like(tensor)
        moved[f"{prefix}0.feed_forward.outer.bias"] = added
        stacks = {name: each for name, each in stacks.items() if not name.startswith(prefix)} | moved
        layers += 1
    return replace(plain, target=target, stacks=stacks, decoder_layers=layers)


def _tables(
    plain: PlainTransformer, ids: tuple[Sequence[int], Sequence[int]], sizes: Sequence[int], tied: str
) -> dict[str, Tensor]:
    """The tables (U, D) and the bias of the output (1, U)."""

    def rows(table: Tensor, side: int) -> Tensor:
        places = torch.tensor(ids[side])
        found = as_fp32(table).new_zeros(sizes[side], *table.shape[1:])
        found[places[places >= 0]] = as_fp32(table)[places >= 0]
        return found

    inputs = tied in ("all", "inputs")
    tensors = {"Wemb": rows(plain.source, 0)} if inputs else {"encoder_Wemb": rows(plain.source, 0)}
    if not inputs:
        tensors["decoder_Wemb"] = rows(plain.target, 1)
    if tied in ("inputs", "none"):
        tensors["decoder_ff_logit_out_Wt"] = rows(plain.output, 1)
    bias = torch.zeros(len(ids[1])) if plain.output_bias is None else as_fp32(plain.output_bias).clone()
    bias[[PAD, BOS]] = NEVER  # no outputs, though a vocabulary of this program has them
    tensors["decoder_ff_logit_out_b"] = rows(bias, 1)[None]
    if plain.section.positions == "learned":
        tensors["Wpos"] = as_fp32(plain.source_positions)
    return tensors


def _configuration(plain: PlainTransformer, sizes: Sequence[int], *, moved: bool) -> dict[str, Any]:
    """`special:model.yml` with all keys that Marian's decoder reads."""
    section = plain.section
    before, after = _OPERATIONS[section.norm]
    tie = "none" if moved else section.tie_embeddings
    found: Mapping[str, Any] = {
        **CONSTANT,
        "type": "transformer-new" if is_new(plain) else "transformer",
        "dim-emb": section.dimension,
        "dim-vocabs": list(sizes),
        "enc-depth": plain.encoder_layers,
        "dec-depth": plain.decoder_layers,
        "transformer-heads": plain.encoder_heads,
        "transformer-dim-ffn": section.feed_forward,
        "transformer-decoder-dim-ffn": section.decoder_feed_forward or 0,
        "transformer-ffn-activation": ACTIVATIONS.get(section.activation, section.activation),
        "transformer-preprocess": before,
        "transformer-postprocess": after,
        "transformer-postprocess-emb": "nd" if section.embedding_norm else "d",
        "transformer-postprocess-top": "n" if plain.final_norm else "",
        "transformer-decoder-autoreg": "self-attention" if section.recurrence is None else "rnn",
        "transformer-train-position-embeddings": section.positions == "learned",
        "dec-cell": "gru" if section.recurrence is None else section.recurrence.name,
        "tied-embeddings-all": tie == "all",
        "tied-embeddings-src": tie == "inputs",
        "tied-embeddings": tie == "target",
    }
    return dict(sorted(found.items()))


CONSTANT: dict[str, Any] = {
    **{"bert-train-type-embeddings": True, "bert-type-vocab-size": 2, "dec-cell-base-depth": 2},
    **{"dec-cell-high-depth": 1, "dim-rnn": 1024, "enc-cell": "gru", "enc-cell-depth": 1, "enc-type": "bidirectional"},
    **{"factors-combine": "sum", "factors-dim-emb": 0, "input-types": [], "layer-normalization": False},
    **{"lemma-dependency": "", "lemma-dim-emb": 0, "output-omit-bias": False, "right-left": False, "skip": False},
    **{"separator-symbol": "[eos]", "transformer-aan-activation": "swish", "transformer-aan-depth": 2},
    **{"transformer-aan-nogate": False, "transformer-alibi-shift": False, "transformer-alibi-trainable": False},
    **{"transformer-attention-mask": "default", "transformer-decoder-ffn-depth": 0, "transformer-dim-aan": 2048},
    **{"transformer-disable-position-embeddings": False, "transformer-ffn-depth": 2},
    **{"transformer-guided-alignment-layer": "last", "transformer-no-affine": False, "transformer-no-bias": False},
    **{"transformer-no-projection": False, "transformer-pool": False, "transformer-rnn-projection": False},
    **{"transformer-tied-layers": [], "ulr": False, "ulr-dim-emb": 0, "ulr-trainable-transformation": False},
    "version": "v1.12.0",  # of Marian, whose keys these are
}
"""Keys of Marian's configuration that are the same in all models: those of other architectures must be there, too."""
