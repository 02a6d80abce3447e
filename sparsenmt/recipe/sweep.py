"""A sweep: one recipe in many variants, as a YAML file. Its keys stand here, with their documentation.

What a sweep's `variants` multiply out to is in `variants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from sparsenmt.recipe.keys import fields_by_key, section_type
from sparsenmt.recipe.origins import Node, child, find, nearest_origin, plain, read, replace
from sparsenmt.recipe.paths import expand
from sparsenmt.recipe.problems import Complaint, KeyPath, Problem, raise_together
from sparsenmt.recipe.schema import Section
from sparsenmt.recipe.suggestions import nearest
from sparsenmt.recipe.translation import misread_booleans, translate
from sparsenmt.recipe.variants import OWN_AXES, Variant, expand_variants

Metric = Literal["bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "dbleu"]
Cell = Literal["quality", "parameters", "sparsity", "attended", "density", "training_speed"]


class Layout(Section):
    """How the table is laid out; an axis is a key of the variants' `at`, or `seed`, `set` or `metric`."""

    rows: str | list[str] = Field(description="Axis, or axes, whose labels name the rows.")
    columns: str | list[str] = Field(description="Axis, or axes, whose labels name the columns.")
    sections: str | list[str] = Field([], description="Axis, or axes, that get a table each.")
    cell: Cell = Field(
        "quality",
        description="What stands in the cells: the first metric, if no axis is `metric`; or what `sparsenmt compare` "
        "calls so.",
    )
    average: bool = Field(False, description="A last column with the mean of a row's numbers.")
    baseline: dict[str, Any] = Field(
        {},
        description="Labels, by axis, of what the others are tested against: with `{system: 8L}` every variant is "
        "compared with the one that differs in `system` only. Default: nothing is tested.",
    )


class VariantBlock(Section):
    """One variant, or all that a product of axes gives."""

    name: str | None = Field(
        None,
        description="Name of the variant, and of its directory; `${axis}` in it is replaced. Default: its labels, "
        "joined by `-`.",
    )
    at: dict[str, Any] = Field(
        {},
        description="Axis -> label, or a list of labels, which are multiplied out. A label is a text or a number, or a "
        "mapping with `label`, perhaps `set`, and values of its own for `${axis.key}`.",
    )
    set: dict[str, Any] = Field(
        {}, description="Changes to the recipe: dotted keys, as in overrides, with their values."
    )
    recipe: str | None = Field(None, description="As above, for these variants.")
    from_: str | None = Field(None, alias="from", description="As above, for these variants; empty: from scratch.")
    updates: NonNegativeInt | None = Field(None, description="As above, for these variants.")
    restart: bool | None = Field(None, description="As above, for these variants.")


class SweepFile(Section):
    """The file."""

    name: str = Field(description="Name of the sweep.")
    title: str | None = Field(None, description="Title of the table; default: the name.")
    directory: str = Field(
        description="Where each variant gets a directory, and the table its files; relative to the working directory."
    )
    recipe: str = Field(description="Path of the recipe that all variants change, relative to the folder of the sweep.")
    from_: str | None = Field(
        None,
        alias="from",
        description="Model directory that the variants begin from, relative to the working directory, or the name of "
        "an earlier variant. Its newest checkpoint's weights, moments and learning rate go on, and "
        "`training.max_updates` counts from there. Default: from scratch.",
    )
    updates: NonNegativeInt | None = Field(
        None,
        description="With `from`: updates to train on; 0: none, the model's final weights as they are. Default: the "
        "recipe's `training.max_updates`.",
    )
    restart: bool = Field(
        False, description="With `from`: begin with the model's final weights, without moments, at update 0."
    )
    set: dict[str, Any] = Field({}, description="Changes to the recipe, for all variants.")
    seeds: list[NonNegativeInt] = Field(
        [], description="Values of `training.seed`: every variant is trained with each. Default: the recipe's alone."
    )
    sets: list[Literal["dev", "test"]] = Field(
        ["test"], min_length=1, description="What is translated and scored: the recipe's `data.test` and `data.dev`."
    )
    metrics: list[Metric] = Field(
        [], description="What is measured, the most important first. Default: the metric of the recipe's validation."
    )
    checkpoints: Literal["keep", "remove"] = Field(
        "keep",
        description="`remove`: the checkpoints of a variant go when it is finished, unless another one begins from it.",
    )
    variants: list[VariantBlock] = Field(min_length=1, description="The variants.")
    table: Layout | None = Field(None, description="How the table is laid out. Default: a row a variant.")


