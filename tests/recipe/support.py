"""Methods and a small recipe for the tests of `sparsenmt.recipe`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sparsenmt.recipe.load import load
from sparsenmt.recipe.schema import Recipe


class Empty(BaseModel):
    """No options."""

    model_config = ConfigDict(extra="forbid")


class Nearest(BaseModel):
    """Options of a made-up transform."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: int = Field(8, gt=0, description="Keys kept.")
    ties: Literal["keep", "first"] = Field("keep", description="What happens to ties.")


class Drop(BaseModel):
    """Options of a made-up filter."""

    rate: float = Field(ge=0, le=1, description="Share that is dropped.")


METHODS: dict[str, dict[str, type[BaseModel]]] = {
    "pattern": {"full": Empty},
    "transform": {"softmax": Empty, "nearest": Nearest},
    "heads": {},
    "memory": {"drop": Drop},
    "depth": {"plain": Empty},
}

MINIMAL = """\
name: test
directory: runs/test
data:
  directory: runs/data
  train:
    - {source: a.en, target: a.de}
  dev: {source: d.en, target: d.de}
"""


def write(folder: Path, text: str, name: str = "recipe.yaml") -> Path:
    """A recipe file."""
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def load_text(folder: Path, extra: str = "", *overrides: str, head: str = MINIMAL) -> Recipe:
    """The recipe of `MINIMAL` with more text below it."""
    return load(write(folder, head + extra), METHODS, overrides)
