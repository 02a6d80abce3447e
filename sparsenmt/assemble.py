"""Recipe to model: the only module that knows both the engine and the methods. The recipe object ends here."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch

from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.protocol import Source
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import MemoryFilter, Transform
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import PositionOptions, Transformer, Vocabulary
from sparsenmt.recipe import schema
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method, MethodPlace, Socket

_SMALL = 4096  # the largest dimension of a model that is built to ask for its losses


def chosen_methods(model: schema.Model) -> list[tuple[str, Method, schema.MethodChoice]]:
    """Every method that a recipe plugs in, with the key where it stands."""
    choices: list[tuple[str, Socket, schema.MethodChoice]] = []
    for name in SITES:
        site: schema.Site = getattr(model.attention, name)
        key = f"model.attention.{name}"
        choices += [(f"{key}.pattern", "pattern", site.pattern), (f"{key}.transform", "transform", site.transform)]
        if site.heads.given is not None:
            choices.append((f"{key}.heads.given", "heads", site.heads.given))
    choices += [(f"model.memory.{i}", "memory", choice) for i, choice in enumerate(model.memory)]
    choices.append(("model.depth", "depth", model.depth))
    return [(key, registry.get(socket, choice.name), choice) for key, socket, choice in choices]


def required_features(recipe: schema.Recipe) -> frozenset[str]:
    """Source features that the recipe's methods read."""
    return frozenset().union(*(method.requires for _, method, _ in chosen_methods(recipe.model)))


def _build(socket: Socket, choice: schema.MethodChoice, where: str, **context: Any) -> Any:
    """What the method makes of its options; a ValueError that it raises is the recipe's mistake."""
    method = registry.get(socket, choice.name)
    options = method.options.model_validate(choice.options)
    try:
        return method.build(options, **context)
    except ValueError as error:
        raise UserError(
            f"{choice.name}: {str(error).rstrip('.')}",
            where=where,
            hint="Change the method's options, or take another method.",
        ) from None


def depth_plan(model: schema.Model) -> DepthPlan:
    """Which block runs at which step of a recipe's model, and which exits are trained.

    Raises:
        UserError: the depth method's options have no meaning here.
    """
    layers = {"encoder_layers": model.encoder_layers, "decoder_layers": model.decoder_layers}
    plan: DepthPlan = _build("depth", model.depth, "model.depth", **layers)
    return plan


def _transform(
    model: schema.Model, name: SiteName, shared: dict[Hashable, Any], heads: int, step: int, block: int
) -> Transform:
    site: schema.Site = getattr(model.attention, name)
    key = f"model.attention.{name}.transform"
    shares = registry.get("transform", site.transform.name).shares
    context = {"place": MethodPlace(step, block, shared)} if shares else {}
    transform: Transform = _build("transform", site.transform, key, site=name, heads=heads, **context)
    return transform


def _site(model: schema.Model, name: SiteName, shared: dict[Hashable, Any]) -> SiteModules:
    site: schema.Site = getattr(model.attention, name)
    key = f"model.attention.{name}"
    count = site.heads.count or model.heads
    if model.dimension % count:
        raise UserError(
            f"{count} heads do not divide dimension {model.dimension}",
            where=f"{key}.heads.count",
            hint="Take another number of heads, or another `model.dimension`.",
        )
    given = None
    if site.heads.given is not None:
        given = _build("heads", site.heads.given, f"{key}.heads.given", site=name, heads=count)
        if given.heads > count:
            raise UserError(
                f"{given.heads} given heads do not fit into {count} heads",
                where=f"{key}.heads.given",
                hint=f"Raise `model.heads` or `{key}.heads.count`, or let fewer heads be given.",
            )
        _check_some_learned(site, key, learned=count - given.heads)
    for head in site.heads.disabled:
        if head > count:
            raise UserError(
                f"there is no head {head} to disable: the site has {count}",
                where=f"{key}.heads.disabled",
                hint="Numbers count from 1; given heads come first.",
            )
    return SiteModules(
        heads=SiteHeads(count, given, frozenset(site.heads.disabled)),
        transform=partial(_transform, model, name, shared),
        pattern=_build("pattern", site.pattern, f"{key}.pattern", site=name),
    )


