"""The methods that a recipe chooses: at the sites of attention, and over the encoder's outputs.

Options of methods are not here: they belong to the methods, and `recipe.load` receives them as a mapping from names to
types.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from sparsenmt.recipe.section import Section


class MethodChoice(BaseModel):
    """A sparsity method plugged into a socket: its ``name``, and the method's own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(description="Name of a registered method.")

    @property
    def options(self) -> dict[str, Any]:
        """The options beside ``name``, as written."""
        return dict(self.model_extra or {})


class MemoryChoice(MethodChoice):
    """A memory filter and its place."""

    at: Literal["output", "between"] = Field(
        "output", description="`output`: after the encoder; `between`: between every two encoder layers."
    )
    per: Literal["model", "exit"] = Field(
        "model",
        description="At the output of an encoder with several trained exits: `model` shares one filter among the "
        "exits, `exit` gives each its own.",
    )


class Heads(Section):
    """The heads of an attention site."""

    given: MethodChoice | None = Field(None, description="Fixed heads: their weights are given, not learned.")
    count: PositiveInt | None = Field(
        None, le=2**16, description="Number of heads at this site. Default: `model.heads`."
    )
    disabled: list[PositiveInt] = Field(
        [],
        description="Heads whose output is zero, in every layer, numbered from 1 with the fixed heads first. For a "
        "trained model, use `--disable-heads` of `decode` and `score`.",
    )


class Site(Section):
    """An attention site: the keys that a query may see, how scores become weights, distances, and its heads."""

    pattern: MethodChoice = Field(MethodChoice(name="full"), description="The keys that a query may see.")
    transform: MethodChoice = Field(MethodChoice(name="softmax"), description="How scores become weights.")
    position: MethodChoice | None = Field(
        None, description="A term of the scores by query and distance (self-attention only). Default: none."
    )
    span: MethodChoice | None = Field(
        None, description="A factor of the weights by head and distance (self-attention only). Default: none."
    )
    heads: Heads = Field(Heads(), description="Number of heads, and fixed heads.")

    younger = frozenset({"position", "span"})


class Attention(Section):
    """The three attention sites."""

    encoder_self: Site = Field(Site(), description="Self-attention of the encoder.")
    decoder_self: Site = Field(Site(), description="Self-attention of the decoder.")
    cross: Site = Field(Site(), description="Cross-attention: from the decoder to the encoder's output.")
