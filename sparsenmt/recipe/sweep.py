"""Sweep files: many variants of a recipe and the table of their results. Every key has its documentation here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, ValidationError

from sparsenmt.recipe.choices import SignificanceMethod
from sparsenmt.recipe.errors import Complaint, Problem, nearest, raise_together
from sparsenmt.recipe.key_paths import KeyPath, key_path
from sparsenmt.recipe.resolve import expand_variables
from sparsenmt.recipe.section import Section
from sparsenmt.recipe.table_names import MetricName
from sparsenmt.recipe.validation_errors import misread_booleans, validation_problems
from sparsenmt.recipe.variants import OWN_AXES, SEED, Variant, expand_variants
from sparsenmt.recipe.yaml_tree import YamlNode, mapping, nearest_origin, plain, read

CellValue = Literal[
    "quality",
    "parameters",
    "sparsity",
    "attended",
    "fewer_attended",
    "density",
    "mean_span",
    "longest_span",
    "training_speed",
    "training_seconds",
]


def _once(values: list[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


class Layout(Section):
    """The layout of the table; an axis is a key of the variants' `at`, or `seed`, `set` or `metric`."""

    rows: str | list[str] = Field(description="Axis, or axes, whose labels name the rows.")
    columns: str | list[str] = Field(
        [],
        description="Axis, or axes, whose labels name the columns. Default: sets and metrics, and without `cell` the "
        "sparsity rate, where a filter decides, and the speed of training beside them.",
    )
    sections: str | list[str] = Field([], description="Axis, or axes, whose labels get a table each.")
    cell: CellValue | Annotated[list[CellValue], Field(min_length=1)] = Field(
        "quality",
        description="Content of the cells. `quality`: the score, by the first metric unless `metric` is an axis; the "
        "others are columns of `sparsenmt compare`. A list gives a table for each.",
    )
    average: bool = Field(False, description="Add a last column with the mean of each row.")
    baseline: dict[str, Any] = Field(
        {},
        description="Labels, by axis, of the baseline of the significance tests: with `{system: 8L}` every variant is "
        "compared with the one that differs in `system` only. Default: no tests.",
    )

    @property
    def column_axes(self) -> tuple[str, ...]:
        """The axes of the columns; without any, those of set and metric that the rows and sections leave."""
        used = {*axes_of(self.rows), *axes_of(self.sections)}
        return axes_of(self.columns) or tuple(axis for axis in ("set", "metric") if axis not in used)

    @property
    def adds_measured(self) -> bool:
        """True if columns of other values stand beside the quality: the file names neither columns nor cells."""
        return not self.model_fields_set & {"columns", "cell"}

    @property
    def cells(self) -> list[CellValue]:
        """The contents of the cells, one for each table of a section; the first is drawn."""
        return self.cell if isinstance(self.cell, list) else [self.cell]


class VariantBlock(Section):
    """A variant, or all variants of a product of axes."""

    name: str | None = Field(
        None,
        description="Name of the variant and of its directory; `${axis}` stands for a label. Default: the labels, "
        "joined by `-`.",
    )
    at: dict[str, Any] = Field(
        {},
        description="Axis -> label, or a list of labels; the block stands for the product of all axes. A label is a "
        "text or a number, or a mapping with `label`, optionally `set`, and further values for `${axis.key}`.",
    )
    set: dict[str, Any] = Field(
        {}, description="Changes to the recipe: dotted keys, as in overrides, with their values."
    )
    recipe: str | None = Field(None, description="As in the sweep, for these variants.")
    from_: str | None = Field(
        None, alias="from", description="As in the sweep, for these variants; empty: from scratch."
    )
    updates: NonNegativeInt | None = Field(None, description="As in the sweep, for these variants.")
    restart: bool | None = Field(None, description="As in the sweep, for these variants.")


