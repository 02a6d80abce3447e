"""The prepared data of a recipe: write them, open them."""

from __future__ import annotations

from sparsenmt.assemble import required_features
from sparsenmt.data.prepare import pipeline
from sparsenmt.data.prepared_data import PreparedData, PreparedReport
from sparsenmt.errors import UserError
from sparsenmt.interrupts import resumable
from sparsenmt.recipe.schema import Recipe


def prepare(recipe: Recipe) -> PreparedReport:
    """Write the binary data of a recipe to its `data.directory`, unless they are there and up to date.

    Raises:
        UserError: the text or the settings are at fault.
    """
    with resumable("the stages that were finished are kept"):
        return pipeline.prepare(recipe.data, features=required_features(recipe))


def open_prepared(recipe: Recipe) -> PreparedData:
    """Open the prepared data of a recipe.

    Raises:
        UserError: there are none, they are damaged, or they were prepared with other settings.
    """
    data = PreparedData.open(recipe.data.directory)
    if pipeline.check_prepared_data(recipe.data, required_features(recipe)) != data.fingerprint:
        raise UserError(
            "the prepared data were replaced while they were read",
            where=recipe.data.directory,
            hint="Start the command again when no other process writes to them.",
        )
    return data
