"""The keys of an auxiliary loss: its weight or target, and how they change."""

from __future__ import annotations

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sparsenmt.recipe.section import Section


class Ramp(Section):
    """A value that changes linearly with the updates."""

    from_: float = Field(alias="from", description="Value at the beginning.")
    to: float = Field(description="Value at the end of the change and afterwards.")
    steps: PositiveInt = Field(description="Number of updates over which the value changes.")
    after: NonNegativeInt = Field(
        0, description="Update at which the change begins; `finetune-l0` counts from its own first update."
    )

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class AuxiliaryLoss(Section):
    """An auxiliary loss: its weight, or a target to which a controller adjusts the weight."""

    weight: NonNegativeFloat | Ramp | None = Field(
        None, description="Weight of the loss, or `{from, to, steps}`. Default: 1, unless there is a target."
    )
    target: float | Ramp | None = Field(
        None,
        description="Instead of a weight: the share of gates to close, between 0 and 1, or `{from, to, steps}`. It is "
        "measured with the gates of evaluation on training batches; a controller adjusts the weight, also below 0.",
    )
    tolerance: float = Field(
        0.02,
        gt=0,
        lt=1,
        description="With a target: largest distance from it at which a validation can be the best.",
    )
    proportional: NonNegativeFloat = Field(6.0, description="With a target: weight per distance from it.")
    integral: NonNegativeFloat = Field(0.05, description="With a target: weight gained per distance and update.")
    max_weight: PositiveFloat = Field(5.0, description="With a target: largest absolute value of the weight.")
    release: PositiveFloat = Field(
        4.0, description="With a target: factor by which the weight falls faster while the share is above the target."
    )
    damping: NonNegativeFloat = Field(20.0, description="With a target: weight lost per share closed in an update.")
    smoothing: float = Field(0.7, ge=0, lt=1, description="With a target: smoothing of the share over updates.")
