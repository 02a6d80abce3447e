"""The steps from a recipe file to one tree of values: bases, overrides, presets, and variables in paths."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.errors import UserError, check_lists
from sparsenmt.recipe.choices import NO_SHORTLIST, OWN_SHORTLIST, PRESETS
from sparsenmt.recipe.errors import Complaint, Problem, ProblemError, YamlOrigin, dotted, show
from sparsenmt.recipe.key_paths import KeyPath, key_path
from sparsenmt.recipe.schema import OPTIMIZER_KEYS
from sparsenmt.recipe.socket_methods import PLACE_KEYS, socket_at
from sparsenmt.recipe.task_keys import TASK_KEYS
from sparsenmt.recipe.yaml_tree import YamlNode, child, find, items, mapping, parse, plain, read, replace_all, tree

MAPPING = "recipe"
"""The name of a recipe in messages that was given as a mapping, and is no file."""
_MOST_FILES = 100  # that a recipe includes
_MOST_BYTES = 2_000_000  # of all its files: a file that is included twice is read twice
_MOST_PARTS = 50  # of an override's key
_FILES = ("source", "target", "text", "tags", "documents", "alignments")  # of a corpus
_RELATIVE = (*_FILES, "from_model", "shortlist")  # to the folder of the recipe file
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


def overlay(below: YamlNode, above: YamlNode, path: KeyPath = ()) -> YamlNode:
    """``above`` laid over ``below``: mappings are merged, lists and scalars replaced.

    A method mapping whose ``name`` changes loses the options of the replaced method, except options given on the
    command line, which are meant for the new method; so does the optimizer.
    """
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    kept = below.value
    socket = socket_at(path)
    if socket is not None and _name(above) is not None and _name(above) != _name(below):
        place = PLACE_KEYS.get(socket, ())
        kept = {key: value for key, value in kept.items() if value.origin.is_override or key in place}
    elif path == ("training", "optimizer") and _name(above) in OPTIMIZER_KEYS:
        foreign = {key for name, keys in OPTIMIZER_KEYS.items() if name != _name(above) for key in keys}
        kept = {key: value for key, value in kept.items() if value.origin.is_override or key not in foreign}
    merged = dict(kept)
    for key, value in above.value.items():
        merged[key] = overlay(merged[key], value, (*path, key)) if key in merged else value
    return YamlNode(merged, above.origin)


def _name(node: YamlNode) -> object:
    name = child(node, "name")
    return name.value if name is not None else None


# Bases


def read_with_bases(recipe: Path | Mapping[str, Any]) -> tuple[YamlNode, list[Problem]]:
    """Read a recipe and lay it over the recipes that it names as ``base``: a path, or a list, the last one on top.

    Args:
        recipe: its file; or its keys and values, whose paths start from the working directory.

    Raises:
        UserError: a file cannot be read, recipes include each other in a circle, or there are too many of them.
    """
    if isinstance(recipe, Path):
        return _read_with_bases(recipe, (), [])
    return _on_bases(tree(recipe, YamlOrigin(MAPPING, Path.cwd())), [], Path.cwd(), (), [])


def _read_with_bases(path: Path, including: tuple[Path, ...], done: list[int]) -> tuple[YamlNode, list[Problem]]:
    """`read_with_bases` of an included file: the chain of files ``including`` it, and the sizes of all files so far."""
    node, problems = read(path)
    done.append(os.path.getsize(path))
    return _on_bases(node, problems, path.parent, (*including, Path(os.path.realpath(path))), done)


def _on_bases(
    node: YamlNode, problems: list[Problem], folder: Path, chain: tuple[Path, ...], done: list[int]
) -> tuple[YamlNode, list[Problem]]:
    """`read_with_bases` of a recipe that is read: its problems, its folder, and the files that lead to its bases."""
    base = child(node, "base")
    if base is None:
        return node, problems
    own = replace_all(node, {("base",): None})
    if any(problem.path[:1] == ("base",) for problem in problems):
        return own, problems
    below: YamlNode | None = None
    for entry in items(base) if isinstance(base.value, list) else [base]:
        name: str | Complaint = Complaint(
            "must be the path of a recipe, or a list of paths", "Write `base: other.yaml`."
        )
        if isinstance(entry.value, str) and entry.value:
            name = expand_variables(entry.value)
        if isinstance(name, Complaint):
            problems.append(Problem(entry.origin, ("base",), name))
            continue
        other, found = _read_with_bases(_base_file(folder / name, entry, chain, done), chain, done)
        problems += found
        below = other if below is None else overlay(below, other)
    return (own if below is None else overlay(below, own)), problems


def _base_file(path: Path, entry: YamlNode, chain: tuple[Path, ...], done: list[int]) -> Path:
    file, where = Path(os.path.normpath(path)), f"{entry.origin.place}: base"
    if Path(os.path.realpath(file)) in chain:
        raise UserError(
            f"{file} includes itself", where=where, hint="Remove this line, or the line there that leads back."
        )
    if len(done) >= _MOST_FILES:
        raise UserError(
            f"more than {_MOST_FILES} files are included", where=where, hint="Name each base once, in few files."
        )
    if not os.path.isfile(file):
        raise UserError(
            f"there is no file {file}", where=where, hint="Write a path relative to the folder of this recipe."
        )
    if sum(done) + os.path.getsize(file) > _MOST_BYTES:
        raise UserError(
            f"the files of the recipe are together larger than {_MOST_BYTES:,} bytes",
            where=where,
            hint="Name recipes: short YAML files, each of them once.",
        )
    return file


# Overrides


@dataclass(frozen=True)
class Setting:
    """An override from another file, such as a sweep; errors name the line of its value."""

    key: str
    value: YamlNode


Overrides = Sequence[str | Setting] | Mapping[str, Any]
"""Settings that are laid over a recipe: ``key.path=value`` each, or values by their keys."""


def as_settings(overrides: Overrides) -> list[str | Setting]:
    """Return overrides as a list; those of a mapping are one setting for each of its keys, ``training.seed`` or nested.

    Raises:
        TypeError: they are a single string.
    """
    check_lists(overrides=overrides)
    if not isinstance(overrides, Mapping):
        return list(overrides)
    found: list[str | Setting] = []
    for key, value in overrides.items():
        origin = YamlOrigin(f"override '{key}={show(value)}'", Path.cwd(), is_override=True)
        found.append(Setting(str(key), tree(value, origin)))
    return found


def apply_overrides(recipe: YamlNode, overrides: Sequence[str | Setting]) -> tuple[YamlNode, list[Problem]]:
    """Lay settings over a recipe, in order: ``key.path=value`` with a YAML value, or `Setting`."""
    problems: list[Problem] = []
    for override in overrides:
        try:
            setting, found = (override, []) if isinstance(override, Setting) else _parse_override(override)
            problems += found
            recipe = _set(recipe, (), _key_parts(setting.key, setting.value.origin), setting.value)
        except ProblemError as error:
            problems.append(error.problem)
    return recipe, problems


def _parse_override(text: str) -> tuple[Setting, list[Problem]]:
    origin = YamlOrigin(f"override '{text}'", Path.cwd(), is_override=True)
    key, equals, value_text = text.partition("=")
    if not equals or not key.strip():
        raise ProblemError(origin, (), Complaint("must look like `key=value`", "Write for instance `training.seed=2`."))
    path = key_path(".".join(_key_parts(key, origin)))
    try:
        value, found = parse(value_text, name=origin.place, folder=Path.cwd())
    except UserError as error:
        complaint = Complaint(error.message, f"If the value is a text, put it into quotes. {error.hint}")
        raise ProblemError(origin, (), complaint) from None
    problems = [Problem(origin, (*path, *problem.path), problem.complaint) for problem in found]
    return Setting(key, tree(None if value is None else plain(value), origin)), problems


def _key_parts(key: str, origin: YamlOrigin) -> list[str]:
    parts = key.strip().split(".")
    if parts[0] == "base":
        complaint = Complaint(
            "`base` can be set in a recipe file only", "Write a recipe that names both files as `base`."
        )
        raise ProblemError(origin, (), complaint)
    if "" in parts or len(parts) > _MOST_PARTS or not all(part.isprintable() for part in parts):
        raise ProblemError(
            origin, (), Complaint("the key is not valid", "Separate its parts by single dots: `training.seed=2`.")
        )
    return parts


def _set(node: YamlNode | None, path: KeyPath, parts: Sequence[str], value: YamlNode) -> YamlNode:
    """``node``, found at ``path``, with ``value`` laid over the value at ``parts`` below it."""
    if not parts:
        return overlay(node, value, path) if node is not None else value
    part = parts[0]
    is_absent = node is None or node.value is None
    if (node is not None and isinstance(node.value, list)) or (is_absent and part.isdecimal()):
        return _set_item(node, path, parts, value)
    if node is not None and node.value is not None and not isinstance(node.value, dict):
        complaint = Complaint(
            f"`{dotted(path)}` is {show(node.value)}, not a section: it has no key `{part}`",
            f"Set `{dotted(path)}` itself, or check the key.",
        )
        raise ProblemError(value.origin, (), complaint)
    inner = _set(child(node, part), (*path, part), parts[1:], value)
    above = YamlNode({part: inner}, node.origin if node is not None else value.origin)
    # Laying over, instead of inserting, applies the rule for methods whose name changes.
    return overlay(node, above, path) if node is not None and isinstance(node.value, dict) else above


def _set_item(node: YamlNode | None, path: KeyPath, parts: Sequence[str], value: YamlNode) -> YamlNode:
    """`_set` in a list; an index one past its end appends."""
    present, part = items(node), parts[0]
    if not part.isdecimal():
        complaint = Complaint(f"`{dotted(path)}` is a list", f"Write an index after it, e.g. `{dotted(path)}.0`.")
        raise ProblemError(value.origin, (), complaint)
    index = int(part) if len(part) < 10 else 10**10
    if index > len(present):
        have = f"{len(present)} item{'' if len(present) == 1 else 's'}"
        complaint = Complaint(
            f"`{dotted(path)}` has {have}: there is no item {part}",
            f"Items are counted from 0; `{dotted(path)}.{len(present)}` adds one.",
        )
        raise ProblemError(value.origin, (), complaint)
    inner = _set(child(node, index), (*path, index), parts[1:], value)
    return YamlNode([*present[:index], inner, *present[index + 1 :]], node.origin if node is not None else value.origin)


# Presets


def expand_preset(recipe: YamlNode) -> YamlNode:
    """The recipe with the sizes of ``model.preset`` filled in, those of its task; their origin is the preset's line.

    An unknown preset is left to the validation.
    """
    preset = find(recipe, ("model", "preset"))
    if preset is None or not isinstance(preset.value, str) or preset.value not in PRESETS:
        return recipe
    model = mapping(recipe)["model"]
    task = find(recipe, ("data", "task"))
    other = TASK_KEYS["translation"] if task is not None and task.value == "language_model" else ()
    chosen = {key: size for key, size in PRESETS[preset.value].items() if f"model.{key}" not in other}
    sizes = {key: tree(size, preset.origin) for key, size in chosen.items()}
    # The preset's name stays first, for the reader of a dumped recipe.
    merged = {"preset": preset, **sizes, **mapping(model)}
    return YamlNode({**mapping(recipe), "model": YamlNode(merged, model.origin)}, recipe.origin)


# Paths


def expand_variables(text: str) -> str | Complaint:
    """The path with `${VARIABLE}`, `${VARIABLE:-default}` and `~` replaced. An empty variable counts as unset."""
    for match in _VARIABLE.finditer(text):
        name, default = match.groups()
        if default is None and not os.environ.get(name):
            return Complaint(
                f"the environment variable {name} is not set",
                f"Set it, or write a default into the recipe: `${{{name}:-default}}`.",
            )
    if "${" in _VARIABLE.sub("", text):
        return Complaint("`${` begins a variable", "Write `${NAME}` or `${NAME:-default}`.")
    return _usable(os.path.expanduser(_VARIABLE.sub(lambda match: os.environ.get(match[1]) or match[2] or "", text)))


def _usable(path: str) -> str | Complaint:
    """The path, or a complaint if no file of the program can have it."""
    if not path:
        return Complaint("the path is empty after its variables are replaced", "Set them, or write defaults.")
    if "\0" in path:
        return Complaint("a path cannot contain the character U+0000", "Write the path again, without escapes.")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return Complaint(
            "the path, or the folder that it is relative to, is not UTF-8", "Rename it: recipes and models are UTF-8."
        )
    return path


def resolve_paths(recipe: YamlNode) -> tuple[YamlNode, list[Problem]]:
    """Replace the variables in a recipe's paths and make those of corpora and tokenizers absolute.

    Such a path is relative to the folder of the recipe file that names it, or to the working directory if it was
    given on the command line. The two directories stay relative to the working directory.
    """
    problems: list[Problem] = []
    changes: dict[KeyPath, YamlNode | None] = {}
    for path in _path_keys(recipe):
        node = find(recipe, path)
        if node is None or not isinstance(node.value, str):
            continue
        text: str | Complaint = Complaint("must not be empty", "Write a path.")
        if node.value:
            text = expand_variables(node.value)
        named = path[-1] == "shortlist" and text in (NO_SHORTLIST, OWN_SHORTLIST)
        if isinstance(text, str) and path[-1] in _RELATIVE and not named and node.origin.folder is not None:
            text = _usable(os.path.abspath(node.origin.folder / text))
        if isinstance(text, Complaint):
            problems.append(Problem(node.origin, path, text))
        else:
            changes[path] = YamlNode(text, node.origin)
    return replace_all(recipe, changes), problems


def _path_keys(recipe: YamlNode) -> Iterator[KeyPath]:
    yield ("directory",)
    yield ("data", "directory")
    yield ("data", "tokenizer", "from_model")
    yield ("decoding", "shortlist")
    count = len(items(find(recipe, ("data", "train"))))
    corpora: list[KeyPath] = [("data", "train", index) for index in range(count)]
    for corpus in [*corpora, ("data", "dev"), ("data", "test")]:
        yield from ((*corpus, file) for file in _FILES)
