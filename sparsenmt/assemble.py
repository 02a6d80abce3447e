"""From recipe to model: the registered methods are put into the sockets of the engine.

The modules of a model receive built parts and numbers, never the recipe object.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from sparsenmt.errors import UserError
from sparsenmt.model.adapters import add_adapters
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.freeze import freeze
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.protocol import Source
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import ContentPattern, MemoryFilter, Recurrence, Transform, check_results
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import EmbeddingOptions, PositionOptions, Transformer, Vocabulary
from sparsenmt.process.devices import device_memory
from sparsenmt.process.progress import byte_text
from sparsenmt.recipe import schema
from sparsenmt.recipe.load import load, load_resolved
from sparsenmt.recipe.method_choice import MethodChoice, Site
from sparsenmt.recipe.resolve import Setting
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import BUILD_CONTEXT, Method, MethodPlace, Socket

_CPU = torch.device("cpu")
_WEIGHT_BYTES = 4
_KEPT_BYTES = 8  # of a parameter in fp32 during training: itself, the copy that validates
_TRAINED_BYTES = 12  # in addition, if it is trained: its gradient, two moments
_SMALL = 4096  # largest dimension of a model that is built only to find out its losses


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str | Setting] = ()) -> schema.Recipe:
    """Read a recipe file, lay overrides over it, and check that a model can be built of it.

    Raises:
        UserError: see `recipe.load.load`.
    """
    return load(path, registry.methods(), overrides, check_recipe)


def load_resolved_recipe(mapping: Mapping[str, Any], *, origin: str = "recipe") -> schema.Recipe:
    """A recipe from plain values that `recipe.load.dump` wrote; see `recipe.load.load_resolved`."""
    return load_resolved(mapping, registry.methods(), origin=origin)


def attention_sites(model: schema.Model) -> tuple[SiteName, ...]:
    """The sites that a recipe's model has, if it has an encoder: a recurrent layer replaces the decoder's own."""
    return tuple(name for name in SITES if name != "decoder_self" or model.recurrence is None)


def chosen_methods(model: schema.Model) -> list[tuple[str, Method, MethodChoice]]:
    """All methods that a recipe plugs in, each with its key and its options."""
    choices: list[tuple[str, Socket, MethodChoice]] = []
    for name in attention_sites(model):
        site: Site = getattr(model.attention, name)
        key = f"model.attention.{name}"
        choices += [(f"{key}.pattern", "pattern", site.pattern), (f"{key}.transform", "transform", site.transform)]
        optional: list[tuple[str, Socket, MethodChoice | None]] = [
            (f"{key}.position", "position", site.position),
            (f"{key}.span", "span", site.span),
            (f"{key}.heads.given", "heads", site.heads.given),
        ]
        choices += [(where, socket, choice) for where, socket, choice in optional if choice is not None]
    if model.recurrence is not None:
        choices.append(("model.recurrence", "recurrence", model.recurrence))
    choices += [(f"model.memory.{i}", "memory", choice) for i, choice in enumerate(model.memory)]
    choices.append(("model.depth", "depth", model.depth))
    return [(key, registry.get(socket, choice.name), choice) for key, socket, choice in choices]


def required_features(recipe: schema.Recipe) -> frozenset[str]:
    """Source features that the recipe's methods read."""
    return frozenset().union(*(method.requires for _, method, _ in chosen_methods(recipe.model)))


def methods_of_words(recipe: schema.Recipe) -> list[str]:
    """Key and name of the recipe's methods that decide by words between spaces."""
    return [
        f"{key} ({method.name})"
        for key, method, choice in chosen_methods(recipe.model)
        if method.options.model_validate(choice.options).reads_words
    ]


def _build(socket: Socket, choice: MethodChoice, where: str, **context: Any) -> Any:
    """Build a method with its options; its ValueError becomes a `UserError` at the method's key.

    The results of a method from outside the package are checked when the model runs.
    """
    method = registry.get(socket, choice.name)
    options = method.options.model_validate(choice.options)
    try:
        built = method.build(options, **context)
        if built is None and socket != "pattern":
            raise TypeError("it builds None")
    except ValueError as error:
        raise UserError(
            f"{choice.name}: {str(error).rstrip('.')}",
            where=where,
            hint="Change the method's options, or choose another method.",
        ) from None
    except Exception as error:
        if method.outside is not None:  # for `outside_error`: a call with wrong arguments never gets into its code
            built_as = f"It is built as {BUILD_CONTEXT[socket]}."
            vars(error)["of_method"] = (method.title, f"{method.outside}, {where}", built_as)
        raise
    if method.outside is not None and isinstance(built, torch.nn.Module):
        check_results(built, method.title, method.outside)
    return built


