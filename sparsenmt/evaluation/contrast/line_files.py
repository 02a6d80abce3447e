"""Suites of line-aligned files: source, correct, one or more incorrect; and folders of them, as in DistilLingEval.

A folder of DistilLingEval (Vamvas and Sennrich 2021) is one phenomenon: ``src.en``, ``tgt.correct.de`` and
``tgt.incorrect.de``, plain or gzipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsenmt.data.text import read_parallel
from sparsenmt.errors import UserError
from sparsenmt.evaluation.contrast.items import Item, Suite

_PARTS = ("src", "tgt.correct", "tgt.incorrect")


def read_line_files(source: Path, correct: Path, incorrect: Sequence[Path]) -> Suite:
    """Read a suite of line-aligned files: line n of the correct one must beat line n of all incorrect ones.

    Raises:
        UserError: a file cannot be read, or they are not line-aligned.
    """
    rows = list(read_parallel([source, correct, *incorrect]))
    items = tuple(_items(rows, source, "all", 0))
    return Suite(str(source), "lines", tuple(row[0] for row in rows), items)


def is_folder(path: Path) -> bool:
    """Return True if a folder, or a folder in it, looks like one of DistilLingEval."""
    return path.is_dir() and (_has_source(path) or bool(_sets(path)))


def read_folder(folder: Path) -> Suite:
    """Read a folder of DistilLingEval, or all such folders in a folder; the name of each is a type.

    Raises:
        UserError: there is no such folder, or one is not complete; or as `read_line_files`.
    """
    sets = [folder] if _has_source(folder) else _sets(folder)
    if not sets:
        raise UserError(
            "there is no src.<language> in the folder, nor in a folder in it",
            where=str(folder),
            hint="Name a folder with src.<language>, tgt.correct.<language> and tgt.incorrect.<language>.",
        )
    sources: list[str] = []
    items: list[Item] = []
    languages: set[tuple[str, str]] = set()
    for each in sets:
        files = [_file(each, part) for part in _PARTS]
        rows = list(read_parallel(files))
        items += _items(rows, files[0], each.resolve().name, len(sources))
        sources += [row[0] for row in rows]
        languages.add((_language(files[0]), _language(files[1])))
    pair = languages.pop() if len(languages) == 1 else None
    return Suite(str(folder), "distil-lingeval", tuple(sources), tuple(items), pair)


def _items(rows: Sequence[Sequence[str]], source: Path, name: str, first: int) -> Iterator[Item]:
    for number, (_, correct, *wrong) in enumerate(rows):
        yield Item(first + number, correct, tuple(wrong), name, f"{source}, line {number + 1:,}")


def _has_source(folder: Path) -> bool:
    return any(folder.glob("src.*"))


def _sets(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and _has_source(path))


def _file(folder: Path, part: str) -> Path:
    found = sorted(path for path in folder.glob(f"{part}.*") if path.is_file())
    if len(found) != 1:
        raise UserError(
            f"there is no {part}.<language>" if not found else f"there are {len(found)} files {part}.<language>",
            where=str(folder),
            hint="The folder must hold one src, one tgt.correct and one tgt.incorrect.",
        )
    return found[0]


def _language(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2]
