"""The candidates of a plan: a model with choices for its decoding. The axes of choices are one table, a row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.data.tokenizers.tokenizer import SHORTLIST
from sparsenmt.engine.build import DTYPES
from sparsenmt.engine.products import rounds
from sparsenmt.model.depth_plan import Depth, DepthPlan
from sparsenmt.recipe.choices import NO_SHORTLIST, OWN_SHORTLIST
from sparsenmt.recipe.schema import Decoding, Recipe

Choice = str | int | Depth
"""The value of an axis."""
OF_CORPUS = "corpus"
"""The choice of a shortlist, or of a vocabulary, that is made of the corpora of the plan."""


@dataclass(frozen=True, eq=False)
class PlanModel:
    """A model directory of a plan.

    Args:
        depths: the plan of its layers and exits.
        corpora: pairs of a source and a target text for shortlists and cut vocabularies; none: these are not tried.
        device: on which it decodes.
        threads: CPU threads where its recipe names none; of those that it uses, fewer are tried.
        is_cut: False if its vocabularies cannot be cut to the corpora.
    """

    label: str
    directory: Path
    recipe: Recipe
    identity: ModelIdentity
    depths: DepthPlan
    corpora: tuple[tuple[Path, Path], ...]
    device: torch.device
    threads: int
    is_cut: bool = True

    @property
    def depth(self) -> Depth:
        """The encoder and decoder layers that run by the recipe."""
        options = self.recipe.decoding
        return self.depths.depth(options.encoder_layers, options.decoder_layers)


@dataclass(frozen=True)
class PlanCandidate:
    """A model with the choices in which its decoding differs from its recipe.

    Args:
        model: label of the model.
        choices: (axis, value), in the order of `AXES`.
    """

    model: str
    choices: tuple[tuple[str, Choice], ...] = ()

    def __str__(self) -> str:
        return ", ".join([self.model, *(AXES[name].text(value) for name, value in self.choices)])

    def get(self, axis: str) -> Choice | None:
        """Return the choice of an axis; None: as in the recipe."""
        return dict(self.choices).get(axis)

    def at(self, axis: str, value: Choice) -> PlanCandidate:
        """Return the candidate with another choice of an axis."""
        chosen = {**dict(self.choices), axis: value}
        return PlanCandidate(self.model, tuple((name, chosen[name]) for name in AXES if name in chosen))

    def settings(self) -> dict[str, Any]:
        """Return the decoding options that differ from the recipe, as they are written into it."""
        return {key: each for name, value in self.choices for key, each in AXES[name].settings(value).items()}


@dataclass(frozen=True)
class Axis:
    """A row of the table of axes.

    Args:
        values: the values beside that of the model's recipe; none: the axis does not apply to the model.
        settings: the decoding options that a value stands for; none: it changes the files of the model directory.
        text: a value in words.
        keeps_outputs: True if the translations do not depend on it: it is chosen by time alone, near the end.
    """

    name: str
    values: Callable[[PlanModel], Sequence[Choice]]
    settings: Callable[[Any], Mapping[str, Any]]
    text: Callable[[Any], str]
    keeps_outputs: bool = False


def _shortlists(model: PlanModel) -> list[str]:
    """Return no shortlist, the model's own, and that of the corpora, as far as there are such."""
    used = model.recipe.decoding.shortlist or NO_SHORTLIST
    own = [OWN_SHORTLIST] if f"tokenizers/{SHORTLIST}" in model.identity.files else []
    made = [OF_CORPUS] if model.corpora else []
    return [each for each in (NO_SHORTLIST, *own, *made) if each != used]


def _dtypes(model: PlanModel) -> list[str]:
    """Return the dtypes in which this machine multiplies faster than in fp32, and fp32."""
    if model.device.type == "cuda":
        usable = ["bf16", "fp16"] if torch.cuda.is_bf16_supported(including_emulation=False) else ["fp16"]
    else:
        usable = [name for name in ("bf16", "int8") if rounds(torch.zeros(64, 64), DTYPES[name])]
    return [name for name in ("fp32", *usable) if name != model.recipe.decoding.dtype]


def _beams(model: PlanModel) -> list[int]:
    """Return smaller beams than that of the recipe; of another search than beam search none."""
    options = model.recipe.decoding
    return [size for size in (1, 2, 4) if size < options.beam_size] if options.method == "beam" else []


def _batches(model: PlanModel) -> list[int]:
    """Return half of the recipe's batch, twice and four times it."""
    usual = model.recipe.decoding.batch_tokens
    return [max(usual // 2, 1), 2 * usual, 4 * usual]


def _threads(model: PlanModel) -> list[int]:
    """Return one thread, and half of those that are used."""
    usual = model.recipe.decoding.threads or model.threads
    return sorted({1, usual // 2} - {0, usual}) if model.device.type == "cpu" else []


_AXES = (
    Axis(
        "depth",
        lambda model: [depth for depth in model.depths.depths() if depth != model.depth],
        lambda depth: {"encoder_layers": depth[0], "decoder_layers": depth[1]},
        lambda depth: f"{depth[0]}+{depth[1]} layers",
    ),
    Axis(
        "vocabulary",
        lambda model: [OF_CORPUS] if model.corpora and model.is_cut else [],
        lambda value: {},
        lambda value: "cut vocabulary",
    ),
    Axis(
        "shortlist",
        _shortlists,
        lambda value: {"shortlist": OWN_SHORTLIST if value == OF_CORPUS else value},
        lambda value: {NO_SHORTLIST: "no shortlist", OWN_SHORTLIST: "own shortlist"}.get(value, "shortlist"),
    ),
    Axis("dtype", _dtypes, lambda name: {"dtype": name}, str),
    Axis(
        "beam",
        _beams,
        lambda size: {"method": "greedy" if size == 1 else "beam", "beam_size": size},
        lambda size: f"beam {size}",
    ),
    Axis("batch", _batches, lambda size: {"batch_tokens": size}, lambda size: f"batches of {size:,}", True),
    Axis(
        "threads",
        _threads,
        lambda count: {"threads": count},
        lambda count: f"{count} thread{'' if count == 1 else 's'}",
        True,
    ),
)
OF_CORPORA = ("vocabulary", "shortlist")
"""The axes with a value that is made of the corpora of the plan."""
AXES = {each.name: each for each in _AXES}
"""By name: a further axis is one row."""


def candidates(model: PlanModel, *, all_axes: bool = False) -> Iterator[PlanCandidate]:
    """Yield every combination of the choices of a model, that of its recipe first.

    Args:
        all_axes: with those axes, too, on which the translations do not depend.
    """
    rows = [axis for axis in _AXES if all_axes or not axis.keeps_outputs]
    for values in product(*([None, *axis.values(model)] for axis in rows)):
        chosen = zip(rows, values, strict=True)
        yield PlanCandidate(model.label, tuple((axis.name, value) for axis, value in chosen if value is not None))


def decoding_of(candidate: PlanCandidate, model: PlanModel) -> Decoding:
    """Return the decoding options of a candidate: those of its recipe with its choices."""
    return type(model.recipe.decoding).model_validate({**dict(model.recipe.decoding), **candidate.settings()})
