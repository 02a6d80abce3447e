"""``--encoder-layers`` and ``--decoder-layers``: how much of a trained model runs, in `decode` and `score`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sparsenmt.errors import UserError

if TYPE_CHECKING:
    from sparsenmt.model.depth_plan import DepthPlan
    from sparsenmt.recipe.schema import Decoding

OPTIONS = ("--encoder-layers", "--decoder-layers")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the two options, as ``encoder_layers`` and ``decoder_layers``."""
    for option, side in zip(reversed(OPTIONS), ("decoder", "encoder"), strict=True):
        text = f"Layers of the {side} that run, from the first on.  [default: the recipe's, or all]"
        command = click.option(option, type=int, metavar="N", help=text)(command)
    return command


def at_depth(plan: DepthPlan, decoding: Decoding, encoder_layers: int | None, decoder_layers: int | None) -> Decoding:
    """A recipe's settings with the depth of the command line; a warning where the model was not trained for it.

    Raises:
        UserError: the model has no such layer.
    """
    from sparsenmt.decoding.kept_translations import chosen_depth

    given, usual = (encoder_layers, decoder_layers), (decoding.encoder_layers, decoding.decoder_layers)
    if given == usual == (None, None):
        return decoding
    chosen = []
    for i, side in enumerate(("encoder", "decoder")):
        own, recipes = given[i], usual[i]
        layers = recipes if own is None else own
        where = f"decoding.{side}_layers" if own is None else f"{OPTIONS[i]} {own}"
        check_layers(plan, side, layers, where)
        chosen.append(layers)
    depth = chosen_depth(plan, *chosen)
    warn_untrained(plan, depth)
    return decoding.at(depth)


def check_layers(plan: DepthPlan, side: str, layers: int | None, where: str) -> None:
    """UserError unless a side of the model has so many layers."""
    most = len(plan.encoder if side == "encoder" else plan.decoder)
    if layers is not None and not 1 <= layers <= most:
        raise UserError(
            f"the {side} has {most} layer{'' if most == 1 else 's'}: {layers} cannot run",
            where=where,
            hint=f"Take a number from 1 to {most}.",
        )


def warn_untrained(plan: DepthPlan, depth: tuple[int, int]) -> None:
    """Warn of a depth at which training never stopped."""
    if depth in plan.pairs():
        return
    exits = (", ".join(map(str, side)) for side in (plan.encoder_exits, plan.decoder_exits))
    trained = " and ".join(exits)
    click.echo(
        f"warning: the model was not trained to stop after {depth[0]} encoder and {depth[1]} decoder layers, "
        f"only after {trained}: expect poor translations",
        err=True,
    )
