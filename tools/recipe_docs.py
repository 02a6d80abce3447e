"""Write docs/reference/recipes.md, the reference of all recipe keys, from the schema and the options of the methods.

python -m tools.recipe_docs --output docs/reference/recipes.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sparsenmt.recipe.choices import PRESETS
from sparsenmt.recipe.key_paths import alternatives, fields_by_key, section_type, type_inside
from sparsenmt.recipe.method_choice import MethodChoice
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.socket_methods import SOCKETS, Methods
from sparsenmt.recipe.table_names import TableName
from sparsenmt.sparsity.registry import methods

_INTRODUCTION = """\
# Recipes

<!-- Generated from the schema by `make docs`: do not edit. -->

A recipe is a YAML file that describes a complete run: the Transformer, the methods plugged into its sockets, the data,
the training and the decoding. Unknown keys are refused, and all mistakes in a recipe are shown together, each with its
file and line. The shortest recipe has a name, a directory and data; every other key has a default:

```yaml
name: my-run
directory: runs/my-run
data:
  directory: runs/data/my-run
  train:
    - {source: text/train.en, target: text/train.de}
  dev: {source: text/dev.en, target: text/dev.de}
```

**Overrides.** `sparsenmt train recipe.yaml training.learning_rate=1e-3 model.dropout.residual=0.3` overrides
keys of the file. Values are YAML; an index selects an item of a list: `data.train.0.weight=2`. An index one past the
end appends an item.
`sparsenmt train recipe.yaml --dump-config` prints the resolved recipe.

**`base: other.yaml`** (or a list of files, later ones over earlier ones) lays this recipe over other recipes. Mappings
are merged; lists and single values are replaced; a method with another `name` also replaces the options of the old one.

**Paths.** `${NAME}` and `${NAME:-default}` in paths are replaced by environment variables. Corpus paths are relative to
the folder of the recipe that names them (on the command line: to the working directory); the two `directory` keys
are relative to the working directory.

**Editors.** Each recipe of the package begins with a line `# yaml-language-server: $schema=...`: VS Code's YAML
extension, and other editors with a YAML server, then complete keys, show what they mean and underline mistakes.
`sparsenmt recipe-schema` writes the schema, with the methods of installed plugins, `sparsenmt recipe-schema --sweep`
that of sweeps.

**YAML.** Scalars follow YAML 1.2: `1e-3` is a number, `no` is a text, only `true` and `false` are booleans.
"""


@click.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write. [default: stdout]")
def command(output: Path | None) -> None:
    """Write the reference of all recipe keys and method options (docs/reference/recipes.md)."""
    text = recipe_reference(methods())
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8", newline="\n")


def recipe_reference(methods: Methods) -> str:
    """The page for these methods (socket -> name -> type of the options)."""
    return "\n".join([_INTRODUCTION, _presets(), *_sections(), _sockets(methods)])


def _presets() -> str:
    rows = [[f"`{name}`", *(str(size) for size in sizes.values())] for name, sizes in PRESETS.items()]
    header = ["preset", *(f"`{key}`" for key in next(iter(PRESETS.values())))]
    text = "**Presets.** `model.preset` sets the sizes of the model; keys of the recipe override them:"
    return f"{text}\n\n{_table(header, rows)}"


def _sections() -> Iterator[str]:
    """A heading and a table for each section, in the order of the schema; a type with several places is listed once."""
    places: dict[type[BaseModel], list[str]] = {}
    for place, section in _places(Recipe, ""):
        places.setdefault(section, []).append(place)
    for section, names in places.items():
        title = ", ".join(f"`{name}`" for name in names) if names != [""] else "Top level"
        depth = 2 if all("." not in name for name in names) else 3
        rows = [_row(key, field) for key, field in fields_by_key(section).items()]
        table = _table(["key", "value", "default", "meaning"], rows)
        yield f"{'#' * depth} {title}\n\n{_summary(section)}\n\n{table}"


def _places(section: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section with its key path; `*` stands for the items of a list or the names of a mapping."""
    yield path, section
    for key, field in fields_by_key(section).items():
        here = f"{path}.{key}" if path else key
        item = section_type(type_inside(field.annotation, 0)) or section_type(type_inside(field.annotation, "*"))
        for suffix, inner in (("", section_type(field.annotation)), (".*", item)):
            if inner is not None and not issubclass(inner, MethodChoice):
                yield from _places(inner, here + suffix)


