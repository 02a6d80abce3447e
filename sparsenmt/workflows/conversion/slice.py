"""Cut a model to a depth, or to the tokens of a text: write what is left as a model directory of its own.

Other decoding options may be written with it, with a file of a shortlist as the model's own.

The cut model has one exit, its last layers: a recipe's `memory.*.per: exit` and its exits are dropped. Shared layers
(`depth: recurrent`) stay shared unless they are unrolled: the file is then no larger, and cross-attention keys and
values are projected once. Sockets and filters of the steps that are kept stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.checks import loss_names
from sparsenmt.assemble.model import build_model
from sparsenmt.assemble.model_card import write_model_card
from sparsenmt.data.text import StrPath
from sparsenmt.model.depth_plan import Depth, DepthPlan
from sparsenmt.model.transformer import own_exit
from sparsenmt.recipe.method_choice import MethodChoice
from sparsenmt.recipe.schema import Decoding, Recipe
from sparsenmt.storage.files import check_absent
from sparsenmt.workflows.conversion.vocabulary_slice import (
    VocabularyTexts,
    cut_shortlist,
    cut_tables,
    cut_vocabularies,
    recipe_of_cut,
    recipe_with_decoding,
    save_vocabularies,
)
from sparsenmt.workflows.decoding.depth_choice import check_layers, warn_untrained


@dataclass(frozen=True)
class SlicedModel:
    """The size of a cut model, and of the model that it was cut from.

    Args:
        depth: encoder and decoder layers.
        vocabularies: tokens of source and target.
        size: of the weights in fp32, in bytes.
    """

    depth: Depth
    parameters: int
    parameters_before: int
    vocabularies: tuple[int, int]
    vocabularies_before: tuple[int, int]

    @property
    def size(self) -> int:
        return 4 * self.parameters

    @property
    def size_before(self) -> int:
        return 4 * self.parameters_before


def slice_model(
    model: StrPath,
    output: StrPath,
    *,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    unroll: bool = False,
    vocabulary: VocabularyTexts | None = None,
    decoding: Decoding | None = None,
) -> SlicedModel:
    """Cut a model to its first layers, or its vocabularies to the tokens of texts, and write it to a new directory.

    Args:
        encoder_layers, decoder_layers: layers to keep; None: all.
        unroll: write a layer that several steps apply as several layers.
        vocabulary: the texts whose tokens stay; None: all tokens stay.
        decoding: options in place of the recipe's, of which the depth does not count; of a model whose tokens stay.

    Raises:
        UserError: the model has no such layer, ``output`` exists, or the vocabularies cannot be cut to the texts.
    """
    model, output = Path(model), Path(output)
    check_absent(output)
    version = model_directory.model_version(model)
    bundle = open_model(model, dtype=None)
    plan = bundle.model.plan
    check_layers(plan, "encoder", encoder_layers, f"--encoder-layers {encoder_layers}")
    check_layers(plan, "decoder", decoder_layers, f"--decoder-layers {decoder_layers}")
    depth = plan.depth(encoder_layers, decoder_layers)
    warn_untrained(plan, depth)
    found = cut_vocabularies(bundle, vocabulary) if vocabulary else None
    recipe = cut_recipe(bundle.recipe, plan, depth, unroll=unroll)
    changed = {"name": f"{recipe.name}-{depth[0]}-{depth[1]}", "directory": str(output)}
    recipe = recipe.model_copy(update=changed)
    weights, shortlist = bundle.model.state_dict(), None
    if found is not None:
        recipe, shortlist = recipe_of_cut(recipe, output), cut_shortlist(bundle, found)
        weights = cut_tables(weights, recipe, found)
    elif decoding is not None:
        recipe, shortlist = recipe_with_decoding(recipe, decoding), bundle.shortlist(decoding)
    tokenizers = bundle.tokenizers if found is None else found.tokenizers
    sizes = tokenizers.source.size, tokenizers.target.size
    cut = build_model(recipe.model, source_size=sizes[0], target_size=sizes[1], seed=0)
    cut.load_state_dict({name: weights[_origin(name, weights, plan, depth, cut.plan)] for name in cut.state_dict()})
    changes_files = found is not None or shortlist is not None
    save = partial(save_vocabularies, tokenizers, shortlist) if changes_files else None
    model_directory.copy_slice(model, output, recipe, cut.state_dict(), depth, version, save)
    write_model_card(output)
    after, before = (sum(parameter.numel() for parameter in each.parameters()) for each in (cut, bundle.model))
    sizes_before = bundle.tokenizers.source.size, bundle.tokenizers.target.size
    return SlicedModel(depth, after, before, sizes, sizes_before)


def cut_recipe(recipe: Recipe, plan: DepthPlan, depth: Depth, *, unroll: bool = False) -> Recipe:
    """Return the recipe of the model cut to a depth.

    Args:
        plan: of the model that is cut.
        unroll: as for `slice_model`.
    """
    changed: dict[str, Any] = {
        "encoder_layers": depth[0],
        "decoder_layers": depth[1],
        "depth": _depth_method(plan, depth, unroll),
        "memory": [
            choice.model_copy(update={"per": "model"})
            for choice in recipe.model.memory
            if choice.at != "between" or depth[0] > 1  # a single layer has no place between layers
        ],
    }
    model = recipe.model.model_copy(update=changed)
    known = loss_names(recipe, build_model(model, source_size=8, target_size=8, seed=0)) if recipe.losses else set()
    return recipe.model_copy(
        update={
            "model": model,
            "losses": {name: loss for name, loss in recipe.losses.items() if name in known},
            "decoding": recipe.decoding.at(None),
        }
    )


def _depth_method(plan: DepthPlan, depth: Depth, unroll: bool) -> MethodChoice:
    """Return `recurrent` where the sides that share a layer can go on sharing it, otherwise `plain`."""
    sides = {"encoder": plan.encoder[: depth[0]], "decoder": plan.decoder[: depth[1]]}
    one = [side for side, blocks in sides.items() if len(blocks) > 1 and len(set(blocks)) == 1]
    own = [side for side, blocks in sides.items() if len(blocks) == len(set(blocks))]
    if unroll or not one or not all(side in one or side in own for side in sides):
        return MethodChoice(name="plain")
    side = "both" if len(one) == 2 else one[0]
    return MethodChoice.model_validate({"name": "recurrent", "side": side})


def _origin(name: str, weights: Mapping[str, Tensor], plan: DepthPlan, depth: Depth, cut: DepthPlan) -> str:
    """Return the name, in the model that is cut, of the weight ``name`` of the model of ``depth`` that is left.

    Args:
        weights: of the model that is cut.
        plan, cut: of the model that is cut, and of what is left.
    """
    parts = name.split(".")
    match parts:
        case ["encoder" | "decoder" as side, "layers", number, *rest]:
            step = getattr(cut, side).index(int(number))
            return ".".join([side, "layers", str(getattr(plan, side)[step]), *rest])
        case ["encoder" | "decoder" as side, "steps", number, *rest] if name not in weights:
            # A weight that steps share bears the name of the first step that executes the block.
            blocks: Sequence[int] = getattr(plan, side)
            return ".".join([side, "steps", str(blocks.index(blocks[int(number)])), *rest])
        case ["memory", "output", index, *rest] if name not in weights:
            start = f"memory.output.{index}."
            exits = sorted({int(each.removeprefix(start).split(".")[0]) for each in weights if each.startswith(start)})
            return ".".join([*parts[:3], str(own_exit(exits, depth[0])), *rest])
    return name
