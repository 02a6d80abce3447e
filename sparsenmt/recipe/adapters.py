"""The keys of low-rank adapters."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from sparsenmt.recipe.section import Section


class Adapters(Section):
    """Low-rank adapters (LoRA, Hu et al. 2021) that are trained in place of the model's own weights."""

    rank: PositiveInt = Field(8, le=4096, description="Rank of the adapters' product B A.")
    alpha: PositiveFloat = Field(16.0, description="The product is multiplied by alpha / rank.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the adapters' inputs.")
    targets: list[str] = Field(
        ["q", "v"],
        min_length=1,
        description="Linear layers with an adapter, by a part of the name, such as `q`, `k`, `v`, `o`, "
        "`feed_forward.inner`, `feed_forward.outer`; `self`, `cross`, `cross.q`, `feed_forward`, `encoder`, "
        "`decoder.layers.0`.",
    )
