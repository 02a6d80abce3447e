"""A trained model as a plain Transformer, which other programs can run: softmax attention over all positions.

Blocks that run several times become one layer for each step; of several exits one depth is exported (its steps and the
last normalisation); disabled heads become zero columns of the output projection. A model with other methods is refused,
with the method and its socket.

Shapes: D model dimension, V vocabulary, P positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.assemble.methods import chosen_methods
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.transformer import Transformer, table_keys
from sparsenmt.recipe import schema
from sparsenmt.recipe.method_choice import Site

Weights = Mapping[str, Tensor]
"""By their names as in the weights file; each step is a layer of its own."""

_HINT = "Other programs only compute full softmax attention with learned heads: run it with `sparsenmt decode`."


@dataclass(frozen=True)
class PlainTransformer:
    """A plain Transformer.

    Args:
        section: of the recipe, for its sizes and the places of its normalisations.
        encoder_heads, decoder_heads, encoder_layers, decoder_layers: numbers of heads and layers, one a step.
        source, target, output: (V, D).
        output_bias: (V).
        source_positions, target_positions: (P, D).
        stacks: the weights of layers and of normalisations after them, and of embeddings.
    """

    section: schema.ModelSection
    encoder_heads: int
    decoder_heads: int
    encoder_layers: int
    decoder_layers: int
    source: Tensor
    target: Tensor
    output: Tensor
    output_bias: Tensor | None
    source_positions: Tensor
    target_positions: Tensor
    stacks: Weights

    @property
    def max_positions(self) -> int:
        return int(self.source_positions.shape[0])

    @property
    def final_norm(self) -> bool:
        """True if a normalisation follows the last layer of each side."""
        return "encoder.norm.weight" in self.stacks


def plain_model(
    bundle: Bundle,
    target: str,
    depth: tuple[int, int] | None = None,
    *,
    computes: Collection[tuple[str, str]] = (),
) -> PlainTransformer:
    """Convert the model of a bundle that was opened unpacked, in fp32.

    Args:
        target: the name of the program, for messages.
        depth: numbers of encoder and decoder layers; None: the deepest exits.
        computes: further methods that the program has, as socket and name.

    Raises:
        UserError: the model is not a plain Transformer.
    """
    section, plain = bundle.recipe.model, {"pattern": Site().pattern.name, "transform": Site().transform.name}
    for key, method, choice in chosen_methods(section):
        known = choice.name == plain.get(method.socket) or (method.socket, choice.name) in computes
        if method.socket != "depth" and not known:
            raise UserError(f"{target} does not compute the {method.socket} {choice.name}", where=key, hint=_HINT)
    return plain_transformer(section, bundle.model, target, depth)


def plain_transformer(
    section: schema.ModelSection, model: Transformer, target: str = "", depth: tuple[int, int] | None = None
) -> PlainTransformer:
    """Convert a model without sparsity methods; as `plain_model`."""
    heads = {site: _count(section, site) for site in SITES}
    for key in ("head_size", "norm_kind", "glu"):
        if (value := getattr(section, key)) != schema.ModelSection.model_fields[key].default:
            raise UserError(
                f"{target} does not compute models of this family with `{key}: {value}`",
                where=f"model.{key}",
                hint="Run it with `sparsenmt decode`.",
            )
    if heads["decoder_self"] != heads["cross"]:
        raise UserError(
            f"{target} has the same number of heads in the whole decoder, "
            f"not {heads['decoder_self']} and {heads['cross']}",
            where="model.attention.cross.heads.count",
            hint=_HINT,
        )
    encoder_layers, decoder_layers = depth or model.plan.deepest
    weights = model.state_dict()
    tables = [weights[f"embeddings.{key}"] for key in table_keys(section.tie_embeddings)]
    positions = [
        model.positions[side](0, section.max_positions, model.output_table).detach().clone()
        for side in ("source", "target")
    ]
    norms = ("encoder.norm.", "decoder.norm.", "embedding_norm.")
    return PlainTransformer(
        section=section,
        encoder_heads=heads["encoder_self"],
        decoder_heads=heads["cross"],
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        source=tables[0],
        target=tables[1],
        output=tables[2],
        output_bias=weights.get("output_bias"),
        source_positions=positions[0],
        target_positions=positions[1],
        stacks={
            **{name: tensor for name, tensor in weights.items() if name.startswith(norms)},
            **_layers(section, weights, "encoder", model.plan.encoder[:encoder_layers]),
            **_layers(section, weights, "decoder", model.plan.decoder[:decoder_layers]),
        },
    )


def _count(section: schema.ModelSection, site: SiteName) -> int:
    chosen: Site = getattr(section.attention, site)
    return chosen.heads.count or section.heads


def _layers(section: schema.ModelSection, weights: Weights, side: str, blocks: Sequence[int]) -> dict[str, Tensor]:
    """The weights of the layers of a side, which are these blocks, without the columns of disabled heads."""
    sites: dict[str, SiteName] = {"self": "encoder_self" if side == "encoder" else "decoder_self", "cross": "cross"}
    found: dict[str, Tensor] = {}
    for number, block in enumerate(blocks):
        prefix, own = f"{side}.layers.{block}.", f"{side}.layers.{number}."
        found |= {own + name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
        for name, site in sites.items():
            disabled = getattr(section.attention, site).heads.disabled
            if disabled and (output := f"{own}{name}.o.weight") in found:
                split = found[output].clone().unflatten(1, (_count(section, site), -1))
                split[:, [head - 1 for head in disabled]] = 0.0
                found[output] = split.flatten(1)
    return found


def parameter_count(plain: PlainTransformer) -> int:
    """The number of parameters; those that steps or tables share count once."""
    tensors = [plain.source, plain.target, plain.output, *plain.stacks.values()]
    tensors += [] if plain.output_bias is None else [plain.output_bias]
    storages = {tensor.data_ptr(): tensor.numel() for tensor in tensors}
    return sum(storages.values())


def as_fp32(tensor: Tensor) -> Tensor:
    """Copy to the CPU as contiguous fp32."""
    return tensor.detach().to("cpu", torch.float32).contiguous()
