"""The variants of a sweep: products of axes, with `${axis}` replaced in their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

from sparsenmt.recipe.errors import Complaint, Problem, ProblemError, YamlOrigin, show
from sparsenmt.recipe.key_paths import KeyPath
from sparsenmt.recipe.resolve import Setting, expand_variables
from sparsenmt.recipe.yaml_tree import YamlNode, child, items, mapping, plain

SEED = ("training", "seed")
OWN_AXES = ("seed", "set", "metric")
"""Axes of every sweep: the seed of training, the text, and the metric."""

_MOST = 10_000  # variants of a sweep
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*)\}")
_UNFIT = re.compile(r"[^A-Za-z0-9.+_=-]+")  # for a directory name that every file system accepts


@dataclass(frozen=True)
class Variant:
    """One model of a sweep.

    Args:
        group: the name without the seed: that of the variants which differ in their seeds only.
        labels: its label by axis, including `seed` if the sweep names seeds.
        settings: overrides of the recipe, in order.
        start: model directory to start from; None: from scratch.
        updates: number of further updates; None: as the recipe says.
        restart: start without moments, at update 0.
        origin: origin of its block in the file.
    """

    name: str
    group: str
    labels: Mapping[str, str]
    recipe: Path
    settings: tuple[Setting, ...]
    start: Path | None
    updates: int | None
    restart: bool
    origin: YamlOrigin


@dataclass(frozen=True)
class _Label:
    """One value of an axis."""

    text: str
    values: Mapping[str, YamlNode]
    """The values of `${axis.key}`; `label` is that of `${axis}`."""
    settings: tuple[Setting, ...] = ()


def expand_variants(sweep: YamlNode, folder: Path) -> tuple[list[Variant], list[Problem]]:
    """All variants of a valid sweep file, in its order; recipe paths are relative to ``folder``."""
    variants: list[Variant] = []
    problems: list[Problem] = []
    total = 0
    for index, block in enumerate(items(child(sweep, "variants"))):
        path = ("variants", index)
        try:
            expansion = _BlockExpansion(sweep, block, path, folder)
            total += expansion.count
            if total > _MOST:
                complaint = Complaint(
                    f"the sweep has more than {_MOST:,} variants, {total:,} up to here",
                    "Remove axes, labels or seeds, or divide it into several sweeps.",
                )
                problems.append(Problem(block.origin, path, complaint))
                return [], problems
            variants += expansion.variants()
        except ProblemError as found:
            problems.append(found.problem)
    first: dict[str, Variant] = {}
    for variant in variants:
        if first.setdefault(variant.name.lower(), variant) is not variant:
            complaint = Complaint(
                f"two variants are named {variant.name}", "Give one of them a `name`, or another label under `at`."
            )
            problems.append(Problem(variant.origin, ("variants",), complaint))
    return _continued_by_seed(variants), problems


def _continued_by_seed(variants: Sequence[Variant]) -> list[Variant]:
    """Let variants that start from another one start from that of their seed.

    A variant whose weights are those of a model that no seed has changed is kept once, for the first seed.
    """
    places = {(variant.group, variant.labels.get("seed")): variant for variant in variants}

    def start(variant: Variant) -> Variant | None:
        return places.get((str(variant.start), variant.labels.get("seed")))

    first = {variant.group: variant.labels.get("seed") for variant in reversed(variants)}
    while True:  # a start that is kept once may leave others with one model for all seeds
        again = [
            place
            for place, variant in places.items()
            if variant.updates == 0 and variant.labels.get("seed") != first[variant.group] and start(variant) is None
        ]
        if not again:
            break
        for place in again:
            del places[place]
    return [
        replace(variant, start=Path(found.name)) if (found := start(variant)) is not None else variant
        for variant in places.values()
    ]


class _BlockExpansion:
    """The variants of an item of `variants`; keys that it does not have are taken from the sweep."""

    def __init__(self, sweep: YamlNode, block: YamlNode, path: KeyPath, folder: Path) -> None:
        self._sweep, self._block, self._path, self._folder = sweep, block, path, folder
        self._axes = {name: self._labels(name, value) for name, value in mapping(child(block, "at")).items()}

    @property
    def count(self) -> int:
        """The number of variants."""
        return prod(map(len, self._axes.values())) * max(1, len(items(child(self._sweep, "seeds"))))

    def variants(self) -> Iterator[Variant]:
        seeds = items(child(self._sweep, "seeds"))
        for chosen in product(*self._axes.values()):
            labels = dict(zip(self._axes, chosen, strict=True))
            if not seeds:
                yield self._variant(labels, None)
            for number, seed in enumerate(seeds):  # the first seed has no suffix: adding seeds keeps the names
                yield self._variant(labels, seed, f"-seed{seed.value}" if number else "")

    def _variant(self, labels: Mapping[str, _Label], seed: YamlNode | None, suffix: str = "") -> Variant:
        settings = [*_settings(child(self._sweep, "set")), *_settings(child(self._block, "set"))]
        settings += [setting for label in labels.values() for setting in label.settings]
        filled = [
            Setting(self._text(each.key, each.value, labels), self._filled(each.value, labels)) for each in settings
        ]
        texts = {axis: label.text for axis, label in labels.items()}
        if seed is not None:
            filled.append(Setting(".".join(SEED), seed))
            texts["seed"] = str(seed.value)
        recipe = self._key("recipe")
        assert recipe is not None
        start, updates, restart = self._start(labels)
        name = self._name(labels)
        return Variant(
            name=name + suffix,
            group=name,
            labels=texts,
            recipe=self._folder / self._path_in(recipe, labels, "recipe"),
            settings=tuple(filled),
            start=start,
            updates=updates,
            restart=restart,
            origin=self._block.origin,
        )

    def _name(self, labels: Mapping[str, _Label]) -> str:
        written = child(self._block, "name")
        name = "-".join(label.text for label in labels.values())
        if written is not None and isinstance(written.value, str):
            name = self._text(written.value, written, labels)
            if unknown := _REFERENCE.search(name):
                complaint = Complaint(
                    f"the variant has no axis '{unknown[1]}'", f"Its axes are: {', '.join(labels) or 'none'}."
                )
                raise ProblemError(written.origin, (*self._path, "name"), complaint)
        found = _UNFIT.sub("-", name.replace(" + ", "+")).strip("-.")
        if not found:
            complaint = Complaint("the variant has no name", "Write `name: ...`, or labels under `at`.")
            raise ProblemError(self._block.origin, self._path, complaint)
        return found

    def _start(self, labels: Mapping[str, _Label]) -> tuple[Path | None, int | None, bool]:
        """The model directory to start from, the number of further updates, and the flag to start without moments."""
        start = self._key("from")
        if start is None or not start.value:
            # The keys of the sweep may be meant for other blocks, if the sweep has `from`.
            owners = [self._block] if child(self._sweep, "from") is not None else [self._block, self._sweep]
            for owner in owners:
                self._check_no_continuation(owner)
            return None, None, False
        updates, restart = self._key("updates"), self._key("restart")
        number = None if updates is None else updates.value
        assert number is None or isinstance(number, int)
        return Path(self._path_in(start, labels, "from")), number, bool(restart is not None and restart.value)

    def _check_no_continuation(self, owner: YamlNode) -> None:
        """Refuse keys that need `from`."""
        for key in ("updates", "restart"):
            own = child(owner, key)
            if own is not None and own.value is not None and own.value is not False:
                complaint = Complaint(
                    "needs `from`",
                    "Name a model directory with `from`; from scratch, set `training.max_updates` under `set` instead.",
                )
                raise ProblemError(own.origin, (key,) if owner is self._sweep else (*self._path, key), complaint)

    def _key(self, key: str) -> YamlNode | None:
        """The block's value or, if it has none, the sweep's."""
        own = child(self._block, key)
        return child(self._sweep, key) if own is None else own

    def _path_in(self, node: YamlNode, labels: Mapping[str, _Label], key: str) -> str:
        text = expand_variables(self._text(str(node.value), node, labels))
        if isinstance(text, Complaint):
            raise ProblemError(node.origin, (*self._path, key), text)
        return text

    def _labels(self, axis: str, node: YamlNode) -> list[_Label]:
        path = (*self._path, "at", axis)
        if not re.fullmatch(r"[A-Za-z_]\w*", axis) or axis in OWN_AXES:
            complaint = Complaint(
                f"'{axis}' cannot be the name of an axis",
                "Write letters, digits and _, and none of the built-in axes `seed` (see `seeds`), `set` and `metric`.",
            )
            raise ProblemError(node.origin, path, complaint)
        written = items(node) if isinstance(node.value, list) else [node]
        labels = [_label(item, path) for item in written]
        first: dict[str, int] = {}
        for index, label in enumerate(labels):
            if first.setdefault(label.text, index) != index:
                complaint = Complaint(f"the label '{label.text}' occurs twice", "Remove one of the two.")
                raise ProblemError(written[index].origin, path, complaint)
        if not labels:
            raise ProblemError(
                node.origin, path, Complaint("the axis has no labels", "Write a label, or a list of them.")
            )
        return labels

    def _filled(self, node: YamlNode, labels: Mapping[str, _Label]) -> YamlNode:
        """The value with its references replaced; a text that is a single reference becomes the value itself."""
        if isinstance(node.value, dict):
            return YamlNode({name: self._filled(each, labels) for name, each in node.value.items()}, node.origin)
        if isinstance(node.value, list):
            return YamlNode([self._filled(each, labels) for each in node.value], node.origin)
        if not isinstance(node.value, str):
            return node
        whole = _REFERENCE.fullmatch(node.value)
        if whole is not None and whole[1] in labels:
            return YamlNode(self._referenced(whole, node, labels).value, node.origin)
        return YamlNode(self._text(node.value, node, labels), node.origin)

    def _text(self, text: str, node: YamlNode, labels: Mapping[str, _Label]) -> str:
        """A text with its references replaced; other names stay, such as environment variables."""

        def value_of(match: re.Match[str]) -> str:
            return str(plain(self._referenced(match, node, labels))) if match[1] in labels else match[0]

        return _REFERENCE.sub(value_of, text)

    def _referenced(self, match: re.Match[str], node: YamlNode, labels: Mapping[str, _Label]) -> YamlNode:
        label, keys = labels[match[1]], match[2].split(".")[1:] or ["label"]
        found = label.values.get(keys[0])
        for key in keys[1:]:
            found = None if found is None else child(found, key)
        if found is None:
            complaint = Complaint(
                f"the label '{label.text}' of {match[1]} has no value `{'.'.join(keys)}`",
                f"Write it beside the label: `{{label: {label.text}, {keys[0]}: ...}}`.",
            )
            raise ProblemError(node.origin, self._path, complaint)
        return found


def _label(node: YamlNode, path: KeyPath) -> _Label:
    if not isinstance(node.value, dict):
        return _Label(_label_text(node, path), {"label": node})
    label = node.value.get("label")
    if label is None:
        complaint = Complaint("a value of an axis has no label", "Write `{label: ..., set: {...}}`.")
        raise ProblemError(node.origin, path, complaint)
    changes = node.value.get("set")
    if changes is not None and not isinstance(changes.value, dict):
        complaint = Complaint(
            f"must be a mapping of keys to values, not {show(plain(changes))}", "Write `set: {training.seed: 2}`."
        )
        raise ProblemError(changes.origin, (*path, "set"), complaint)
    return _Label(_label_text(label, path), node.value, tuple(_settings(changes)))


def _label_text(node: YamlNode, path: KeyPath) -> str:
    if isinstance(node.value, bool) or not isinstance(node.value, str | int | float) or node.value == "":
        complaint = Complaint(
            f"a label must be a text or a number, not {show(plain(node))}", "Put it into quotes, or write another one."
        )
        raise ProblemError(node.origin, path, complaint)
    return str(node.value)


def _settings(node: YamlNode | None) -> list[Setting]:
    return [Setting(key, value) for key, value in mapping(node).items()]