class SweepFile(Section):
    """A sweep file."""

    name: str = Field(description="Name of the sweep.")
    title: str | None = Field(None, description="Title of the table. Default: the name.")
    directory: str = Field(
        description="Directory of the variants' model directories and of the table, relative to the working directory."
    )
    recipe: str = Field(description="Path of the recipe that all variants change, relative to the folder of the sweep.")
    from_: str | None = Field(
        None,
        alias="from",
        description="Model directory that the variants start from, relative to the working directory, or the name of "
        "an earlier variant: with `seeds`, that of the same seed. Training continues with the weights, moments and "
        "learning rate of its newest checkpoint, and `training.max_updates` counts from there. Default: from scratch.",
    )
    updates: NonNegativeInt | None = Field(
        None,
        description="With `from`: number of further updates; 0: use the model's final weights without training. "
        "Default: the recipe's `training.max_updates`.",
    )
    restart: bool = Field(
        False, description="With `from`: start with the model's final weights, without moments, at update 0."
    )
    set: dict[str, Any] = Field({}, description="Changes to the recipe, for all variants.")
    seeds: list[Annotated[NonNegativeInt, Field(lt=2**32)]] = Field(
        [],
        description="Different values of `training.seed`; every variant is trained with each, and the table shows mean "
        "and standard deviation. Default: only the recipe's.",
    )
    sets: Annotated[list[Literal["dev", "test"]], AfterValidator(_once)] = Field(
        ["test"], min_length=1, description="Texts to translate and score: the recipe's `data.test` and `data.dev`."
    )
    metrics: Annotated[list[MetricName], AfterValidator(_once)] = Field(
        [], description="Metrics, the most important first. Default: the metric of the recipe's validation."
    )
    lowercase: bool = Field(False, description="Ignore case in BLEU and chrF (TER and ROUGE always do).")
    tokenize: str | None = Field(
        None,
        description="sacrebleu's tokenizer, for BLEU and `length`. Default: `training.validation.tokenize` of the "
        "recipe, or what fits the text.",
    )
    significance: SignificanceMethod = Field(
        "bootstrap",
        description="Test of differences to the baseline: `bootstrap` or `randomization`, paired and two-sided.",
    )
    resamples: int = Field(1000, ge=1, le=1_000_000, description="Number of samples of this test.")
    checkpoints: Literal["keep", "remove"] = Field(
        "keep",
        description="`remove`: delete the checkpoints of a finished variant, unless another variant starts from it.",
    )
    variants: list[VariantBlock] = Field(min_length=1, description="The variants.")
    table: Layout | None = Field(None, description="Layout of the table. Default: a row per variant.")