def _sockets(methods: Methods) -> str:
    parts = ["## Methods\n\nA method is written at its socket as `{name: ..., option: value}`."]
    for place, socket in SOCKETS.items():
        where = ".".join({"#": "*"}.get(part, part) for part in place)
        own = [field for field in _method_fields(place) if field[0] != "name"]
        text = f"### `{where}`: socket `{socket}`"
        if own:
            table = _table(_HEADER, [_row(key, field) for key, field in own])
            text += f"\n\nKeys of every method here:\n\n{table.rstrip()}"
        parts.append(text)
        parts += [_method(name, options) for name, options in sorted(methods.get(socket, {}).items())]
        if not methods.get(socket):
            parts.append("No methods yet.")
    return "\n\n".join(parts) + "\n"


def _method_fields(place: tuple[str, ...]) -> list[tuple[str, FieldInfo]]:
    """The keys of the method mapping at a socket."""
    section: type[BaseModel] = Recipe
    for part in place:
        fields = fields_by_key(section)
        field = next(iter(fields.values())) if part == "*" else fields.get(part)
        if field is not None:
            section = section_type(field.annotation) or section_type(type_inside(field.annotation, 0)) or section
    return list(fields_by_key(section).items())


def _method(name: str, options: type[BaseModel]) -> str:
    rows = [_row(key, field) for key, field in fields_by_key(options).items()]
    if not rows:
        return f"#### `{name}`\n\nNo options."
    own_text = f"{_summary(options)}\n\n" if "__doc__" in vars(options) and options.__doc__ else ""
    return f"#### `{name}`\n\n{own_text}{_table(_HEADER, rows).rstrip()}"


def _summary(section: type[BaseModel]) -> str:
    """The first paragraph of the docstring."""
    return " ".join(inspect.getdoc(section).split("\n\n")[0].split()) if section.__doc__ else ""  # type: ignore[union-attr]


_HEADER = ["key", "value", "default", "meaning"]


def _row(key: str, field: FieldInfo) -> list[str]:
    return [f"`{key}`", value_words(field.annotation, field.metadata), _default(field), field.description or ""]


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def value_words(annotation: Any, metadata: list[Any] | None = None) -> str:
    """A type in plain words: ``whole number > 0 or `null```."""
    if get_origin(annotation) is Annotated:
        inner, *found = get_args(annotation)
        return value_words(inner, [one for item in found for one in _constraints(item)])
    members = get_args(annotation) if len(alternatives(annotation)) > 1 else ()
    if members and get_origin(annotation) is not Literal:
        words = [value_words(member, metadata) for member in members if member is not type(None)]
        return " or ".join(dict.fromkeys([*words, *(["`null`"] if type(None) in members else [])]))
    named = [f"`{name}`" for item in metadata or [] if isinstance(item, TableName) for name in item.names()]
    return ", ".join(named) or _one_word(annotation) + _bounds(metadata or [])


def _constraints(item: Any) -> list[Any]:
    return item.metadata if isinstance(item, FieldInfo) else [item]


def _one_word(annotation: Any) -> str:
    container = get_origin(annotation)
    if container is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if container in (list, tuple, set, frozenset):
        return f"list of {_plural(value_words(get_args(annotation)[0]))}"
    if container is dict:
        return f"mapping of names to {_plural(value_words(get_args(annotation)[1]))}"
    if isinstance(annotation, type) and issubclass(annotation, MethodChoice):
        return "method"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    words = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}
    return words.get(annotation, "any value")


def _plural(words: str) -> str:
    return f"{words}s" if words in ("section", "method", "number", "whole number", "text") else words


def _bounds(metadata: list[Any]) -> str:
    words = []
    for item in sorted(metadata, key=lambda item: isinstance(item, (Lt, Le))):
        if isinstance(item, Gt):
            words.append(f"> {item.gt}")
        elif isinstance(item, Ge):
            words.append(f">= {item.ge}")
        elif isinstance(item, Lt):
            words.append(f"< {item.lt}")
        elif isinstance(item, Le):
            words.append(f"<= {item.le}")
        elif isinstance(item, MinLen):
            words.append(f"(at least {item.min_length})")
    return f" {', '.join(words)}" if words else ""


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    if field.is_required() or default is PydanticUndefined:
        return "required"
    if isinstance(default, MethodChoice):
        return f"`{default.name}`"
    if isinstance(default, BaseModel):
        return ""
    if default is None:
        return "`null`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`"


if __name__ == "__main__":
    command()
