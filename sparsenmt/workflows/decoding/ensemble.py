"""Ensembles for `decode`: a model with others of the same target vocabulary, or with other depths of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.engine.ensemble import Average, EnsembleEngine, Member
from sparsenmt.errors import UserError
from sparsenmt.workflows.decoding.depth_choice import check_layers, warn_untrained


@dataclass(frozen=True, kw_only=True)
class EnsembleOptions:
    """The options of `decode` about an ensemble.

    Args:
        ensemble: directories of further models.
        ensemble_depths: ``N,M``: further numbers of encoder and decoder layers of the model itself.
        ensemble_weights: of the model, ``ensemble`` and ``ensemble_depths``, in this order; empty: all are equal.
        ensemble_average: of log-probabilities (``log``), or of probabilities (``linear``).
    """

    ensemble: tuple[Path, ...] = ()
    ensemble_depths: tuple[str, ...] = ()
    ensemble_weights: tuple[float, ...] = ()
    ensemble_average: Average = "log"

    @property
    def members(self) -> int:
        """The number of members beside the model itself."""
        return len(self.ensemble) + len(self.ensemble_depths)

    def check(self) -> None:
        """Raise UserError for weights without members, of another number, or that are not positive numbers."""
        count, weights = self.members + 1, self.ensemble_weights
        if weights and (count == 1 or len(weights) != count):
            members = "there is no ensemble" if count == 1 else f"there are {count} members"
            given = "1 weight is" if len(weights) == 1 else f"{len(weights)} weights are"
            raise UserError(
                f"{given} given, and {members}",
                where="--ensemble-weights",
                hint="Give one for the model, then one for each --ensemble and --ensemble-depth.",
            )
        if self.ensemble_average != "log" and count == 1:
            hint = "Add --ensemble, or leave it out."
            raise UserError("changes nothing: there is no ensemble", where="--ensemble-average", hint=hint)
        if not all(0 < weight < math.inf for weight in weights):
            raise UserError("must be numbers above 0", where="--ensemble-weights", hint="Leave a useless member out.")

    def ensemble_record(self, bundle: Bundle) -> dict[str, Any]:
        """Return what an output depends on, for its record; nothing where there is no ensemble."""
        if not bundle.others:
            return {}
        members = [[each.identity().stored_digest, list(each.depth)] for each in bundle.others]
        weights = list(self.ensemble_weights)
        return {"ensemble": {"members": members, "weights": weights, "average": self.ensemble_average}}


def with_members(
    bundle: Bundle, directory: Path, choice: EnsembleOptions, open_member: Callable[[Path], Bundle]
) -> Bundle:
    """Return the bundle of a model as the first member of an ensemble; itself if there are no others.

    Args:
        directory: of the model, for messages.
        open_member: opens a model directory.

    Raises:
        UserError: a member is no model, has another target vocabulary or task, or there is no such depth.
    """
    if not choice.members:
        return bundle
    others = [open_member(each) for each in choice.ensemble]
    for path, other in zip(choice.ensemble, others, strict=True):
        check_vocabulary(bundle, other, directory, path)
    others += [_at_depth(bundle, text) for text in choice.ensemble_depths]
    weights = choice.ensemble_weights or [1.0] * (len(others) + 1)
    members = [
        Member(
            each.engine,
            weight / sum(weights),
            each.recipe.model.dimension,
            each.recipe.decoding.encoder_exits,
            each.recipe.decoding.decoder_exits,
        )
        for each, weight in zip((bundle, *others), weights, strict=True)
    ]
    return replace(bundle, others=tuple(others), built=EnsembleEngine(members, choice.ensemble_average))


def _at_depth(bundle: Bundle, text: str) -> Bundle:
    """Return the same model at the depth ``N,M``."""
    found, where = re.fullmatch(r"([0-9]{1,4}),([0-9]{1,4})", text.replace(" ", "")), f"--ensemble-depth {text}"
    if found is None:
        hint = "Write encoder and decoder layers with a comma between them, as 3,1."
        raise UserError("is no depth", where=where, hint=hint)
    depth = int(found[1]), int(found[2])
    for side, layers in zip(("encoder", "decoder"), depth, strict=True):
        check_layers(bundle.model.plan, side, layers, where)
    warn_untrained(bundle.model.plan, depth)
    return replace(bundle, recipe=bundle.recipe.model_copy(update={"decoding": bundle.recipe.decoding.at(depth)}))


def check_vocabulary(bundle: Bundle, other: Bundle, directory: Path, path: Path) -> None:
    """Check that two models can be averaged: of one task, with the same target tokens, in the same order.

    Args:
        directory, path: of both, for messages.

    Raises:
        UserError: they cannot.
    """
    hint = f"Take models with the target vocabulary of {directory}."
    ours, theirs = bundle.tokenizers.target, other.tokenizers.target
    if bundle.recipe.data.is_language_model != other.recipe.data.is_language_model:
        raise UserError(
            f"one of it and {directory} is a language model, the other translates", where=str(path), hint=hint
        )
    if ours.size != theirs.size:
        what = f"its target vocabulary has {theirs.size:,} tokens, that of {directory} {ours.size:,}"
        raise UserError(what, where=str(path), hint=hint)
    both = zip(ours.pieces(range(ours.size)), theirs.pieces(range(theirs.size)), strict=True)
    for number, (own, their) in enumerate(both):
        if own != their:
            what = f"its target vocabulary is another one: token {number} is {their!r}, in {directory} {own!r}"
            raise UserError(what, where=str(path), hint=hint)
    if bundle.frames.target.given != other.frames.target.given:
        what = f"its decoder begins with other tokens than that of {directory}"
        raise UserError(what, where=str(path), hint="Name the same --target-language, or other models.")
