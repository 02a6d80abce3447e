"""Draw docs/architecture.svg: the parts of the package in their layers, and which part imports which.

python -m tools.architecture_picture --output docs/architecture.svg

A part is a folder or a file at the top of the package. The layers are those of the import contract in pyproject.toml,
the arrows the imports in the sources, the words in the boxes those of the table of parts in docs/architecture.md. An
import that a chain of others implies has no arrow, nor have those of the files below the lowest folder, which
everything above may import.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import click

from tools.house_numbers import NAME, Package, imports, read_package, resolve

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"

_WIDTH, _MARGIN, _GAP = 1080, 30, 22  # pixels of the picture, its border, and between boxes of a layer
_BOX, _SMALL = (236, 62), (112, 24)  # width and height of a part with a description, and of a file below all folders
_BETWEEN = 30  # pixels between two layers
_MOST = 4  # parts with a description in one layer
_LINE = 35  # letters of a description in one line
_GREY, _BLUE = "#6b7c93", "#e8f0fa"  # of arrows, and of folders

Edges = set[tuple[str, str]]
"""Pairs of parts: the one that imports, and the one that is imported."""


@dataclass(frozen=True)
class Box:
    """A part in the picture: its left upper corner and its size in pixels, and the lines below its name."""

    x: float
    y: float
    width: float
    height: float
    text: list[str]

    @property
    def large(self) -> bool:
        """True for a part, false for a file below all folders."""
        return self.height == _BOX[1]

    def port(self, name: str, names: list[str]) -> float:
        """The place of an arrow among those of `names` on a side of the box."""
        return self.x + self.width * (names.index(name) + 1) / (len(names) + 1)


def layers(pyproject: Path = ROOT / "pyproject.toml") -> list[list[str]]:
    """The parts of each layer, the highest first, from the import contract with the id `layers`."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each.get("id") == "layers"]
    rows = [[name.strip(" ()") for name in re.split(r"[|:]", layer)] for layer in contract["layers"]]
    return [row for row in rows if row != ["__main__"]]


def descriptions(page: Path = PAGE) -> dict[str, str]:
    """Part -> what is in it, from the table of parts: rows whose first cell is `name/` or `name.py`."""
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| ([^|]+?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: re.sub(r"[`*]", "", text) for name, text in rows}


def part_imports(package: Package) -> Edges:
    """All pairs of different parts of which the first imports from the second."""
    found = set()
    for each in imports(package):
        target = resolve(each.imported, package)
        pair = (each.importer.split(".")[1:2], (target or NAME).split(".")[1:2])
        if all(pair) and pair[0] != pair[1]:
            found.add((pair[0][0], pair[1][0]))
    return found


def direct(edges: Edges) -> Edges:
    """The edges that no chain of other edges implies."""
    below: dict[str, set[str]] = {}
    for importer, imported in edges:
        below.setdefault(importer, set()).add(imported)

    def reached(part: str) -> set[str]:
        found: set[str] = set()
        waiting = [part]
        while waiting:
            new = below.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    return {(a, b) for a, b in edges if not any(b in reached(other) for other in below[a] - {b})}


def boxes(rows: list[list[str]], text: dict[str, str], folders: set[str]) -> dict[str, Box]:
    """Part -> its box: the layers from top to bottom, the parts of a layer side by side in the middle."""
    lowest = max(number for number, row in enumerate(rows) if folders & set(row))
    placed: dict[str, Box] = {}
    y = float(_MARGIN)
    for number, row in enumerate(rows):
        large = number <= lowest and len(row) <= _MOST
        width, height = _BOX if large else _SMALL
        total = width * len(row) + _GAP * (len(row) - 1)
        fit = min(1.0, (_WIDTH - 2 * _MARGIN) / total)
        for place, name in enumerate(row):
            x = (_WIDTH - total * fit) / 2 + place * (width + _GAP) * fit
            lines = textwrap.wrap(text.get(name, ""), _LINE) if large else []
            placed[name] = Box(x, y, width * fit, height, lines)
        y += height + (_BETWEEN if number < lowest else _BETWEEN / 3)
    return placed


def picture(rows: list[list[str]], edges: Edges, text: dict[str, str], folders: set[str]) -> str:
    """The SVG of these layers, imports and descriptions; folders are filled, single files are not."""
    placed = boxes(rows, text, folders)
    height = max(box.y + box.height for box in placed.values()) + _MARGIN
    shown = [(a, b) for a, b in sorted(edges) if all(name in placed and placed[name].large for name in (a, b))]
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height:.0f}' "
        f"viewBox='0 0 {_WIDTH} {height:.0f}'>",
        "<title>The parts of sparsenmt: each imports from those below it, an arrow leads to what it imports</title>",
        "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{_GREY}'/></marker></defs>",
        f"<rect width='{_WIDTH}' height='{height:.0f}' fill='white'/>",
        f"<g fill='none' stroke='{_GREY}' stroke-width='1.3' marker-end='url(#head)'>",
        *_arrows(shown, placed),
        "</g>",
        "<g fill='white' stroke='#2f5d8c'>",
        *(_frame(box, name in folders) for name, box in placed.items()),
        "</g>",
        "<g text-anchor='middle' font-family='Helvetica, Arial, sans-serif' font-size='12' fill='#222'>",
        *(line for name, box in placed.items() for line in _words(name + "/" * (name in folders), box)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrows(edges: list[tuple[str, str]], placed: dict[str, Box]) -> Iterator[str]:
    """The curves of the imports; those of one box begin, and end, side by side in the order of the other boxes."""
    for a, b in edges:
        start, end = placed[a], placed[b]
        x0 = start.port(b, sorted((other for part, other in edges if part == a), key=lambda part: placed[part].x))
        x1 = end.port(a, sorted((part for part, other in edges if other == b), key=lambda part: placed[part].x))
        y0, y1 = start.y + start.height, end.y
        bend = max(_BETWEEN, (y1 - y0) / 3)
        curve = f"M{x0:.0f},{y0:.0f} C{x0:.0f},{y0 + bend:.0f} {x1:.0f},{y1 - bend:.0f} {x1:.0f},{y1:.0f}"
        yield f"<path d='{curve}'/>"


def _frame(box: Box, folder: bool) -> str:
    place = f"x='{box.x:.0f}' y='{box.y:.0f}' width='{box.width:.0f}' height='{box.height:.0f}'"
    fill = f" fill='{_BLUE}'" if folder else ""
    return f"<rect {place} rx='5'{fill}/>"


def _words(title: str, box: Box) -> Iterator[str]:
    """The name of a part, and below it what is in it."""
    middle = f"{box.x + box.width / 2:.0f}"
    y = box.y + (18 if box.text else box.height / 2 + 4)
    size = 14 if box.large else 9
    yield f"<text x='{middle}' y='{y:.0f}' font-size='{size}' font-weight='bold'>{escape(title)}</text>"
    for number, line in enumerate(box.text):
        yield f"<text x='{middle}' y='{y + 17 + 15 * number:.0f}'>{escape(line)}</text>"


def current_picture() -> str:
    """The picture of this checkout."""
    package = read_package()
    rows = layers()
    tops = {path.name for path in package.folder.iterdir() if path.is_dir()}
    return picture(rows, direct(part_imports(package)), descriptions(), tops)


@click.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write. [default: stdout]")
def command(output: Path | None) -> None:
    """Draw the parts of the package, their layers and their imports (docs/architecture.svg)."""
    if output is None:
        click.echo(current_picture(), nl=False)
    else:
        output.write_text(current_picture(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    command()