@dataclass(frozen=True)
class Sweep:
    """A sweep file with all its variants.

    Args:
        directory: that of the file, with the values of its variables.
    """

    path: Path
    file: SweepFile
    directory: Path
    variants: tuple[Variant, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the variants, in the order of the file."""
        return tuple(dict.fromkeys(axis for variant in self.variants for axis in variant.labels))


def axes_of(names: str | list[str]) -> tuple[str, ...]:
    """The axes that `rows`, `columns` or `sections` name."""
    return (names,) if isinstance(names, str) else tuple(names)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file. The variants' recipes are not read: that is `recipe.load` with the variants' settings.

    Raises:
        UserError: the file cannot be read; or all its problems, each with its line and key, in one message.
    """
    node, problems = read(path)
    file: SweepFile | None = None
    try:
        file = SweepFile.model_validate(plain(node))
    except ValidationError as error:
        known = {problem.path for problem in problems}
        wrong = validation_problems(error, node, root=SweepFile, unknown=_unknown_key)
        problems += [found for found in wrong if found.path not in known]
    problems += misread_booleans(node, SweepFile)
    if file is None or problems:
        raise_together(problems, str(path))
    assert file is not None
    directory = expand_variables(file.directory)
    if isinstance(directory, Complaint):
        problems.append(Problem(nearest_origin(node, ("directory",)), ("directory",), directory))
    variants, found = expand_variants(node, path.parent)
    problems += found or [*_seed_problems(node, file, variants), *_layout_problems(node, file, variants)]
    raise_together(problems, str(path))
    return Sweep(path, file, Path(str(directory)), tuple(variants))


def _unknown_key(key: str, section: KeyPath, valid: Sequence[str]) -> Complaint:
    """The complaint about a key that a section does not have; the hint points recipe keys to `set`."""
    close = nearest(key, valid, cutoff=0.75)
    meant = f"Did you mean `{close}`?" if close else f"The keys here are: {', '.join(valid)}."
    return Complaint("unknown key", f"{meant} Write keys of the recipe under `set`: `training.max_updates: 500`.")


def _seed_problems(node: YamlNode, file: SweepFile, variants: list[Variant]) -> list[Problem]:
    """Problems of `seeds`: one that occurs twice, and other values of `training.seed`."""
    problems = []
    for index, seed in enumerate(file.seeds):
        if seed in file.seeds[:index]:
            place: KeyPath = ("seeds", index)
            complaint = Complaint(f"the seed {seed} occurs twice", "Remove one of the two.")
            problems.append(Problem(nearest_origin(node, place), place, complaint))
    found = {}
    for variant in variants if file.seeds else []:
        for setting in variant.settings[:-1]:  # the last one is the seed
            path = key_path(setting.key.strip())
            if path == SEED or (path == SEED[:1] and SEED[1] in mapping(setting.value)):
                found[setting.value.origin.place] = setting.value.origin
    complaint = Complaint("the sweep has `seeds`, which give the seed", "Remove this key, or `seeds`.")
    return problems + [Problem(origin, SEED, complaint) for origin in found.values()]


def _layout_problems(node: YamlNode, file: SweepFile, variants: list[Variant]) -> list[Problem]:
    """Problems of the layout: unknown axes and labels, and variants that would share a cell."""
    if file.table is None:
        return []
    problems = []
    labels: dict[str, set[str]] = {axis: set() for axis in OWN_AXES}
    for variant in variants:
        for axis, label in variant.labels.items():
            labels.setdefault(axis, set()).add(label)
    for key, axis in _named_axes(file.table):
        if axis not in labels:
            complaint = Complaint(f"no variant has an axis '{axis}'", f"The axes are: {', '.join(labels)}.")
            problems.append(Problem(nearest_origin(node, ("table", *key)), ("table", *key), complaint))
    for axis, label in file.table.baseline.items():
        if axis in labels and str(label) not in labels[axis]:
            place: KeyPath = ("table", "baseline", axis)
            complaint = Complaint(f"no variant has the {axis} '{label}'", f"The labels are: {', '.join(labels[axis])}.")
            problems.append(Problem(nearest_origin(node, place), place, complaint))
    if not file.table.column_axes:
        complaint = Complaint("sets and metrics are in the rows or sections: no columns are left", "Add `columns`.")
        problems.append(Problem(nearest_origin(node, ("table",)), ("table",), complaint))
    return problems or _shared_cells(node, file.table, variants)


def _named_axes(layout: Layout) -> Iterator[tuple[KeyPath, str]]:
    for key in ("rows", "columns", "sections"):
        for axis in axes_of(getattr(layout, key)):
            yield (key,), axis
    for axis in layout.baseline:
        yield ("baseline", axis), axis


def _shared_cells(node: YamlNode, layout: Layout, variants: list[Variant]) -> list[Problem]:
    """A problem if two variants have the same labels on the table's axes; seeds share cells."""
    shown = [*axes_of(layout.rows), *layout.column_axes, *axes_of(layout.sections)]
    first: dict[tuple[str | None, ...], Variant] = {}
    for variant in variants:
        place = tuple(variant.labels.get(axis) for axis in shown)
        other = first.setdefault(place, variant)
        if other is not variant and {**other.labels, "seed": ""} != {**variant.labels, "seed": ""}:
            complaint = Complaint(
                f"{other.name} and {variant.name} share a cell",
                "Write the axis in which they differ under `rows`, `columns` or `sections`.",
            )
            return [Problem(nearest_origin(node, ("table",)), ("table",), complaint)]
    return []
