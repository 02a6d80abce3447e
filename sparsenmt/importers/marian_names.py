"""Marian's names of a model's weights, for its two kinds of Transformer (`type: transformer` and `transformer-new`)."""

from __future__ import annotations

_LAYER_NAMES = {
    **{f"self.{part}": (f"self_W{part}", f"self_b{part}") for part in "qkvo"},
    **{f"cross.{part}": (f"context_W{part}", f"context_b{part}") for part in "qkvo"},
    **{"feed_forward.inner": ("ffn_W1", "ffn_b1"), "feed_forward.outer": ("ffn_W2", "ffn_b2")},
    **{"recurrence.candidate": ("rnn_W", ""), "recurrence.forget": ("rnn_Wf", "rnn_bf")},
    **{
        "self_norm": ("self_Wo_ln_scale", "self_Wo_ln_bias"),
        "cross_norm": ("context_Wo_ln_scale", "context_Wo_ln_bias"),
    },
    "feed_forward_norm": ("ffn_ffn_ln_scale", "ffn_ffn_ln_bias"),
}
"""The weight and the bias of the modules of a layer in Marian, without its block."""

_SELF = {"encoder": ("selfAttentionBlock", "selfAttention"), "decoder": ("autoRegressiveBlock", "selfAttention")}
_LAYERS = {"encoder": "TransformerEncoderLayer", "decoder": "TransformerDecoderLayerWithCrossAttention"}
_INNER = {True: ("LinearReluDropout", 1), False: ("Linear", 3)}
"""The class of the first projection of a feed-forward block in `transformer-new`, and the number of the second one
among projections, activation and dropout; by "the activation is relu"."""


def weight_name(name: str, *, norm: str, recurrent: bool, block: int | None = None) -> str:
    """The name of a weight of a stack, or of a normalisation after it or of the embeddings.

    Args:
        name: this program's.
        norm: ``pre`` or ``post``.
        recurrent: True of a decoder with recurrent layers.
        block: the number of the layer's block in Marian, from 1; None: one more than that of the layer here.
    """
    side, *inner, kind = name.split(".")
    is_bias = kind == "bias"
    if inner in (["norm"], ["source"], ["target"]):  # the last two: of embeddings
        of_side = {"source": "encoder_emb", "target": "decoder_emb"}.get(inner[0], f"{side}_top")
        return f"{of_side}_ln_{'bias' if is_bias else 'scale'}{'' if inner == ['norm'] else '_pre'}"
    module = ".".join(inner[2:])
    own = _LAYER_NAMES[module][is_bias]
    if module == "self_norm" and side == "decoder" and recurrent:
        own = f"rnn_{'' if norm == 'pre' else 'ffn_'}ln_{'bias' if is_bias else 'scale'}"
    after = "_pre" if module.endswith("norm") and norm == "pre" else ""
    return f"{side}_l{block or int(inner[1]) + 1}_{own}{after}"


def new_weight_name(name: str, *, relu: bool) -> str:
    """The name of a weight in `transformer-new` with the norms first, which is the path of its module in C++.

    Args:
        name: this program's; of a stack, or of a normalisation after it or of the embeddings.
        relu: True if the activation is relu.
    """
    side, *inner, kind = name.split(".")
    if inner in (["norm"], ["source"], ["target"]):
        side = {"source": "encoder", "target": "decoder"}.get(inner[0], side)
        place = f"{'postprocessor' if inner == ['norm'] else 'preprocessor'}->norm"
    else:
        module, part = inner[2].removesuffix("_norm"), inner[3] if len(inner) > 3 else ""
        blocks = {"self": _SELF[side], "cross": ("crossAttentionBlock", "crossAttention")}
        block, attention = blocks.get(module, ("filterBlock", ""))
        of_class, last = _INNER[relu]
        own = {
            **{"": "preprocessor->norm", "inner": f"layers->at(0)->as<marian::nn::{of_class}>()"},
            "outer": f"layers->at({last})->as<marian::nn::Linear>()",
        }
        layer = f"layers->at({inner[1]})->as<marian::nn::{_LAYERS[side]}>()"
        place = f"{layer}->{block}->{own.get(part, f'{attention}->{part}Proj')}"
    return f"TransformerBatch{side.capitalize()}->{side}->{place}->{kind}"
