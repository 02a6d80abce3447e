"""From recipe to model: the registered methods are put into the sockets of the model.

The modules of a model receive built parts and numbers, never the recipe object.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

from sparsenmt.assemble.estimates import check_fits, least_parameters
from sparsenmt.assemble.methods import declared_refusal
from sparsenmt.errors import UserError
from sparsenmt.model.adapters import add_adapters
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.freeze import freeze
from sparsenmt.model.layers import BlockOptions, SiteHeads, head_size
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import ContentPattern, MemoryFilter, Recurrence, ScoreTerm, Span, Transform
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import EmbeddingOptions, PositionOptions, Transformer, Vocabulary
from sparsenmt.plugins.failure import PluggedMethod, build_error, mark
from sparsenmt.process.devices import device_memory
from sparsenmt.recipe import schema
from sparsenmt.recipe.method_choice import MethodChoice, Site
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import BUILD_CONTEXT, MethodPlace, Socket

_CPU = torch.device("cpu")
_WEIGHT_BYTES = 4


_BUILT = {
    "transform": Transform,
    "position": ScoreTerm,
    "span": Span,
    "recurrence": Recurrence,
    "memory": MemoryFilter,
    "depth": DepthPlan,
}
"""Socket -> the class of what its methods build; patterns and fixed heads are protocols."""
_PARTS = {"pattern": ("reach", "__call__"), "heads": ("heads", "names", "weights", "__call__")}


def _build(socket: Socket, choice: MethodChoice, where: str, layer: int | None = None, **context: Any) -> Any:
    """Build a method with its options; its ValueError becomes a `UserError` at the method's key.

    What a method from outside the package builds is checked here, and what that gives, on the first batch.

    Args:
        where: key of the recipe.
        layer: for messages, as in `PluggedMethod`.
    """
    method = registry.get(socket, choice.name)
    options = method.options.model_validate(choice.options)
    plugged = None if method.outside is None else PluggedMethod(method.title, method.outside, where, layer)
    try:
        built = method.build(options, **context)
        if plugged is not None:
            _check_built(built, socket, per_step=method.per_step)
    except ValueError as error:
        raise UserError(
            f"{choice.name}: {str(error).rstrip('.')}",
            where=where,
            hint="Change the method's options, or choose another method.",
        ) from None
    except Exception as error:
        if plugged is not None:
            build_error(error, plugged, BUILD_CONTEXT[socket])
        raise
    if plugged is not None:
        mark(built, plugged)
    return built


def _check_built(built: Any, socket: Socket, *, per_step: bool) -> None:
    """Raise TypeError if a method from outside builds something else than its socket takes."""
    if built is None and socket == "pattern" and not per_step:
        return
    if built is None:
        raise TypeError("it builds None")
    kind = ContentPattern if per_step else _BUILT.get(socket)
    if kind is not None and not isinstance(built, kind):
        raise TypeError(f"it builds {type(built).__name__}, which is no {kind.__name__}")
    for part in _PARTS[socket] if kind is None else ():
        if not hasattr(built, part):
            raise TypeError(f"it builds {type(built).__name__}, which has no '{part}'")


def depth_plan(model: schema.ModelSection) -> DepthPlan:
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


def step_method(
    model: schema.ModelSection,
    name: SiteName,
    socket: Socket,
    shared: dict[Hashable, Any],
    heads: int,
    step: int,
    block: int,
) -> Any:
    """Build a site's method for an execution step: a transform, score term, span or content pattern."""
    site: Site = getattr(model.attention, name)
    choice: MethodChoice = getattr(site, socket)
    context: dict[str, Any] = {"site": name, "heads": heads}
    if socket in ("position", "pattern"):
        size = head_size(model.dimension, site.heads.count or model.heads, model.head_size)
        context |= {"size": size, "dimension": model.dimension}
    if socket in ("position", "pattern") or registry.get(socket, choice.name).shares:
        context["place"] = MethodPlace(step, block, shared)
    return _build(socket, choice, f"model.attention.{name}.{socket}", step + 1, **context)


