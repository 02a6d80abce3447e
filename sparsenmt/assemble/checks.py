"""Checks of a recipe before data are read: can a model be built of it, does it fit, does every loss have a method?"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch

from sparsenmt.assemble.estimates import check_fits, least_parameters
from sparsenmt.assemble.methods import attention_sites, required_features
from sparsenmt.assemble.model import (
    build_model,
    build_without_memory,
    choose_trained,
    content_pattern,
    count_parameters,
    depth_plan,
    memory_filter,
    recurrence_maker,
    site_modules,
    step_method,
)
from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.protocol import Encoded, Source
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import ContentPattern
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import device_memory
from sparsenmt.recipe import schema
from sparsenmt.recipe.load import RecipeLike, load, plain_values
from sparsenmt.recipe.resolve import Overrides
from sparsenmt.sparsity import registry

_KEPT_BYTES = 8  # of a parameter in fp32 during training: itself, the copy that validates
_TRAINED_BYTES = 12  # in addition, if it is trained: its gradient, two moments
_SMALL = 4096  # largest dimension of a model that is built only to find out its losses


def load_recipe(recipe: RecipeLike, overrides: Overrides = ()) -> schema.Recipe:
    """Read a recipe, lay overrides over it, and check that a model can be built of it.

    Args:
        recipe: its file; or its keys and values, as in a file; or a recipe that was read before.
        overrides: ``["training.seed=2"]`` or ``{"training.seed": 2}``, laid over the recipe in order.

    Returns:
        the recipe with all defaults, and paths of corpora that start from the folder of the file, or the working
        directory.

    Raises:
        TypeError: the overrides are a single string.
        UserError: the file cannot be read; or all problems of the recipe, in one message.
    """
    if isinstance(recipe, schema.Recipe):
        if not overrides:
            return recipe
        recipe = plain_values(recipe)
    return load(recipe, registry.methods(), overrides, check_recipe)


def check_training_memory(recipe: schema.Recipe, *, source_size: int, target_size: int, device: torch.device) -> None:
    """Check that what training keeps of every parameter fits into the memory, before any of it is taken.

    Parameters that are not trained have no gradient and no moments.

    Raises:
        UserError: it does not.
    """
    memory = device_memory(device)
    sizes = {"source_size": source_size, "target_size": target_size}
    if memory is None or least_parameters(recipe.model, **sizes) * (_KEPT_BYTES + _TRAINED_BYTES) < memory:
        return
    built = build_without_memory(recipe.model, **sizes)
    choose_trained(recipe, built)
    count, trained = count_parameters(built), count_parameters(built, only_trained=True)
    needed = _KEPT_BYTES * count + _TRAINED_BYTES * trained
    part = "" if trained == count else f", {trained:,} of them trained,"
    use = " in training (weights, gradients, Adam's moments, a copy for validation)"
    lower = "Lower" if part else "Train adapters or a part alone (`training.lora`, `training.freeze`); or lower"
    check_fits(f"{count:,} parameters{part} take {{}} of memory{use}", needed, memory, device, lower)


def check_recipe(recipe: schema.Recipe) -> None:
    """Check that a model can be built of a recipe, before any data are read or written.

    Every method is built with its real sizes; the whole model only in a small size, for its losses. PyTorch's random
    state stays as it is.

    Raises:
        UserError: no model can be built; the place is a key.
    """
    model = recipe.model
    with torch.random.fork_rng(devices=[]):
        _check_depth(recipe.decoding, depth_plan(model))
        for i in range(len(model.memory)):
            memory_filter(model, i)
        if (recurrence := recurrence_maker(model)) is not None:
            recurrence()
        shared: dict[Hashable, Any] = {}
        for name in attention_sites(model):
            heads = site_modules(model, name, shared).heads
            learned = heads.count - (heads.fixed.heads if heads.fixed is not None else 0)
            step_method(model, name, "transform", shared, learned, 0, 0)
            if registry.get("pattern", getattr(model.attention, name).pattern.name).per_step:
                _check_keys(recipe, name, content_pattern(model, name, shared, learned, 0, 0))
        _check_guided_head(recipe)
        partly = recipe.training.freeze or recipe.training.lora is not None
        spans = any(getattr(model.attention, name).span for name in SITES)
        if recipe.losses or model.memory or spans or partly:
            _check_losses_of_small_model(recipe)


def _check_keys(recipe: schema.Recipe, name: SiteName, content: ContentPattern) -> None:
    """Refuse a pattern that needs more keys than there ever are."""
    model = recipe.model
    most = model.max_positions
    if recipe.data.is_language_model:
        most = recipe.training.segment_length + model.segment_memory
    if content.least_keys > most:
        raise UserError(
            f"{getattr(model.attention, name).pattern.name} needs {content.least_keys:,} keys, and there are {most:,}",
            where=f"model.attention.{name}.pattern",
            hint="Lower its number of clusters, or read longer segments.",
        )


def _check_depth(decoding: schema.Decoding, plan: DepthPlan) -> None:
    """Refuse to decode with more layers than the model has."""
    for side, layers, most in (
        ("encoder", decoding.encoder_layers, len(plan.encoder)),
        ("decoder", decoding.decoder_layers, len(plan.decoder)),
    ):
        if layers is not None and layers > most:
            raise UserError(
                f"{layers} layers cannot run: the {side} has {most}",
                where=f"decoding.{side}_layers",
                hint=f"Set a number from 1 to {most}, or leave it out for all layers.",
            )


def _check_guided_head(recipe: schema.Recipe) -> None:
    """Refuse to guide a head that the model does not have, or that learns nothing."""
    guided = recipe.training.guided_alignment
    if guided is None:
        return
    heads = site_modules(recipe.model, "cross", {}).heads
    fixed = 0 if heads.fixed is None else heads.fixed.heads
    for key, number, least, most in (
        ("layer", guided.layer, 1, len(depth_plan(recipe.model).decoder)),
        ("head", guided.head, 1 + fixed, heads.count),
    ):
        if not least <= number <= most:
            why = f"the first {fixed} are fixed ones" if number < least else f"there are {most}"
            raise UserError(
                f"{key} {number} of cross-attention cannot be guided: {why}",
                where=f"training.guided_alignment.{key}",
                hint=f"Set a number from {least} to {most}." if least <= most else "Give the site a learned head.",
            )


def _check_losses_of_small_model(recipe: schema.Recipe) -> None:
    """`check_losses` with the smallest dimension that the heads allow; skipped if a method needs the real size."""
    model = recipe.model
    counts = [model.heads, *(getattr(model.attention, name).heads.count or model.heads for name in SITES)]
    sizes = {"dimension": 2 * math.lcm(*counts), "feed_forward": 1, "max_positions": min(model.max_positions, 8)}
    if sizes["dimension"] > _SMALL:
        return
    try:
        small = build_model(model.model_copy(update=sizes), source_size=8, target_size=8)
        loss_names(recipe, small)
    except Exception:  # a method needs the real size: `train` checks the real model
        return
    check_losses(recipe, small)
    choose_trained(recipe, small)
    check_frozen_losses(recipe, small)


def check_losses(recipe: schema.Recipe, model: Transformer) -> None:
    """Check that every auxiliary loss of the recipe comes from a method, and every method's loss has a weight.

    The untrained model runs on two tokens.
    """
    found = loss_names(recipe, model)
    for name in sorted(recipe.losses.keys() - found):
        raise UserError(
            f"no method of the recipe has a loss {name!r}",
            where=f"losses.{name}",
            hint=f"Remove it, or use one of the losses: {', '.join(sorted(found)) or 'none'}.",
        )
    for name in sorted(found - recipe.losses.keys()):
        raise UserError(
            f"the loss {name!r} has no weight",
            where="losses",
            hint=f"Add {name}: {{weight: ...}}; the weight 0 leaves it out.",
        )
    for name in sorted(model.parameter_losses()):
        if recipe.losses[name].target is not None:
            raise UserError(
                f"the loss {name!r} depends on parameters alone: there are no gates of which a share could be closed",
                where=f"losses.{name}.target",
                hint=f"Write a weight instead: {name}: {{weight: ...}}.",
            )


def check_frozen_losses(recipe: schema.Recipe, model: Transformer) -> None:
    """Check that every auxiliary loss with a weight reaches a parameter that is trained.

    Args:
        model: its frozen parameters need no gradient.

    Raises:
        UserError: all that a loss depends on is frozen.
    """
    if not recipe.training.freeze and recipe.training.lora is None:
        return
    for name, value in sorted(_losses(recipe, model).items()):
        if name in recipe.losses and recipe.losses[name].weight != 0 and not value.requires_grad:
            raise UserError(
                f"the loss {name!r} trains only what is frozen",
                where="training.freeze",
                hint=f"Remove the part from the list, or set losses.{name} to {{weight: 0}}.",
            )


def loss_names(recipe: schema.Recipe, model: Transformer) -> set[str]:
    """The names of the auxiliary losses of a model's methods."""
    with torch.no_grad():
        return set(_losses(recipe, model))


def _losses(recipe: schema.Recipe, model: Transformer) -> dict[str, torch.Tensor]:
    """The auxiliary losses of the parameters, and those of a source of two tokens."""
    return {**model.parameter_losses(), **(_encoded(recipe, model).losses if model.plan.encoder else {})}


def filters_without_loss(recipe: schema.Recipe, model: Transformer) -> list[str]:
    """The names of the filters of a model that have no loss, under which the shares that they close are logged."""
    if not recipe.model.memory:
        return []
    device = next(model.parameters()).device
    # The run has begun: what dropout draws here must not change it.
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        encoded = _encoded(recipe, model)
    return sorted({name for each in encoded.decided.values() for name in each.shares} - encoded.losses.keys())


def _encoded(recipe: schema.Recipe, model: Transformer) -> Encoded:
    """Encode a source of two tokens."""
    tokens = torch.full((1, 2), 4, device=next(model.parameters()).device)
    features = {name: torch.zeros_like(tokens) for name in required_features(recipe)}
    return model.encode(Source(tokens, torch.ones_like(tokens, dtype=torch.bool), features))