def depth_plan(model: schema.Model) -> DepthPlan:
    """The depth plan of a recipe's model: which block runs at which step, and which exits are trained.

    Raises:
        UserError: the depth method's options have no meaning here.
    """
    layers = {"encoder_layers": model.encoder_layers or 1, "decoder_layers": model.decoder_layers}
    plan: DepthPlan = _build("depth", model.depth, "model.depth", **layers)
    if model.encoder_layers:
        return plan
    if plan.drawn[1] is not None and model.segment_memory:
        raise UserError(
            "layers that an update does not run have no memory of its segment",
            where="model.depth.sample",
            hint="Train all exits in every update, or leave `model.segment_memory` out.",
        )
    return plan.without_encoder()


def _step_method(
    model: schema.Model, name: SiteName, socket: Socket, shared: dict[Hashable, Any], heads: int, step: int, block: int
) -> Any:
    """Build a site's method for an execution step: a transform, score term, span or content pattern."""
    site: Site = getattr(model.attention, name)
    choice: MethodChoice = getattr(site, socket)
    context: dict[str, Any] = {"site": name, "heads": heads}
    if socket in ("position", "pattern"):
        context |= {"size": model.dimension // (site.heads.count or model.heads), "dimension": model.dimension}
    if socket in ("position", "pattern") or registry.get(socket, choice.name).shares:
        context["place"] = MethodPlace(step, block, shared)
    return _build(socket, choice, f"model.attention.{name}.{socket}", **context)


def _content(
    model: schema.Model, name: SiteName, shared: dict[Hashable, Any], heads: int, step: int, block: int
) -> ContentPattern:
    site: Site = getattr(model.attention, name)
    content: ContentPattern = _step_method(model, name, "pattern", shared, heads, step, block)
    if content.grouped:
        transform: Transform = _step_method(model, name, "transform", {}, heads, step, block)
        unfit = bool(transform.logged()) or transform.position_dependent
        for part, present in (("position", site.position), ("span", site.span), ("transform", unfit or None)):
            if present is not None:
                raise UserError(
                    f"{site.pattern.name} attends in groups of positions, which this {part} cannot be used in",
                    where=f"model.attention.{name}.{part}",
                    hint=f"Leave the {part} out, or choose options of the pattern without groups.",
                )
    return content


def _site(model: schema.Model, name: SiteName, shared: dict[Hashable, Any]) -> SiteModules:
    site: Site = getattr(model.attention, name)
    key = f"model.attention.{name}"
    count = site.heads.count or model.heads
    if model.dimension % count:
        raise UserError(
            f"{count} heads do not divide dimension {model.dimension}",
            where=f"{key}.heads.count",
            hint="Set another number of heads, or another `model.dimension`.",
        )
    given = None
    if site.heads.given is not None:
        given = _build("heads", site.heads.given, f"{key}.heads.given", site=name, heads=count)
        if given.heads > count:
            raise UserError(
                f"{given.heads} fixed heads do not fit into {count} heads",
                where=f"{key}.heads.given",
                hint=f"Raise `model.heads` or `{key}.heads.count`, or use fewer fixed heads.",
            )
        _check_some_learned(site, key, learned=count - given.heads)
    for head in site.heads.disabled:
        if head > count:
            raise UserError(
                f"there is no head {head} to disable: the site has {count}",
                where=f"{key}.heads.disabled",
                hint="Count heads from 1, fixed heads first.",
            )
    per_step = registry.get("pattern", site.pattern.name).per_step
    return SiteModules(
        heads=SiteHeads(count, given, frozenset(site.heads.disabled)),
        transform=partial(_step_method, model, name, "transform", shared),
        pattern=None if per_step else _build("pattern", site.pattern, f"{key}.pattern", site=name),
        content=partial(_content, model, name, shared) if per_step else None,
        position=None if site.position is None else partial(_step_method, model, name, "position", shared),
        span=None if site.span is None else partial(_step_method, model, name, "span", shared),
    )


def _check_some_learned(site: Site, key: str, *, learned: int) -> None:
    """Refuse methods for scores and weights if the site has no learned heads that would use them."""
    usual = Site()
    for part, chosen, default, reason in (
        ("transform", site.transform, usual.transform, "none has scores"),
        ("pattern", site.pattern, usual.pattern, "their weights do not depend on a pattern"),
        ("position", site.position, usual.position, "none has scores"),
        ("span", site.span, usual.span, "their weights do not depend on a span"),
    ):
        if not learned and chosen is not None and chosen != default:
            raise UserError(
                f"{chosen.name} has no effect: all heads are fixed, {reason}",
                where=f"{key}.{part}",
                hint=f"Leave the {part} out, or keep some learned heads.",
            )


def _recurrence(model: schema.Model) -> Callable[[], Recurrence] | None:
    """The function that builds the recurrent layer of a block; None if the model has none."""
    if model.recurrence is None:
        return None
    return partial(_build, "recurrence", model.recurrence, "model.recurrence", dimension=model.dimension)


def _filter(model: schema.Model, index: int) -> MemoryFilter:
    where = f"model.memory.{index}"
    built: MemoryFilter = _build("memory", model.memory[index], where, dimension=model.dimension)
    return built


def build_model(model: schema.Model, *, source_size: int, target_size: int, seed: int | None = None) -> Transformer:
    """Build the Transformer of a recipe's model section and initialise its weights.

    Args:
        source_size: number of tokens in the source vocabulary.
        target_size: number of tokens in the target vocabulary.
        seed: random seed of the initialisation; None: PyTorch's current random state.

    Raises:
        UserError: the weights need more memory than this machine has; activations come in addition.
    """
    memory = device_memory(_CPU)
    sizes = {"source_size": source_size, "target_size": target_size}
    if memory is not None and _roughly_counted(model, **sizes) * _WEIGHT_BYTES >= memory:
        count = _counted(_without_memory(model, **sizes))
        _check_fits(f"{count:,} parameters take {{}} of memory", count * _WEIGHT_BYTES, memory, _CPU)
    return _build_transformer(model, **sizes, seed=seed)


def check_training_memory(recipe: schema.Recipe, *, source_size: int, target_size: int, device: torch.device) -> None:
    """Check that what training keeps of every parameter fits into the memory, before any of it is taken.

    Parameters that are not trained have no gradient and no moments.

    Raises:
        UserError: it does not.
    """
    memory = device_memory(device)
    sizes = {"source_size": source_size, "target_size": target_size}
    if memory is None or _roughly_counted(recipe.model, **sizes) * (_KEPT_BYTES + _TRAINED_BYTES) < memory:
        return
    built = _without_memory(recipe.model, **sizes)
    choose_trained(recipe, built)
    count, trained = _counted(built), _counted(built, only_trained=True)
    needed = _KEPT_BYTES * count + _TRAINED_BYTES * trained
    part = "" if trained == count else f", {trained:,} of them trained,"
    use = " in training (weights, gradients, Adam's moments, a copy for validation)"
    lower = "Lower" if part else "Train adapters or a part alone (`training.lora`, `training.freeze`); or lower"
    _check_fits(f"{count:,} parameters{part} take {{}} of memory{use}", needed, memory, device, lower)


def _roughly_counted(model: schema.Model, *, source_size: int, target_size: int) -> int:
    """Return at least the number of a model's parameters, without building it on "meta", which takes a second."""
    blocks = model.encoder_layers + model.decoder_layers
    wide = max(model.feed_forward, model.decoder_feed_forward or 0)
    matrices = blocks * (12 * model.dimension**2 + 3 * model.dimension * wide)
    return matrices + model.dimension * (2 * source_size + 2 * target_size + 2 * model.max_positions)


def _without_memory(model: schema.Model, *, source_size: int, target_size: int) -> Transformer:
    """Build a model on "meta": its parameters have shapes and no values."""
    with torch.device("meta"):
        return _build_transformer(model, source_size=source_size, target_size=target_size, seed=0)


def _counted(model: Transformer, *, only_trained: bool = False) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad or not only_trained)


