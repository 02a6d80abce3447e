"""A model cut to a depth: the recipe and the weights of a model that has only the layers that ran there.

A recipe's `memory.*.per: exit` and its exits end here: the cut model has one exit, its last layers. Layers that are one
stay one (`depth: recurrent`) unless they are written out: the file is as small as before, and the memory's keys and
values are projected once. Sockets and filters of the steps that are kept stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sparsenmt.assemble import build_model, loss_names
from sparsenmt.model.depth_plan import Depth, DepthPlan
from sparsenmt.model.transformer import Transformer, own_exit
from sparsenmt.recipe.schema import MethodChoice, Model, Recipe


def cut_recipe(recipe: Recipe, plan: DepthPlan, depth: Depth, *, unroll: bool = False) -> Recipe:
    """The recipe of the model cut to a depth.

    Args:
        plan: of the model that is cut.
        unroll: write a layer that several steps apply out as several.
    """
    changed: dict[str, Any] = {
        "encoder_layers": depth[0],
        "decoder_layers": depth[1],
        "depth": _depth_method(plan, depth, unroll),
        "memory": [
            choice.model_copy(update={"per": "model"})
            for choice in recipe.model.memory
            if choice.at != "between" or depth[0] > 1  # there is nothing between the layers of one
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
    sides = {"encoder": plan.encoder[: depth[0]], "decoder": plan.decoder[: depth[1]]}
    one = [side for side, blocks in sides.items() if len(blocks) > 1 and len(set(blocks)) == 1]
    own = [side for side, blocks in sides.items() if len(blocks) == len(set(blocks))]
    if unroll or not one or not all(side in one or side in own for side in sides):
        return MethodChoice(name="plain")
    side = "both" if len(one) == 2 else one[0]
    return MethodChoice.model_validate({"name": "recurrent", "side": side})


def cut_weights(weights: Mapping[str, Tensor], plan: DepthPlan, depth: Depth, cut: Transformer) -> dict[str, Tensor]:
    """The weights of ``cut``, out of those of the model that it is cut from.

    Args:
        plan: of the model that is cut.
    """
    return {name: weights[_origin(name, weights, plan, depth, cut.plan)].clone() for name in cut.state_dict()}


def _origin(name: str, weights: Mapping[str, Tensor], plan: DepthPlan, depth: Depth, cut: DepthPlan) -> str:
    """The name, in the model that is cut, of what its cut calls ``name``."""
    parts = name.split(".")
    match parts:
        case ["encoder" | "decoder" as side, "layers", number, *rest]:
            step = getattr(cut, side).index(int(number))
            return ".".join([side, "layers", str(getattr(plan, side)[step]), *rest])
        case ["encoder" | "decoder" as side, "steps", number, *rest] if name not in weights:
            # What steps share bears the name of the first that executes the block.
            blocks: Sequence[int] = getattr(plan, side)
            return ".".join([side, "steps", str(blocks.index(blocks[int(number)])), *rest])
        case ["memory", "output", index, *rest] if name not in weights:
            start = f"memory.output.{index}."
            exits = sorted({int(each.removeprefix(start).split(".")[0]) for each in weights if each.startswith(start)})
            return ".".join([*parts[:3], str(own_exit(exits, depth[0])), *rest])
    return name


def cut_model(
    section: Model, weights: Mapping[str, Tensor], plan: DepthPlan, depth: Depth, sizes: tuple[int, int]
) -> Transformer:
    """The model of a cut recipe's section, with its weights.

    Args:
        sizes: of the source's and the target's vocabulary.
    """
    cut = build_model(section, source_size=sizes[0], target_size=sizes[1], seed=0)
    cut.load_state_dict(cut_weights(weights, plan, depth, cut))
    return cut
