"""Additions to docs/ for the site: the hook that `mkdocs.yml` names.

The four shelves become the navigation. Files outside of docs/ to which a page links lie below ``repository/`` on the
site, and links lead there. One page has the Python API, from the docstrings of what `sparsenmt` exports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import sparsenmt

if TYPE_CHECKING:  # a package of the extra `dev`
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OUTSIDE = "repository"
API = "reference/python-api.md"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_START = ("install", "tutorial", "methods")
"""The first shelf, in the order in which a newcomer reads."""
_CODE = ("architecture", "rules", "hard-places")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation: the shelves, and the pages about the code."""
    shelves = {name: sorted(_pages(DOCS / name)) for name in ("guides", "reference", "records")}
    methods = [page for page in shelves["reference"] if "/methods/" in page]
    others = [page for page in shelves["reference"] if page not in methods]
    outside = [("Contributing", "CONTRIBUTING.md"), ("Changes", "CHANGELOG.md"), ("README", "README.md")]
    code = [*({title: f"{OUTSIDE}/{page}"} for title, page in outside), *(f"{name}.md" for name in _CODE)]
    config.nav = [
        {"sparsenmt": "index.md"},
        {"Start": [*(f"start/{name}.md" for name in _START), {"Recipes": f"{OUTSIDE}/recipes/README.md"}]},
        {"Guides": [*shelves["guides"], {"Template of a plugin": f"{OUTSIDE}/examples/plugin/README.md"}]},
        {"Reference": [{"Methods": methods}, *others, {"Python API": API}]},
        {"Records": shelves["records"]},
        {"Contribute": code},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages lead to, and the page of the API."""
    from mkdocs.structure.files import File

    for path in linked_files():
        files.append(File.generated(config, site_place(path), abs_src_path=str(path)))
    files.append(File.generated(config, API, content=api_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the places of their files on the site."""
    place = page.file.src_uri
    source = ROOT / place.removeprefix(f"{OUTSIDE}/") if place.startswith(f"{OUTSIDE}/") else DOCS / place

    def on_site(found: re.Match[str]) -> str:
        target = _target(source, found[1])
        return found[1] if target is None else os.path.relpath(site_place(target), os.path.dirname(place) or ".")

    return _LINK.sub(on_site, markdown)


def linked_files() -> list[Path]:
    """Return the files outside of docs/ that pages of docs/ link to, those that these lead to, and so on."""
    waiting, found = sorted(DOCS.rglob("*.md")), dict[Path, None]()
    while waiting:
        page = waiting.pop()
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            target = _target(page, link)
            if target is not None and DOCS not in target.parents and target not in found:
                found[target] = None
                waiting += [target] if target.suffix == ".md" else []
    return list(found)


def site_place(path: Path) -> str:
    """Return the place of a file of the repository among the sources of the site."""
    return (path.relative_to(DOCS) if DOCS in path.parents else OUTSIDE / path.relative_to(ROOT)).as_posix()


def api_page() -> str:
    """Return a page with an entry for every name that the package exports."""
    named = sorted((name for name in dir(sparsenmt) if not name.startswith("_")), key=str.lower)
    entries = [f"::: sparsenmt.{name}\n" for name in named]
    head = "# Python API\n\nThe names that `import sparsenmt` gives; [how to use them](../guides/python.md).\n"
    return "\n".join([head, *entries])


def _pages(folder: Path) -> Iterator[str]:
    return (page.relative_to(DOCS).as_posix() for page in folder.rglob("*.md"))


def _target(page: Path, link: str) -> Path | None:
    """Return the file of the repository that a link of a page leads to; None for other links."""
    target = Path(os.path.normpath(page.parent / link))
    return target if ROOT in target.parents and target.is_file() else None
