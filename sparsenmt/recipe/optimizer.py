"""The keys of a recipe's optimizer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, SerializerFunctionWrapHandler, model_serializer

from sparsenmt.recipe.section import Section


class Optimizer(Section):
    """Adam (Kingma and Ba 2015) or Adagrad (Duchi et al. 2011), and its constants."""

    name: Literal["adam", "adagrad"] = Field("adam", description="`adam`, or `adagrad`.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's decay of the first moment.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Adam's decay of the second moment.")
    epsilon: PositiveFloat = Field(1e-9, description="Term that avoids division by zero.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Adam's decoupled weight decay (AdamW) of matrices.")
    initial_sum: NonNegativeFloat = Field(0.0, description="Adagrad's sums of squared gradients before training.")

    @model_serializer(mode="wrap")
    def serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The section as plain values, without the keys of the other optimizer; `name` is younger than recipes."""
        values: dict[str, Any] = handler(self)
        foreign = {key for name, keys in OPTIMIZER_KEYS.items() if name != self.name for key in keys}
        return {key: value for key, value in values.items() if key not in foreign and (key, value) != ("name", "adam")}


OPTIMIZER_KEYS = {"adam": ("beta1", "beta2", "weight_decay"), "adagrad": ("initial_sum",)}
"""The keys of `training.optimizer` that have a meaning for one optimizer only."""
