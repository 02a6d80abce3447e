"""Plugins for tests: modules, and packages that are installed in a folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Yield a function that writes a module into a folder on the path; the modules are forgotten at the end."""
    names: list[str] = []

    def write(name: str, content: str) -> None:
        names.append(name)
        path = folder / f"{name}.py"
        path.write_text(f"{content}{'#' * len(names)}\n", encoding="utf-8", newline="\n")  # each has another size
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(folder)
    yield write
    for name in names:
        sys.modules.pop(name, None)


def installed(folder: Path, package: str, version: str, entry_points: str) -> None:
    """Write the metadata of an installed package into a folder on the path."""
    place = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    place.mkdir(exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8")
    (place / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    importlib.invalidate_caches()