@dataclass(frozen=True)
class Sweep:
    """What a file says, multiplied out."""

    path: Path
    name: str
    title: str
    directory: Path
    sets: tuple[str, ...]
    metrics: tuple[str, ...]
    remove_checkpoints: bool
    layout: Layout | None
    variants: tuple[Variant, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the variants, in the order of the file."""
        return tuple(dict.fromkeys(axis for variant in self.variants for axis in variant.labels))


def axes_of(names: str | list[str]) -> tuple[str, ...]:
    """What `rows`, `columns` or `sections` name."""
    return (names,) if isinstance(names, str) else tuple(names)


def read_sweep(path: Path) -> Sweep:
    """Read a file.

    Raises:
        UserError: it cannot be read; or everything that is wrong with it, each with its line and key, in one message.
            Nothing is said of the recipes: `recipe.load` does, with the variants' settings.
    """
    node, problems = read(path)
    problems += (unknown := _unknown_keys(node, SweepFile))
    file: SweepFile | None = None
    for problem in unknown:
        node = _without(node, problem.path)
    try:
        file = SweepFile.model_validate(plain(node))
    except ValidationError as error:
        known = {problem.path for problem in problems}
        problems += [found for found in translate(error, node, root=SweepFile) if found.path not in known]
    problems += misread_booleans(node, SweepFile)
    if file is None or problems:
        raise_together(problems, str(path))
    assert file is not None
    directory, complaint = expand(file.directory)
    if complaint is not None:
        problems.append(Problem(nearest_origin(node, ("directory",)), ("directory",), complaint))
    variants, found = expand_variants(node, path.parent)
    problems += found or _layout_problems(node, file, variants)
    raise_together(problems, str(path))
    return Sweep(
        path=path,
        name=file.name,
        title=file.title or file.name,
        directory=Path(directory or file.directory),
        sets=tuple(dict.fromkeys(file.sets)),
        metrics=tuple(dict.fromkeys(file.metrics)),
        remove_checkpoints=file.checkpoints == "remove",
        layout=file.table,
        variants=tuple(variants),
    )


def _unknown_keys(node: Node, section: type[BaseModel], path: KeyPath = ()) -> list[Problem]:
    """Keys that a section does not have; recipe keys are sent to `set`."""
    if not isinstance(node.value, dict):
        return []
    fields = fields_by_key(section)
    problems = []
    for key, value in node.value.items():
        field = fields.get(key)
        here = (*path, key)
        if field is None:
            close = nearest(key, fields, cutoff=0.75)
            meant = f"Did you mean `{close}`?" if close else f"The keys here are: {', '.join(fields)}."
            hint = f"{meant} Keys of the recipe stand under `set`: `training.max_updates: 500`."
            problems.append(Problem(value.origin, here, Complaint("unknown key", hint)))
            continue
        inner, item = section_type(field.annotation), section_type(field.annotation, 0)
        if inner is not None:
            problems += _unknown_keys(value, inner, here)
        elif item is not None and isinstance(value.value, list):
            for index, each in enumerate(value.value):
                problems += _unknown_keys(each, item, (*here, index))
    return problems


def _without(node: Node, path: KeyPath) -> Node:
    return replace(node, path, None) if find(node, path) is not None else node


def _layout_problems(node: Node, file: SweepFile, variants: list[Variant]) -> list[Problem]:
    """Axes that no variant has, labels that none has, and variants that would share a cell."""
    if file.table is None:
        return []
    problems = []
    labels: dict[str, set[str]] = {axis: set() for axis in OWN_AXES}
    for variant in variants:
        for axis, label in variant.labels.items():
            labels.setdefault(axis, set()).add(label)
    for key, axis in _named_axes(file.table):
        if axis not in labels:
            complaint = Complaint(f"no variant has an axis '{axis}'", f"There are: {', '.join(labels)}.")
            problems.append(Problem(nearest_origin(node, ("table", *key)), ("table", *key), complaint))
    for axis, label in file.table.baseline.items():
        if axis in labels and str(label) not in labels[axis]:
            place: KeyPath = ("table", "baseline", axis)
            complaint = Complaint(f"no variant has the {axis} '{label}'", f"There are: {', '.join(labels[axis])}.")
            problems.append(Problem(nearest_origin(node, place), place, complaint))
    return problems or _crowded(node, file.table, variants)


def _named_axes(layout: Layout) -> Iterator[tuple[KeyPath, str]]:
    for key in ("rows", "columns", "sections"):
        for axis in axes_of(getattr(layout, key)):
            yield (key,), axis
    for axis in layout.baseline:
        yield ("baseline", axis), axis


def _crowded(node: Node, layout: Layout, variants: list[Variant]) -> list[Problem]:
    """The first two variants whose labels on the table's axes are the same; seeds share cells."""
    shown = [axis for key in ("rows", "columns", "sections") for axis in axes_of(getattr(layout, key))]
    first: dict[tuple[str | None, ...], Variant] = {}
    for variant in variants:
        place = tuple(variant.labels.get(axis) for axis in shown)
        other = first.setdefault(place, variant)
        if other is not variant and not _differ_in_seed_alone(other, variant):
            complaint = Complaint(
                f"{other.name} and {variant.name} fall into one cell",
                "Name the axis in which they differ under `rows`, `columns` or `sections`.",
            )
            section = child(node, "table")
            return [Problem(node.origin if section is None else section.origin, ("table",), complaint)]
    return []


def _differ_in_seed_alone(one: Variant, other: Variant) -> bool:
    return {**one.labels, "seed": ""} == {**other.labels, "seed": ""}