def _check_some_learned(site: schema.Site, key: str, *, learned: int) -> None:
    """Refuse what only learned heads would read, where there are none."""
    if learned:
        return
    if site.transform.name != schema.Site().transform.name:
        raise UserError(
            f"{site.transform.name} has no meaning here: every head is given, none has scores",
            where=f"{key}.transform",
            hint="Leave the transform out, or let some heads be learned.",
        )
    if site.pattern.name != schema.Site().pattern.name:
        raise UserError(
            f"{site.pattern.name} has no meaning here: every head is given, and looks where it is told to",
            where=f"{key}.pattern",
            hint="Leave the pattern out, or let some heads be learned.",
        )


def _filters(model: schema.Model, at: str) -> list[MemoryFilter]:
    """The filters of one place."""
    return [_filter(model, i) for i, choice in enumerate(model.memory) if choice.at == at]


def _filter(model: schema.Model, index: int) -> MemoryFilter:
    where = f"model.memory.{index}"
    built: MemoryFilter = _build("memory", model.memory[index], where, dimension=model.dimension)
    return built


def _output_filters(model: schema.Model, exits: Sequence[int]) -> list[MemoryFilter | dict[int, MemoryFilter]]:
    """Those after the encoder: for all exits, or for each its own."""
    return [
        {n: _filter(model, i) for n in exits} if choice.per == "exit" else _filter(model, i)
        for i, choice in enumerate(model.memory)
        if choice.at == "output"
    ]


