"""The keys of guided alignment."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from sparsenmt.recipe.section import Section


class GuidedAlignment(Section):
    """A loss that draws one head of cross-attention towards given word alignments (Chen et al. 2016; Garg et al. 2019).

    `data.train.N.alignments` names the links of a corpus; pairs of corpora without any have no such loss.
    """

    layer: PositiveInt = Field(description="Decoder layer of the head, from 1. Garg et al. take the last but one.")
    head: PositiveInt = Field(1, description="Number of the head, from 1; fixed heads come first, and learn nothing.")
    weight: PositiveFloat = Field(
        0.05, description="Factor of the cross-entropy of a target token's attention and its links."
    )
