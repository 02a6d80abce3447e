"""Write recipes/README.md, one line for each recipe and sweep, from the comments at their tops.

python -m tools.recipe_index --output recipes/README.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

RECIPES = Path(__file__).parents[1] / "recipes"
_INTRODUCTION = """\
# Recipes to start from

<!-- Generated from the comments at the tops of the recipes by `make docs`: do not edit. -->

Every recipe begins with a comment that names its settings, its corpus and the commands to run.
[Recipes](../docs/reference/recipes.md) explains all keys, [the papers](../docs/records/papers.md) which recipe belongs
to which table, [sweeps](../docs/guides/sweeps.md) the files of `sweeps/`.
"""
HEADER = "# yaml-language-server: $schema="
"""The line that names the schema for editors."""
_SENTENCE_END = re.compile(r"(?<! al)(?<!Fig)\.\s(?=[A-Z])")


def summary(path: Path) -> str:
    """Return the first sentence of the comment at the top of a recipe."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line.removeprefix("#").strip() or not line.startswith("#"):
            break
        if not line.startswith(HEADER):
            words.append(line.removeprefix("#").strip())
    first = _SENTENCE_END.split(" ".join(words), maxsplit=1)[0]
    return first.rstrip(".:").replace("|", "\\|")


def _table(folder: Path) -> Iterator[str]:
    yield "| file | content |"
    yield "| --- | --- |"
    for path in sorted(folder.glob("*.yaml")):
        yield f"| [{path.name}]({path.relative_to(RECIPES).as_posix()}) | {summary(path)} |"


def text() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *_table(RECIPES), "\n## Sweeps\n", *_table(RECIPES / "sweeps"), ""])


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True, help="File to write.")
def main(output: Path) -> None:
    """Write the list of all recipes (recipes/README.md)."""
    output.write_text(text(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
