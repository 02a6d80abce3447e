"""A trained model as a plain Transformer, which other programs can run: softmax attention over all positions.

Blocks that run several times become one layer for each step; of several exits one depth is exported (its steps and the
last normalisation); disabled heads become zero columns of the output projection. A model with other methods is refused,
with the method and its socket.

Shapes: D model dimension, F inner dimension, V vocabulary, P positions, E head size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparsenmt.assemble import chosen_methods
from sparsenmt.errors import UserError
from sparsenmt.model.linear import Activation
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.transformer import Tie, Transformer, table_keys
from sparsenmt.recipe import schema
from sparsenmt.recipe.method_choice import Site
from sparsenmt.store import Bundle

LayerWeights = Mapping[str, Tensor]
"""The weights of one layer by their names within a block, such as ``self.q.weight`` (D, D)."""

_HINT = "Other programs only compute full softmax attention with learned heads: run it with `sparsenmt decode`."


@dataclass(frozen=True)
class PlainTransformer:
    """The hyperparameters and weights of a plain Transformer."""

    dimension: int
    feed_forward: int
    decoder_feed_forward: int
    encoder_heads: int
    decoder_heads: int
    norm: Literal["pre", "post"]
    norm_epsilon: float
    activation: Activation
    tie: Tie
    scaled: bool  # embeddings are multiplied by sqrt(D)
    source: Tensor  # (V, D)
    target: Tensor  # (V, D)
    output: Tensor  # (V, D)
    output_bias: Tensor | None  # (V)
    source_positions: Tensor  # (P, D)
    target_positions: Tensor  # (P, D)
    encoder: Sequence[LayerWeights]
    decoder: Sequence[LayerWeights]
    encoder_norm: LayerWeights | None  # weight and bias of the normalisation after the last layer, if there is one
    decoder_norm: LayerWeights | None
    source_norm: LayerWeights | None  # of the embeddings, after positions were added
    target_norm: LayerWeights | None

    @property
    def max_positions(self) -> int:
        return int(self.source_positions.shape[0])

    @property
    def final_norm(self) -> bool:
        """True if a normalisation follows the last layer of each side."""
        return self.encoder_norm is not None

    @property
    def embedding_norm(self) -> bool:
        """True if embeddings are normalised."""
        return self.source_norm is not None


def plain_model(bundle: Bundle, target: str, depth: tuple[int, int] | None = None) -> PlainTransformer:
    """Convert the model of a bundle that was opened unpacked, in fp32.

    Args:
        target: the name of the program, for messages.
        depth: numbers of encoder and decoder layers; None: the deepest exits.

    Raises:
        UserError: the model is not a plain Transformer.
    """
    _check_methods(bundle.recipe.model, target)
    return plain_transformer(bundle.recipe.model, bundle.model, target, depth)


def plain_transformer(
    section: schema.Model, model: Transformer, target: str = "", depth: tuple[int, int] | None = None
) -> PlainTransformer:
    """Convert a model without sparsity methods; as `plain_model`."""
    heads = {site: _count(section, site) for site in SITES}
    if heads["decoder_self"] != heads["cross"]:
        raise UserError(
            f"{target} has the same number of heads in the whole decoder, "
            f"not {heads['decoder_self']} and {heads['cross']}",
            where="model.attention.cross.heads.count",
            hint=_HINT,
        )
    encoder_steps, decoder_steps = depth or model.plan.deepest
    weights = model.state_dict()
    tables = [weights[f"embeddings.{key}"] for key in table_keys(section.tie_embeddings)]
    positions = [_positions(model, side, section.max_positions) for side in ("source", "target")]
    return PlainTransformer(
        dimension=section.dimension,
        feed_forward=section.feed_forward,
        decoder_feed_forward=section.decoder_feed_forward or section.feed_forward,
        encoder_heads=heads["encoder_self"],
        decoder_heads=heads["cross"],
        norm=section.norm,
        norm_epsilon=section.norm_epsilon,
        activation=section.activation,
        tie=section.tie_embeddings,
        scaled=section.embedding_scale == "sqrt",
        source=tables[0],
        target=tables[1],
        output=tables[2],
        output_bias=weights.get("output_bias"),
        source_positions=positions[0],
        target_positions=positions[1],
        encoder=_layers(section, weights, "encoder", model.plan.encoder[:encoder_steps]),
        decoder=_layers(section, weights, "decoder", model.plan.decoder[:decoder_steps]),
        encoder_norm=_inside(weights, "encoder.norm.") or None,
        decoder_norm=_inside(weights, "decoder.norm.") or None,
        source_norm=_inside(weights, "embedding_norm.source.") or None,
        target_norm=_inside(weights, "embedding_norm.target.") or None,
    )


def _check_methods(section: schema.Model, target: str) -> None:
    """UserError for the first method that other programs do not have, depth methods excepted."""
    plain = {"pattern": Site().pattern.name, "transform": Site().transform.name}
    for key, method, choice in chosen_methods(section):
        if method.socket != "depth" and choice.name != plain.get(method.socket):
            raise UserError(f"{target} does not compute the {method.socket} {choice.name}", where=key, hint=_HINT)


def _count(section: schema.Model, site: SiteName) -> int:
    chosen: Site = getattr(section.attention, site)
    return chosen.heads.count or section.heads


def _positions(model: Transformer, side: str, count: int) -> Tensor:
    """(P, D): the encodings of all positions."""
    encodings: Tensor = model.positions[side](0, count, model.output_table)
    return encodings.detach().clone()


def _layers(section: schema.Model, weights: LayerWeights, side: str, blocks: Sequence[int]) -> list[LayerWeights]:
    sites: dict[str, SiteName] = {"self": "encoder_self" if side == "encoder" else "decoder_self", "cross": "cross"}
    layers: list[LayerWeights] = []
    for block in blocks:
        layer = _inside(weights, f"{side}.layers.{block}.")
        for name, site in sites.items():
            disabled = getattr(section.attention, site).heads.disabled
            if disabled and f"{name}.o.weight" in layer:
                layer[f"{name}.o.weight"] = _without(layer[f"{name}.o.weight"], disabled, _count(section, site))
        layers.append(layer)
    return layers


def _without(weight: Tensor, disabled: Collection[int], heads: int) -> Tensor:
    """The output projection (D, heads * E) with zeros in the columns of these heads, numbered from 1."""
    split = weight.clone().unflatten(1, (heads, -1))
    split[:, [head - 1 for head in disabled]] = 0.0
    changed: Tensor = split.flatten(1)
    return changed


def _inside(weights: LayerWeights, prefix: str) -> dict[str, Tensor]:
    """The weights whose names begin with ``prefix``, without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def attention_weights(layer: LayerWeights, site: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Weight (D, D) and bias (D) of the projections ``q``, ``k``, ``v`` and ``o`` of ``self`` or ``cross``."""
    return {part: (layer[f"{site}.{part}.weight"], layer[f"{site}.{part}.bias"]) for part in ("q", "k", "v", "o")}


def parameter_count(plain: PlainTransformer) -> int:
    """The number of parameters; those that steps or tables share count once."""
    tensors = [plain.source, plain.target, plain.output]
    tensors += [tensor for layer in (*plain.encoder, *plain.decoder) for tensor in layer.values()]
    norms = (plain.encoder_norm, plain.decoder_norm, plain.source_norm, plain.target_norm)
    tensors += [tensor for norm in norms for tensor in (norm or {}).values()]
    tensors += [] if plain.output_bias is None else [plain.output_bias]
    storages = {tensor.data_ptr(): tensor.numel() for tensor in tensors}
    return sum(storages.values())


def as_fp32(tensor: Tensor) -> Tensor:
    """Copy to the CPU as contiguous fp32."""
    return tensor.detach().to("cpu", torch.float32).contiguous()