def build_model(model: schema.Model, *, source_size: int, target_size: int, seed: int | None = None) -> Transformer:
    """The Transformer of a recipe's model section, freshly initialised.

    Args:
        source_size: pieces in the source vocabulary.
        target_size: pieces in the target vocabulary.
        seed: fixes the initialisation; None: PyTorch's current state goes on.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        plan = depth_plan(model)
        output = _output_filters(model, plan.encoder_exits)
        between = [_filters(model, "between") for _ in plan.encoder[1:]]
        shared: dict[Hashable, Any] = {}
        sites = (
            _site(model, "encoder_self", shared),
            _site(model, "decoder_self", shared),
            _site(model, "cross", shared),
        )
        return Transformer(
            BlockOptions(
                dimension=model.dimension,
                feed_forward=model.feed_forward,
                norm=model.norm,
                activation=model.activation,
                residual_dropout=model.dropout.residual,
                attention_dropout=model.dropout.attention,
                activation_dropout=model.dropout.activation,
            ),
            Vocabulary(source_size, target_size, model.tie_embeddings),
            PositionOptions(model.positions, model.max_positions),
            plan,
            sites,
            output=output,
            between=between if any(between) else (),
        )


def filters_without_gain(section: schema.Model, model: Transformer) -> list[str]:
    """Of every filter that saves no time, because compaction would not be exact: where it stands, and why."""
    places = {"output": model.memory.at_exit(model.plan.deepest[0]), "between": model.memory.after_step(0)}
    notes = []
    for i, choice in enumerate(section.memory):
        number = sum(other.at == choice.at for other in section.memory[:i])
        later = places[choice.at][number + 1 :]
        reason = model.obstacle(choice.at)
        if reason is None and any(f.position_dependent for f in later):
            reason = "a filter after it decides by position or feature"
        if reason is not None:
            kept = "masked" if choice.options.get("closed") == "mask" else "as zeros"
            notes.append(f"model.memory.{i} ({choice.name}): what it drops stays {kept}, no time is saved: {reason}")
    return notes


def patterns_without_gain(section: schema.Model, model: Transformer) -> list[str]:
    """Of every pattern that saves no time, because the engine cannot gather bands for it: where it stands."""
    notes = []
    for name in SITES:
        stack = model.encoder if name == "encoder_self" else model.decoder
        pattern = stack.steps.at(0, "cross" if name == "cross" else "self").pattern
        if pattern is not None and (pattern.reach is None or name == "cross"):
            chosen = getattr(section.attention, name).pattern.name
            notes.append(f"model.attention.{name}.pattern ({chosen}): it only masks, no time is saved")
    return notes


def without_gain(section: schema.Model, model: Transformer) -> list[str]:
    """All that is sparse in this model and saves no time, with the reason (design rule 4)."""
    return patterns_without_gain(section, model) + filters_without_gain(section, model)


def check_recipe(recipe: schema.Recipe) -> None:
    """Refuse a recipe of which no model can be built, before any data are read or written.

    Every method is built with the sizes that it will get; the whole model only in a small size, for its losses. No
    random number is drawn from PyTorch's generator.

    Raises:
        UserError: its place is a key.
    """
    model = recipe.model
    with torch.random.fork_rng(devices=[]):
        _check_depth(recipe.decoding, depth_plan(model))
        for at in ("output", "between"):
            _filters(model, at)
        shared: dict[Hashable, Any] = {}
        for name in SITES:
            heads = _site(model, name, shared).heads
            learned = heads.count - (heads.fixed.heads if heads.fixed is not None else 0)
            _transform(model, name, shared, learned, 0, 0)
        if recipe.losses or model.memory:
            _check_losses_of_small_model(recipe)


def _check_depth(decoding: schema.Decoding, plan: DepthPlan) -> None:
    """Refuse to decode with more layers than there are."""
    for side, layers, most in (
        ("encoder", decoding.encoder_layers, len(plan.encoder)),
        ("decoder", decoding.decoder_layers, len(plan.decoder)),
    ):
        if layers is not None and layers > most:
            raise UserError(
                f"{layers} layers cannot run: the {side} has {most}",
                where=f"decoding.{side}_layers",
                hint=f"Take a number from 1 to {most}, or leave it out for all.",
            )


def _check_losses_of_small_model(recipe: schema.Recipe) -> None:
    """As `check_losses`, with the smallest dimension that the heads allow, if the methods can do with it."""
    model = recipe.model
    counts = [model.heads, *(getattr(model.attention, name).heads.count or model.heads for name in SITES)]
    sizes = {"dimension": 2 * math.lcm(*counts), "feed_forward": 1, "max_positions": min(model.max_positions, 8)}
    if sizes["dimension"] > _SMALL:
        return
    try:
        found = loss_names(recipe, build_model(model.model_copy(update=sizes), source_size=8, target_size=8))
    except Exception:  # some method needs the real size: then `train` says what is wrong, with the real model
        return
    _compare_losses(recipe, found)


def check_losses(recipe: schema.Recipe, model: Transformer) -> None:
    """Every auxiliary loss of the recipe must come from a method, and every method's loss must have a weight.

    Found out by running the untrained model on two pieces.
    """
    _compare_losses(recipe, loss_names(recipe, model))


def loss_names(recipe: schema.Recipe, model: Transformer) -> set[str]:
    """The losses that the model's methods have."""
    tokens = torch.full((1, 2), 4, device=next(model.parameters()).device)
    features = {name: torch.zeros_like(tokens) for name in required_features(recipe)}
    with torch.no_grad():
        return set(model.encode(Source(tokens, torch.ones_like(tokens, dtype=torch.bool), features)).losses)


def _compare_losses(recipe: schema.Recipe, found: set[str]) -> None:
    for name in sorted(recipe.losses.keys() - found):
        raise UserError(
            f"no method of the recipe has a loss {name!r}",
            where=f"losses.{name}",
            hint=f"Remove it, or name one of those that there are: {', '.join(sorted(found)) or 'none'}.",
        )
    for name in sorted(found - recipe.losses.keys()):
        raise UserError(
            f"the loss {name!r} has no weight",
            where="losses",
            hint=f"Add {name}: {{weight: ...}}; the weight 0 leaves it out.",
        )