def _check_fits(use: str, needed: int, memory: int, device: torch.device, lower: str = "Lower") -> None:
    """Refuse what needs more bytes than there are.

    Args:
        use: the sentence, with {} for the bytes.
        lower: first words of the hint.
    """
    if needed >= memory:
        owner = "GPU" if device.type == "cuda" else "machine"
        raise UserError(
            f"{use.format(byte_text(needed))}; this {owner} has {byte_text(memory)}",
            where="model",
            hint=f"{lower} `dimension`, `feed_forward`, the numbers of layers or the vocabulary, or use a larger one.",
        )


def _build_transformer(model: schema.Model, *, source_size: int, target_size: int, seed: int | None) -> Transformer:
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # of the CPU alone: a GPU's draws dropout between validations
        plan = depth_plan(model)
        output = [  # each is shared by all exits, or has an instance for each
            {n: _filter(model, i) for n in plan.encoder_exits} if choice.per == "exit" else _filter(model, i)
            for i, choice in enumerate(model.memory)
            if choice.at == "output"
        ]
        inside = [i for i, choice in enumerate(model.memory) if choice.at == "between"]
        between = [[_filter(model, i) for i in inside] for _ in plan.encoder[1:]]
        shared: dict[Hashable, Any] = {}
        encoder_self, decoder_self, cross = (_site(model, name, shared) for name in SITES)
        return Transformer(
            BlockOptions(
                dimension=model.dimension,
                feed_forward=model.feed_forward,
                norm=model.norm,
                activation=model.activation,
                residual_dropout=model.dropout.residual,
                attention_dropout=model.dropout.attention,
                activation_dropout=model.dropout.activation,
                norm_epsilon=model.norm_epsilon,
                final_norm=model.final_norm,
            ),
            Vocabulary(source_size, target_size, model.tie_embeddings, model.output_bias),
            PositionOptions(
                model.positions, model.max_positions, model.segment_memory, model.sinusoids, model.first_position
            ),
            plan,
            (encoder_self, decoder_self, cross),
            embedding=EmbeddingOptions(model.embedding_scale == "sqrt", model.embedding_norm),
            decoder_feed_forward=model.decoder_feed_forward,
            output=output,
            between=between if any(between) else (),
            recurrence=_recurrence(model),
        )