def content_pattern(
    model: schema.ModelSection, name: SiteName, shared: dict[Hashable, Any], heads: int, step: int, block: int
) -> ContentPattern:
    site: Site = getattr(model.attention, name)
    content: ContentPattern = step_method(model, name, "pattern", shared, heads, step, block)
    if content.grouped:
        transform: Transform = step_method(model, name, "transform", {}, heads, step, block)
        unfit = bool(transform.logged()) or transform.position_dependent
        for part, present in (("position", site.position), ("span", site.span), ("transform", unfit or None)):
            if present is not None:
                raise UserError(
                    f"{site.pattern.name} attends in groups of positions, which this {part} cannot be used in",
                    where=f"model.attention.{name}.{part}",
                    hint=f"Leave the {part} out, or choose options of the pattern without groups.",
                )
    return content


def site_modules(model: schema.ModelSection, name: SiteName, shared: dict[Hashable, Any]) -> SiteModules:
    site: Site = getattr(model.attention, name)
    key = f"model.attention.{name}"
    count = site.heads.count or model.heads
    if model.head_size is None and model.dimension % count:
        raise UserError(
            f"{count} heads do not divide dimension {model.dimension}",
            where=f"{key}.heads.count",
            hint="Set another number of heads, another `model.dimension`, or `model.head_size`.",
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
        transform=partial(step_method, model, name, "transform", shared),
        pattern=None if per_step else _build("pattern", site.pattern, f"{key}.pattern", site=name),
        content=partial(content_pattern, model, name, shared) if per_step else None,
        position=None if site.position is None else partial(step_method, model, name, "position", shared),
        span=None if site.span is None else partial(step_method, model, name, "span", shared),
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


def recurrence_maker(model: schema.ModelSection) -> Callable[[], Recurrence] | None:
    """The function that builds the recurrent layer of a block; None if the model has none."""
    if model.recurrence is None:
        return None
    recurrence, layers = model.recurrence, itertools.count(1)
    return lambda: _build("recurrence", recurrence, "model.recurrence", next(layers), dimension=model.dimension)


def memory_filter(model: schema.ModelSection, index: int, after: int | None = None) -> MemoryFilter:
    """Build a filter; ``after``: the encoder layer that it follows, if others follow it."""
    where = f"model.memory.{index}"
    built: MemoryFilter = _build("memory", model.memory[index], where, after, dimension=model.dimension)
    built.label = model.memory[index].name
    return built


def build_model(
    model: schema.ModelSection, *, source_size: int, target_size: int, seed: int | None = None
) -> Transformer:
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
    if memory is not None and least_parameters(model, **sizes) * _WEIGHT_BYTES >= memory:
        count = count_parameters(build_without_memory(model, **sizes))
        check_fits(f"{count:,} parameters take {{}} of memory", count * _WEIGHT_BYTES, memory, _CPU)
    return _build_transformer(model, **sizes, seed=seed)


def build_without_memory(model: schema.ModelSection, *, source_size: int, target_size: int) -> Transformer:
    """Build a model on "meta": its parameters have shapes and no values."""
    with torch.device("meta"):
        return _build_transformer(model, source_size=source_size, target_size=target_size, seed=0)


def count_parameters(model: Transformer, *, only_trained: bool = False) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad or not only_trained)


def _build_transformer(
    model: schema.ModelSection, *, source_size: int, target_size: int, seed: int | None
) -> Transformer:
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # of the CPU alone: a GPU's draws dropout between validations
        plan = depth_plan(model)
        output = [  # each is shared by all exits, or has an instance for each
            {n: memory_filter(model, i) for n in plan.encoder_exits}
            if choice.per == "exit"
            else memory_filter(model, i)
            for i, choice in enumerate(model.memory)
            if choice.at == "output"
        ]
        inside = [i for i, choice in enumerate(model.memory) if choice.at == "between"]
        between = [[memory_filter(model, i, n) for i in inside] for n in range(1, len(plan.encoder))]
        shared: dict[Hashable, Any] = {}
        encoder_self, decoder_self, cross = (site_modules(model, name, shared) for name in SITES)
        made = Transformer(
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
                norm_kind=model.norm_kind,
                head_size=model.head_size,
                glu=model.glu,
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
            recurrence=recurrence_maker(model),
        )
    refusal = declared_refusal(model)  # behind the methods' own reasons
    if refusal is not None:
        raise refusal
    return made


def choose_trained(recipe: schema.Recipe, model: Transformer) -> None:
    """Add the adapters of a recipe to a model, and freeze what is not trained."""
    lora = recipe.training.lora
    if lora is not None:
        seed = recipe.training.seed
        add_adapters(model, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets, seed=seed)
    freeze(model, recipe.training.freeze)
