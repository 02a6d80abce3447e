"""The depth at which a trained model runs when the user asks for fewer layers, and the checks of it."""

from __future__ import annotations

from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import Depth, DepthPlan
from sparsenmt.process.progress import notify
from sparsenmt.recipe.schema import Decoding


def at_depth(plan: DepthPlan, decoding: Decoding, encoder_layers: int | None, decoder_layers: int | None) -> Decoding:
    """Return a recipe's decoding options at the depth asked for; warn if the model was not trained for it.

    Raises:
        UserError: the model has no such layer.
    """
    given, usual = (encoder_layers, decoder_layers), (decoding.encoder_layers, decoding.decoder_layers)
    if given == usual == (None, None):
        return decoding
    chosen = []
    for i, side in enumerate(("encoder", "decoder")):
        own, recipes = given[i], usual[i]
        layers = recipes if own is None else own
        where = f"decoding.{side}_layers" if own is None else f"--{side}-layers {own}"
        check_layers(plan, side, layers, where)
        chosen.append(layers)
    depth = plan.depth(*chosen)
    warn_untrained(plan, depth)
    return decoding.at(depth)


def check_layers(plan: DepthPlan, side: str, layers: int | None, where: str) -> None:
    """Raise UserError, with its place ``where``, unless a side of the model has as many layers; None: all of them."""
    most = len(plan.encoder if side == "encoder" else plan.decoder)
    if layers is not None and not 1 <= layers <= most:
        raise UserError(
            f"the {side} has {most} layer{'' if most == 1 else 's'}: {layers} cannot run",
            where=where,
            hint=f"Take a number from 1 to {most}.",
        )


def warn_untrained(plan: DepthPlan, depth: Depth) -> None:
    """Warn of a depth that is not a trained exit."""
    if depth in plan.pairs():
        return
    exits = (", ".join(map(str, side)) for side in (plan.encoder_exits, plan.decoder_exits))
    trained = " and ".join(exits)
    notify(
        f"warning: the model was not trained to stop after {depth[0]} encoder and {depth[1]} decoder layers, "
        f"only after {trained}: expect poor translations"
    )