def filters_without_gain(section: schema.Model, model: Transformer) -> list[str]:
    """Notes on filters that save no time because compaction would not be exact: the key and the reason."""
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
            notes.append(f"model.memory.{i} ({choice.name}): dropped outputs stay {kept}, no time is saved: {reason}")
    return notes


def patterns_without_gain(section: schema.Model, model: Transformer) -> list[str]:
    """Notes on patterns that save no time because the engine cannot gather bands for them."""
    notes = []
    for name in attention_sites(section):
        stack = model.encoder if name == "encoder_self" else model.decoder
        if not stack.steps or (name == "cross" and not section.encoder_layers):
            continue
        step = stack.steps.at(0, "cross" if name == "cross" else "self")
        pattern = step.pattern
        if step.content is not None or (pattern is not None and (pattern.reach is None or name == "cross")):
            chosen = getattr(section.attention, name).pattern.name
            notes.append(f"model.attention.{name}.pattern ({chosen}): it only masks, no time is saved")
    return notes


def without_gain(section: schema.Model, model: Transformer) -> list[str]:
    """Notes on all sparsity of a model that saves no time, with the reason (design rule 4)."""
    return patterns_without_gain(section, model) + filters_without_gain(section, model)


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
            _filter(model, i)
        if (recurrence := _recurrence(model)) is not None:
            recurrence()
        shared: dict[Hashable, Any] = {}
        for name in attention_sites(model):
            heads = _site(model, name, shared).heads
            learned = heads.count - (heads.fixed.heads if heads.fixed is not None else 0)
            _step_method(model, name, "transform", shared, learned, 0, 0)
            if registry.get("pattern", getattr(model.attention, name).pattern.name).per_step:
                _check_keys(recipe, name, _content(model, name, shared, learned, 0, 0))
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


def choose_trained(recipe: schema.Recipe, model: Transformer) -> None:
    """Add the adapters of a recipe to a model, and freeze what is not trained."""
    lora = recipe.training.lora
    if lora is not None:
        seed = recipe.training.seed
        add_adapters(model, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets, seed=seed)
    freeze(model, recipe.training.freeze)


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
    found = dict(model.parameter_losses())
    if model.plan.encoder:
        tokens = torch.full((1, 2), 4, device=next(model.parameters()).device)
        features = {name: torch.zeros_like(tokens) for name in required_features(recipe)}
        found |= model.encode(Source(tokens, torch.ones_like(tokens, dtype=torch.bool), features)).losses
    return found
