"""The options of a search: a model's own with some of them replaced, checked before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.decoding.inputs import usual_lengths
from sparsenmt.decoding.strategies import strategy_of
from sparsenmt.errors import UserError
from sparsenmt.model.sockets import content_patterns
from sparsenmt.process.progress import notify
from sparsenmt.recipe import schema
from sparsenmt.workflows.decoding.depth_choice import at_depth

_OF_ONE_METHOD = {"draft_tokens": "speculative", "draft_layers": "speculative", "exit_confidence": "early_exit"}
"""Setting of a search -> the only method that reads it."""


def decoding_options(base: schema.Decoding, settings: Mapping[str, Any], n_best: int = 1) -> schema.Decoding:
    """Return a recipe's decoding options with some of them replaced, checked as the recipe's are.

    Raises:
        UserError: a value is not valid, or more hypotheses are wanted than the search has.
    """
    changed = {name: value for name, value in settings.items() if value is not None}
    method = changed.get("method", base.method)
    for name, owner in _OF_ONE_METHOD.items():
        if name in changed and method != owner:
            raise UserError(
                f"has no meaning for the method {method}",
                where=f"--{name.replace('_', '-')}",
                hint=f"Take --method {owner}, or leave it out.",
            )
    try:
        options = type(base).model_validate({**dict(base), **changed})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = first["msg"].replace("Input should be", "must be")
        hint = "`sparsenmt decode --help` explains the option."
        where = f"--{name.replace('_', '-')}"
        raise UserError(f"{message}, not {settings[name]}", where=where, hint=hint) from None
    width = strategy_of(options).width
    if n_best > width:
        raise UserError(
            f"{n_best} hypotheses are more than the search has: {width}",
            where="--n-best",
            hint="Raise --beam-size."
            if options.method == "beam"
            else "Use --method beam, with as large a --beam-size.",
        )
    return options


def search_options(
    bundle: Bundle,
    model: Path,
    settings: Mapping[str, Any],
    *,
    n_best: int = 1,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    without_meaning: Mapping[str, object] | None = None,
) -> schema.Decoding:
    """Return a model's decoding options with some of them replaced; all that a search depends on is checked.

    Args:
        model: its directory, for messages.
        settings, n_best: as for `decoding_options`.
        encoder_layers, decoder_layers: as for `at_depth`.
        without_meaning: option -> value of those that a language model must not be given.

    Raises:
        UserError: an option or a language does not fit the model, or the model cannot decode.
    """
    if bundle.recipe.data.is_language_model:
        refused = {"--encoder-layers": encoder_layers, "--unknown copy": settings.get("unknown") == "copy"}
        refused |= {"--shortlist": settings.get("shortlist"), "--long": settings.get("long"), **(without_meaning or {})}
        _check_continuation(bundle, model, refused)
    elif settings.get("max_lines") is not None:
        raise UserError(
            "the model translates: every line has one line of output", where="--max-lines", hint="Leave it out."
        )
    _ = bundle.frames  # refuses a language that is missing, before anything is read or written
    options = decoding_options(bundle.recipe.decoding, settings, n_best)
    if settings.get("long") == "split" and bundle.text is None:
        usual = f"{usual_lengths(bundle)}, as the positions and data.filters.max_length allow"
        notify(f"the model does not say how long its training text was: a line is long beyond {usual}")
    _ = bundle.shortlist(options)  # refuses one that cannot be used
    chosen = at_depth(bundle.model.plan, options, encoder_layers, decoder_layers)
    strategy_of(chosen).check(bundle)
    return chosen


def _check_continuation(bundle: Bundle, model: Path, refused: Mapping[str, object]) -> None:
    """Refuse options that have no meaning for the continuation of prompts, and models that cannot decode.

    Args:
        refused: option -> its value.
    """
    for name, value in refused.items():
        if value:
            raise UserError(
                "has no meaning for a language model, which has no source", where=name, hint="Leave the option out."
            )
    if not all(pattern.decodes for pattern in content_patterns(bundle.model.modules())):
        raise UserError(
            "the model cannot decode: later positions decide what a query sees",
            where=str(model),
            hint="Train with a pattern that looks back only (of `routing`: `assignment: nearest`).",
        )
